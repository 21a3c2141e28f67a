"""Accounts for the wall time of one attempt of a run, beside those before it."""

import dataclasses
import json
import os
import pathlib
import time
from typing import Any

from roxxel import goodput
from roxxel.goodput import BEAT_NAME, FILE_NAME, Attempt, Goodput, read, read_lines
from roxxel.train.timing import StepClock

METRICS_NAME = "roxxel_metrics.csv"
BEAT_SECS = 5.0


class Recorder:
    """Accounts for one attempt of a run in its work directory."""

    def __init__(self, workdir: pathlib.Path, clock: StepClock, first_step: int):
        """Makes a line of what a killed attempt before this one has left."""
        self._folder, self._clock = workdir, clock
        self._first_step = self._last_step = first_step
        self._began = time.time() - clock.total
        self._next_beat = 0.0
        self._finish_killed()
        self._before = read(workdir).attempts
        self.elapsed_before = Goodput(attempts=self._before).total

    def beat(self, done: int) -> None:
        """Keeps what was spent so far, at most every `BEAT_SECS`."""
        if time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + BEAT_SECS
        self._write_beat(self._attempt(done, "running"))

    def goodput(self, done: int) -> Goodput:
        """All attempts up to now."""
        return Goodput(attempts=(*self._before, self._attempt(done, "running")))

    def finish(self, done: int, end: str) -> Goodput:
        """Writes the line of this attempt."""
        attempt = self._attempt(done, end)
        self._append(attempt)
        (self._folder / BEAT_NAME).unlink(missing_ok=True)
        return Goodput(attempts=(*self._before, attempt))

    def _attempt(self, done: int, end: str) -> Attempt:
        return Attempt(
            began=self._began,
            seconds=self._clock.seconds,
            first_step=self._first_step,
            last_step=done,
            end=end,
        )

    def _finish_killed(self) -> None:
        """A killed attempt lived until its last beat, or the last row it wrote."""
        for line in goodput.lines(self._folder / BEAT_NAME):
            attempt = goodput.parse(line)
            if attempt is None:
                continue
            if all(one.began != attempt.began for one in read_lines(self._folder)):
                self._append(_until_death(attempt, self._folder))
        (self._folder / BEAT_NAME).unlink(missing_ok=True)

    def _append(self, attempt: Attempt) -> None:
        text = json.dumps(dataclasses.asdict(attempt)) + "\n"
        with open(self._folder / FILE_NAME, "a+b") as file:
            # A line that a full disk cut must not swallow this one.
            file.seek(0, os.SEEK_END)
            if file.tell() and not _ends_line(file):
                text = "\n" + text
            file.write(text.encode())

    def _write_beat(self, attempt: Attempt) -> None:
        part = self._folder / f"{BEAT_NAME}.part"
        part.write_text(json.dumps(dataclasses.asdict(attempt)) + "\n")
        part.replace(self._folder / BEAT_NAME)


def _until_death(attempt: Attempt, folder: pathlib.Path) -> Attempt:
    seconds, last = dict(attempt.seconds), attempt.last_step
    told_until = attempt.began + sum(seconds.values())
    try:
        metrics = folder / METRICS_NAME
        more = min(max(metrics.stat().st_mtime - told_until, 0.0), 2 * BEAT_SECS)
        last = max(last, _last_step(metrics))
    except (OSError, ValueError):
        more = 0.0
    seconds["step"] = seconds.get("step", 0.0) + more
    return dataclasses.replace(attempt, seconds=seconds, last_step=last, end="killed")


def _last_step(metrics: pathlib.Path) -> int:
    """The step of the last whole row of a table; 0 where it has none."""
    with open(metrics, "rb") as file:
        file.seek(max(0, os.path.getsize(metrics) - 65536))
        rows = file.read().decode("utf-8", "replace").splitlines(keepends=True)
    steps = [row.split(",")[0] for row in rows if row.endswith("\n")]
    return int(next((step for step in reversed(steps) if step.isdecimal()), 0))


def _ends_line(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
