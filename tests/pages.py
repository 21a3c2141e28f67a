"""Runs the code blocks of a page of `docs/`, in order, as a reader would.

A block of Python behind "This is `NAME`:" is written to that file; others share one
namespace. Lines of a bash block that start `roxxel.main` run in that process, which
imports jax once; others in bash.
"""

import json
import os
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:This is|as) `([\w/]+\.py)`[:.]\s*$")

CHILD = """
import json, os, shlex, subprocess, sys
from pathlib import Path
sys.path.insert(0, os.getcwd())
from roxxel.main import main

names = {"__name__": "page"}
for kind, name, text in json.loads(Path("blocks.json").read_text()):
    if kind == "python" and name:
        Path(name).write_text(text)
        continue
    if kind == "python":
        exec(compile(text, "page", "exec"), names)
        continue
    for line in text.splitlines():
        words = shlex.split(line)
        sys.stderr.write(f"$ {line}\\n")
        if words[:3] == ["python", "-m", "roxxel.main"]:
            code = main(words[3:])
        else:
            line = line.replace("python", shlex.quote(sys.executable), 1)
            code = subprocess.run(["bash", "-c", line]).returncode
        if code:
            sys.exit(f"exit code {code}")
"""


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, file to write or nothing, text) of each block that is run."""
    text = (ROOT / "docs" / page).read_text()
    found = []
    for match in _BLOCK.finditer(text):
        named = _FILE.search(text[: match.start()])
        found.append((match[1], named[1] if named else "", match[2]))
    return found


def run(page: str, folder: pathlib.Path, run_python, prepare=()):
    """All blocks of `page` in `folder`; what the process that ran them said."""
    for name in ("roxxel", "configs", "launch", "docs"):
        (folder / name).symlink_to(ROOT / name)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "experiments", folder / "experiments", ignore=skipped)
    (folder / "blocks.json").write_text(json.dumps([*prepare, *blocks(page)]))
    env = {"PYTHONPATH": str(folder), "ROXXEL_CACHE": str(folder / "cache")}
    # Most commands run the same programs: compiled once, and quickly.
    env["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    env["JAX_COMPILATION_CACHE_DIR"] = os.environ.get(
        "JAX_COMPILATION_CACHE_DIR", str(folder / "compiled")
    )
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    done = run_python("-c", CHILD, cwd=folder, env=env, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done
