"""One run, as its work directory tells it."""

import dataclasses
import fcntl
import functools
import json
import math
import os
import pathlib
from typing import Any

import numpy as np

from roxxel import goodput
from roxxel.errors import ConfigError
from roxxel.runs import evaluations, files, metrics_table

CONFIG_TEXT = "config.txt"
_LOG = "roxxel_system.log"
_LAST_LINES = 60
_LOG_BYTES = 200_000  # of its end
_FAILURE_BYTES = 8_000  # of its beginning
_MOST_FAILURES = 8


@dataclasses.dataclass(frozen=True)
class Run:
    """A work directory; everything is read when asked for, and once."""

    path: pathlib.Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @functools.cached_property
    def info(self) -> dict[str, Any]:
        """`run.json`."""
        return _json(self.path / "run.json")

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`, which a finished run has."""
        return _json(self.path / "summary.json")

    @functools.cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """The metrics table, a float64 array a column."""
        return metrics_table.read(self.path)

    @functools.cached_property
    def config(self) -> dict[str, str]:
        """Values by path, as `config.txt` prints them, remarks left out."""
        lines = files.text(self.path / CONFIG_TEXT).splitlines()
        pairs = (line.partition(" = ") for line in lines if " = " in line)
        return {path: value.partition("  # ")[0] for path, _, value in pairs}

    @functools.cached_property
    def goodput(self) -> goodput.Goodput:
        """Wall time by phase of all attempts; none of a run that kept no account."""
        return goodput.read(self.path)

    @functools.cached_property
    def seconds(self) -> dict[str, float]:
        """Wall seconds by phase and "lost", those that are not 0."""
        found = self.goodput.seconds
        if not self.goodput.attempts:  # of an older run
            found = self.summary.get("seconds")
        return {name: spent for name, spent in numbers(found).items() if spent > 0}

    @property
    def total_secs(self) -> float:
        """Wall seconds of all attempts."""
        return sum(self.seconds.values())

    @property
    def step_share(self) -> float:
        """Goodput: steps that counted, as a part of the wall time."""
        spent = self.seconds.get("step", 0.0)
        return spent / self.total_secs if self.total_secs else 0.0

    @property
    def down_secs(self) -> float:
        """Wall seconds between attempts."""
        attempts = self.goodput.attempts
        ends = [one.began + sum(one.seconds.values()) for one in attempts[:-1]]
        begins = [one.began for one in attempts[1:]]
        return sum(max(b - e, 0.0) for e, b in zip(ends, begins, strict=True))

    @functools.cached_property
    def evaluations(self) -> list[dict[str, float]]:
        """Evaluations by completed steps: those of the run, then of `--mode=eval`."""
        plan = self.info.get("plan")
        sets = plan.get("evaluate_every") if isinstance(plan, dict) else None
        return evaluations.read(self.path, self.metrics, sets or ())

    @functools.cached_property
    def profile(self) -> str:
        """What a trace of some steps told; "" without one."""
        return files.text(self.path / "profile.txt")

    @functools.cached_property
    def failures(self) -> list[tuple[str, str]]:
        """Names and texts of what single processes left: errors, stacks of a hang."""
        found = [
            *sorted(self.path.glob("roxxel_error_process_*.log")),
            *sorted(self.path.glob("stacks/*.txt")),
        ]
        return [
            (path.relative_to(self.path).as_posix(), files.text(path, _FAILURE_BYTES))
            for path in found[-_MOST_FAILURES:]
        ]

    @functools.cached_property
    def log_tail(self) -> str:
        """The last lines of the system log."""
        return "\n".join(self._log.splitlines()[-_LAST_LINES:])

    @functools.cached_property
    def sample(self) -> str:
        """What the finished model wrote; "" without one."""
        return files.text(self.path / "sample.txt")

    @functools.cached_property
    def error(self) -> str:
        """How the last attempt ended, if by an exception: its traceback."""
        log = self._log
        at = log.rfind(" stopped by ")
        if at < 0:
            at = log.rfind("Traceback (most recent")
        if at < 0 or self.status in ("finished", "running"):
            return ""
        return log[log.rfind("\n", 0, at) + 1 :].strip()

    @functools.cached_property
    def status(self) -> str:
        """`finished`, `running`, `crashed` or `stopped` (to be continued)."""
        if _is_locked(self.path / ".lock"):
            return "running"
        at_end = self.summary.get("steps") == self.total_steps
        if self.summary and (at_end or "stopped_early" in self.summary):
            return "finished"
        return "crashed" if "Traceback (most recent" in self._log else "stopped"

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole plan."""
        told = self.info.get("total_steps", self.summary.get("steps"))
        return told if isinstance(told, int) else None

    @property
    def steps(self) -> int:
        """Steps in the metrics table."""
        steps = self.metrics.get("step", np.zeros(0))
        steps = steps[np.isfinite(steps)]
        return int(steps[-1]) if steps.size else 0

    def last(self, name: str) -> float | None:
        """The newest value of a metric; None without one."""
        column = self.metrics.get(name, np.zeros(0))
        known = column[~np.isnan(column)]
        return float(known[-1]) if known.size else None

    @functools.cached_property
    def _log(self) -> str:
        return files.text(self.path / _LOG, -_LOG_BYTES)


def is_run(path: pathlib.Path) -> bool:
    """Whether a folder is a work directory."""
    return any((path / name).is_file() for name in ("run.json", CONFIG_TEXT))


def open_run(path: str) -> Run:
    """The run in a folder.

    Raises:
      ConfigError: it holds none.
    """
    folder = pathlib.Path(os.path.expanduser(path))
    if not is_run(folder):
        raise ConfigError(
            f"{path}: no run is there (no run.json); `python -m roxxel.runs list "
            f"{folder.parent}` shows those that are."
        )
    return Run(folder)


def find(folder: str) -> list[Run]:
    """All runs below a folder, by path; folders of checkpoints are not searched.

    Raises:
      ConfigError: the folder does not exist.
    """
    root = pathlib.Path(os.path.expanduser(folder))
    if not root.is_dir():
        raise ConfigError(f"{folder}: no such folder.")
    found, waiting = [], [root]
    while waiting:
        path = waiting.pop()
        if is_run(path):
            found.append(Run(path))
            continue
        waiting += [p for p in path.iterdir() if p.is_dir() and not p.is_symlink()]
    return sorted(found, key=lambda run: run.path)


def numbers(found: Any) -> dict[str, float]:
    """The finite numbers of what should be an object of a JSON file."""
    if not isinstance(found, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and abs(value) < math.inf
    }


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        content = json.loads(files.text(path))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_locked(path: pathlib.Path) -> bool:
    if not files.is_safe(path):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
