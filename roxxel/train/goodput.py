"""Where the wall time of all attempts of a run went.

    {"began": 1.7e9, "seconds": {"start": 9.1, "step": 80.2, ...}, "first_step": 0,
     "last_step": 420, "end": "stopped"}

One such line an attempt stands in `goodput.jsonl`, in the order of the attempts. The
one that runs keeps its own in `.goodput.json`, replaced every few seconds: what a kill
leaves there becomes a line at the next start. Seconds of the phases of an attempt sum
to its wall time. What it trained behind the step that the next attempt began with was
lost: that share of its training counts as "lost". The time between attempts is in none.
"""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from roxxel.train.timing import PHASES, StepClock

FILE_NAME = "goodput.jsonl"
BEAT_NAME = ".goodput.json"
METRICS_NAME = "roxxel_metrics.csv"
LOST = "lost"
BEAT_SECS = 5.0

_TRAINED = ("step", "data", "other", "evaluation")  # what lost steps took

# What to do where a phase takes much of the time.
_KNOBS = {
    "start": "few, long attempts; data sets built before the run",
    "compile": "compilation_cache= on a disk that stays; scan_layers for deep models",
    "data": "faster storage, fewer sources a batch, more work a batch",
    "evaluation": "evaluate less often (every=), or on fewer batches (max_batches=)",
    "save": "save less often (save_every=), or on faster storage",
    "sample": "a shorter sample (sample.num_tokens=)",
    "other": "fewer and faster sinks of the logger",
    LOST: "save more often (save_every=), or a longer grace period before a kill",
}
_MUCH = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a run.

    Attributes:
      began: when, in seconds since 1970; with the process's own beginning.
      seconds: by phase, see `roxxel.train.timing.PHASES`.
      first_step, last_step: completed steps at its beginning and its end.
      end: "done", "stopped", "failed", "killed" or, of the last one, "running".
    """

    began: float
    seconds: dict[str, float]
    first_step: int
    last_step: int
    end: str

    def without_lost(self, next_step: int) -> dict[str, float]:
        """Its seconds, with what it trained behind `next_step` under "lost"."""
        steps = self.last_step - self.first_step
        share = min(max(self.last_step - next_step, 0) / steps, 1.0) if steps else 0.0
        kept = {
            name: spent * (1 - share if name in _TRAINED else 1)
            for name, spent in self.seconds.items()
        }
        return kept | {LOST: sum(self.seconds.values()) - sum(kept.values())}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goodput:
    """All attempts of a run together."""

    attempts: tuple[Attempt, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """By phase and "lost", in the order of a run; they sum to `total`."""
        found = dict.fromkeys((*PHASES, LOST), 0.0)
        following = [attempt.first_step for attempt in self.attempts[1:]]
        last = [self.attempts[-1].last_step] if self.attempts else []
        for one, step in zip(self.attempts, following + last, strict=True):
            for name, spent in one.without_lost(step).items():
                found[name] = found.get(name, 0.0) + spent
        return found

    @property
    def total(self) -> float:
        """Wall seconds of all attempts."""
        return sum(sum(one.seconds.values()) for one in self.attempts)

    @property
    def share(self) -> float:
        """Steps that counted, as a part of `total`; 0 before any time has passed."""
        return self.seconds["step"] / self.total if self.total else 0.0

    def record(self) -> dict[str, Any]:
        """As JSON values, for `run.json` and `summary.json`."""
        spent = {name: round(value, 3) for name, value in self.seconds.items()}
        return {
            "share": round(self.share, 4),
            "total_secs": round(self.total, 3),
            "seconds": spent,
            "attempts": len(self.attempts),
        }

    def line(self) -> str:
        """`Goodput 93.1 % of 52.3 s in 2 attempts: step 48.7, compile 2.1, ...`."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {spent:.1f}" for name, spent in ordered if spent)
        count = len(self.attempts)
        return (
            f"Goodput {100 * self.share:.1f} % of {self.total:.1f} s in {count} "
            f"attempt{'' if count == 1 else 's'}: {parts}"
        )

    def why_slow(self) -> list[str]:
        """A sentence for each phase that takes much, with what to turn; worst first."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        return [
            f"{name} takes {100 * spent / self.total:.0f} % of the time: {_KNOBS[name]}"
            for name, spent in ordered
            if name in _KNOBS and spent > _MUCH * self.total
        ]


def read(workdir: str | os.PathLike) -> Goodput:
    """What a work directory tells, with the attempt that runs or was killed."""
    folder = pathlib.Path(workdir)
    attempts = [_attempt(line) for line in _lines(folder / FILE_NAME)]
    running = [_attempt(line) for line in _lines(folder / BEAT_NAME)]
    known = {attempt.began for attempt in attempts if attempt}
    attempts += [one for one in running if one and one.began not in known]
    return Goodput(attempts=tuple(filter(None, attempts)))


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
        for line in _lines(self._folder / BEAT_NAME):
            attempt = _attempt(line)
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


def read_lines(folder: pathlib.Path) -> list[Attempt]:
    """The attempts that have ended, by the file alone."""
    return [one for line in _lines(folder / FILE_NAME) if (one := _attempt(line))]


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


def _lines(path: pathlib.Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()


def _attempt(line: str) -> Attempt | None:
    """None for a line that was cut, or that somebody else wrote."""
    try:
        found = json.loads(line)
        seconds = {str(k): float(v) for k, v in found["seconds"].items()}
        return Attempt(
            began=float(found["began"]),
            seconds=seconds,
            first_step=int(found["first_step"]),
            last_step=int(found["last_step"]),
            end=str(found["end"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
