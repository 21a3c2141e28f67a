"""What a run depended on besides its configuration: `run.json`."""

import datetime
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

from roxxel.config import workdir as workdir_lib

GIT_TIMEOUT_SECS = 2.0
PACKAGES = (
    *("roxxel", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "fiddle"),
    *("numpy", "ml_dtypes", "etils", "absl-py", "libtpu", "jax-cuda12-plugin"),
)


def collect(
    *,
    argv: Sequence[str],
    experiment: str,
    source: str,
    workdir: os.PathLike[str] | str,
) -> dict[str, Any]:
    """Command, versions, git state, time and host, as plain JSON values.

    Imports no package and touches no device. The trainer adds what only it knows (data
    fingerprint, devices, mesh) under keys of its own and calls `write` again.

    Args:
      argv: the flags of the command, without the program.
      experiment: the short name of the experiment.
      source: the dotted function that made the graph.
      workdir: where the run writes.
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
        "packages": versions(),
        "environment": _environment(),
        "git": git_state(),
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


def git_state(directory: os.PathLike[str] | str = ".") -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside of a repository."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


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
            text=True,
            timeout=GIT_TIMEOUT_SECS,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
