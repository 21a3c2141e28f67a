"""What became of a trial, from the records of its ended processes.

| exit code                  | then                                               |
|----------------------------|----------------------------------------------------|
| 0                          | done, or paused where it was to stop early         |
| 2                          | failed: the configuration is wrong                 |
| 3                          | diverged                                           |
| 42                         | started again                                      |
| anything else              | started again once, then failed                    |
| anything, after being told | stopped: the next driver goes on                   |
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from launch.folder import Folder
from launch.problems import EXIT_CONFIG, EXIT_DIVERGED, EXIT_OK, EXIT_RESTART

FILE = "attempts.jsonl"
_MAX_CRASHES = 2
_RETRY = "retry"  # a record that forgives the failures before it


@dataclasses.dataclass(frozen=True)
class State:
    """A trial as its records tell it.

    `status` is "new", "stopped", "paused", "done", "diverged" or "failed"; `reached`
    is the largest step at which it was to stop early and did; `seconds` counts all its
    processes; `codes` are their exit codes in order.
    """

    status: str
    reached: int
    seconds: float
    codes: tuple[int, ...]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to run, whatever the length."""
        return self.status in ("done", "diverged", "failed")

    def has_run(self, stop_after: int | None) -> bool:
        """Whether it needs no process to get to a step; None: to its end."""
        return self.is_over or (stop_after is not None and self.reached >= stop_after)


def read(folder: Folder, trial_id: str) -> State:
    """The state of a trial; a deleted work directory makes a finished trial new."""
    records = _records(folder.state(trial_id) / FILE)
    codes = tuple(r["code"] for r in records if "code" in r)
    seconds = sum(r.get("seconds", 0.0) for r in records)
    for index in range(len(records) - 1, -1, -1):
        if records[index].get("event") == _RETRY:
            records = records[index + 1 :]
            break
    ok = [r for r in records if r["code"] == EXIT_OK]
    if ok and not folder.workdir(trial_id).is_dir():
        return State("new", 0, seconds, codes)
    reached = max((r["stop_after"] or 0 for r in ok), default=0)
    return State(_status(records), reached, seconds, codes)


def append(
    folder: Folder, trial_id: str, *, code: int, stop_after: int | None, **values: Any
) -> None:
    """Record an ended process of a trial."""
    _append(
        folder.state(trial_id) / FILE,
        {"code": code, "stop_after": stop_after, **values},
    )


def forgive(folder: Folder, trial_id: str) -> None:
    """Make a failed or diverged trial one to be started again."""
    _append(folder.state(trial_id) / FILE, {"event": _RETRY})


def _status(records: list[dict[str, Any]]) -> str:
    if not records:
        return "new"
    if any(r["code"] == EXIT_OK and r["stop_after"] is None for r in records):
        return "done"
    last = records[-1]
    if last["code"] == EXIT_CONFIG:
        return "failed"
    if last["code"] == EXIT_DIVERGED:
        return "diverged"
    if last["code"] == EXIT_OK:
        return "paused"
    crashes = [r for r in records if r["code"] != EXIT_RESTART and not r.get("told")]
    crashes = [r for r in crashes if r["code"] != EXIT_OK]
    return "failed" if len(crashes) >= _MAX_CRASHES else "stopped"


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:  # torn by a kill; that process is run again
            continue
    return found


def _append(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        torn = size > 0 and file.read(1) != b"\n"
        file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")
