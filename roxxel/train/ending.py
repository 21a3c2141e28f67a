"""What a finished run leaves behind, and how to see that it has."""

import json
import os
import pathlib

from roxxel.checkpoint import Checkpointer

SUMMARY_FILE = "summary.json"


def newest_step(workdir: pathlib.Path) -> int | None:
    """Completed steps of the newest checkpoint in `workdir`; None without one."""
    with Checkpointer(workdir / "checkpoints", read_only=True) as checkpointer:
        return checkpointer.latest_step()


def has_results(workdir: str | os.PathLike, step: int) -> bool:
    """Whether the results of a run of `step` steps are there, all of them."""
    try:
        summary = json.loads((pathlib.Path(workdir) / SUMMARY_FILE).read_text())
        return summary["steps"] == step
    except (OSError, ValueError, KeyError, TypeError):
        return False
