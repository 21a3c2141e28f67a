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
from collections.abc import Sequence
from typing import Any

FILE_NAME = "goodput.jsonl"
BEAT_NAME = ".goodput.json"
LOST = "lost"

# Of a run's wall time. What is in no phase is "other"; all before the loop is "start".
PHASES = (
    *("start", "compile", "data", "step", "evaluation", "save", "sample", "other"),
)
_TRAINED = ("step", "data", "other", "evaluation")  # what lost steps took


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a run.

    Attributes:
      began: when, in seconds since 1970; with the process's own beginning.
      seconds: by phase, see `PHASES`.
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


def read(workdir: str | os.PathLike) -> Goodput:
    """What a work directory tells, with the attempt that runs or was killed."""
    folder = pathlib.Path(workdir)
    attempts = [parse(line) for line in lines(folder / FILE_NAME)]
    running = [parse(line) for line in lines(folder / BEAT_NAME)]
    known = {attempt.began for attempt in attempts if attempt}
    attempts += [one for one in running if one and one.began not in known]
    return Goodput(attempts=tuple(filter(None, attempts)))


def read_lines(folder: pathlib.Path) -> list[Attempt]:
    """The attempts that have ended, by the file alone."""
    return [one for line in lines(folder / FILE_NAME) if (one := parse(line))]


def lines(path: pathlib.Path) -> Sequence[str]:
    """Of a file; none where it cannot be read."""
    try:
        if not path.is_file():  # a pipe would never end
            return ()
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()


def parse(line: str) -> Attempt | None:
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
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
