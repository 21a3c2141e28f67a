"""docs/experiments.md: every command of it, in order, and every file that it shows."""

import json
import re
import shutil
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "docs" / "experiments.md").read_text()
_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"This is `([\w/]+\.py)`:\n\n$")

# Commands of roxxel.main run in one process, which imports jax once; the rest in bash.
RUN = """
import json, os, shlex, subprocess, sys
from pathlib import Path
from roxxel.main import main

for kind, name, text in json.loads(Path("blocks.json").read_text()):
    if kind == "python":
        Path(name).write_text(text)
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


def blocks() -> list[tuple[str, str, str]]:
    found = []
    for match in _BLOCK.finditer(TEXT):
        named = _FILE.search(TEXT[: match.start()])
        found.append((match[1], named[1] if named else "", match[2]))
    return found


def test_every_python_block_is_a_file():
    assert all(name for kind, name, _ in blocks() if kind == "python")
    assert sum(kind == "bash" for kind, _, _ in blocks()) >= 12


@pytest.mark.slow
def test_every_command_runs(tmp_path, run_python, repo_root):
    for name in ("roxxel", "configs", "launch", "docs"):
        (tmp_path / name).symlink_to(repo_root / name)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repo_root / "experiments", tmp_path / "experiments", ignore=skipped)
    (tmp_path / "blocks.json").write_text(json.dumps(blocks()))
    env = {"PYTHONPATH": str(tmp_path), "ROXXEL_CACHE": str(tmp_path / "cache")}
    # Most commands run the same programs: compiled once, and quickly.
    env["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    env["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "compiled")
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    done = run_python("-c", RUN, env=env, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    for words in (
        "embedding",  # check
        "model.d_model",  # diff
        "eval_loss",  # the leaderboard
        "#SBATCH --array=0-5",
    ):
        assert words in done.stdout, words
    assert (tmp_path / "ssm_tiny.svg").read_text().count("<svg") == 1
    assert (tmp_path / "sweeps/depth/leaderboard.csv").read_text().count("done") == 2


@pytest.mark.parametrize("kind", ["fiddlers", "sweeps", "tags"])
def test_tables_name_what_there_is(kind):
    from configs import fiddlers as fiddlers_module
    from configs import tags as tags_module
    from launch import options
    from roxxel.config import discover, fiddlers

    if kind == "fiddlers":
        names = fiddlers.names(fiddlers_module)
        names += [found.name for found in discover.in_package("experiments")]
    elif kind == "sweeps":
        flags = {*options._TEXT, *options._NUMBERS, *options._SWITCHES} - {"help"}
        names = sorted(flags - {"seed"})
    else:
        names = [n for n in vars(tags_module) if n[0].isupper()]
    assert [name for name in names if name not in TEXT] == []
