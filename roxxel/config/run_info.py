"""What a run depended on besides its configuration: `run.json`."""

import datetime
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import roxxel
from roxxel.config import workdir as workdir_lib

GIT_TIMEOUT_SECS = 2.0
MAX_DIFF_BYTES = 1 << 20  # of uncommitted.diff; a longer one is only named by its hash
MAX_UNTRACKED = 20  # names of new files
PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "fiddle"),
    *("numpy", "ml_dtypes", "etils", "absl-py", "libtpu", "jax-cuda12-plugin"),
)


def collect(
    *,
    argv: Sequence[str],
    experiment: str,
    source: str,
    workdir: os.PathLike[str] | str,
    diff: str | None = None,
) -> dict[str, Any]:
    """Command, versions, git state, time and host, as plain JSON values.

    Imports no package and touches no device. The trainer adds what only it knows (data
    fingerprint, devices, mesh) under keys of its own and calls `write` again.

    Args:
      argv: the flags of the command, without the program.
      experiment: the short name of the experiment.
      source: the dotted function that made the graph.
      workdir: where the run writes.
      diff: from `uncommitted`.
    """
    return {
        "experiment": experiment,
        "source": source,
        "workdir": str(workdir),
        "argv": list(argv),
        "command": shlex.join([sys.executable, "-m", "roxxel.main", *argv]),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "directory": os.getcwd(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {"roxxel": roxxel.__version__, **versions()},
        "environment": _environment(),
        "git": git_state(repository(source), diff=diff),
    }


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Installed versions by distribution name; what is not installed is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def repository(source: str) -> Path:
    """The top of the git repository that tells what a run was made of.

    That of the experiment's package, or else that of roxxel, or else the current one.

    Args:
      source: the dotted function that made the graph.
    """
    for package in (source.partition(".")[0], "roxxel"):
        folder = _folder_of(package)
        top = folder and _git(folder, "rev-parse", "--show-toplevel")
        # An environment inside of a repository is no part of it.
        if top and _git(folder, "check-ignore", "-q", str(folder)) is None:
            return Path(top)
    return Path.cwd()


def _folder_of(package: str) -> Path | None:
    """Where a package or module lies; imports nothing."""
    try:
        spec = importlib.util.find_spec(package) if package else None
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    if folders:
        return Path(folders[0])
    return Path(spec.origin).parent if spec.has_location and spec.origin else None


def git_state(
    directory: os.PathLike[str] | str, *, diff: str | None = None
) -> dict[str, Any] | None:
    """Commit, and how files differ from it; None outside of a repository.

    `diff_sha256` names the uncommitted changes; `untracked` are new Python files, which
    no diff holds.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    new = _git(directory, "ls-files", "--others", "--exclude-standard", "*.py") or ""
    state: dict[str, Any] = {"commit": commit, "dirty": bool(diff)}
    if diff:
        content = diff.encode()
        state["diff_bytes"] = len(content)
        state["diff_sha256"] = hashlib.sha256(content).hexdigest()
    return state | {"untracked": new.splitlines()[:MAX_UNTRACKED]}


def uncommitted(directory: os.PathLike[str] | str) -> str | None:
    """What `git diff HEAD` prints; None outside of a repository.

    Args:
      directory: from `repository`.
    """
    return _git(directory, "diff", "HEAD", "--no-ext-diff", "--no-color")


def write(workdir: os.PathLike[str] | str, info: Mapping[str, Any]) -> Path:
    """Write `info` to `run.json` in a work directory, at once or not at all."""
    content = json.dumps(dict(info), indent=1, default=str) + "\n"
    return workdir_lib.write_text(Path(workdir) / workdir_lib.RUN_JSON, content)


def read(workdir: os.PathLike[str] | str) -> dict[str, Any]:
    """What `run.json` of a work directory says; empty where there is none."""
    try:
        content = json.loads(
            (Path(workdir) / workdir_lib.RUN_JSON).read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _environment() -> dict[str, str]:
    """The variables that change what jax computes or where."""
    prefixes = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "CUDA_VISIBLE", "NCCL_")
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(prefixes)
    }


def _git(directory: os.PathLike[str] | str, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *command],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=GIT_TIMEOUT_SECS,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
