"""Trials of a sweep: sets of overrides, how they are combined, and their names."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence

from launch.problems import SweepError

SWEEP_PREFIX = "--sweep."
TAG_PREFIX = "--fdl_tag."
_ID_DIGITS = 8
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "'\""

# Values by what they override, e.g. {"optimizer.schedule.peak": ("1e-3", "3e-3")}.
Axes = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    A key of `overrides` is a path of the graph, or a whole flag that starts with `--`;
    values are text as a command line has it. Two trials with the same overrides are the
    same trial, whatever the order.
    """

    overrides: tuple[tuple[str, str], ...]

    @property
    def id(self) -> str:
        """A name that depends on the overrides only."""
        content = json.dumps(sorted(self.overrides))
        return hashlib.sha256(content.encode()).hexdigest()[:_ID_DIGITS]

    def flags(self, words: Sequence[str]) -> list[str]:
        """The flags of `roxxel.main`: `words` with each placeholder replaced.

        A placeholder is `--sweep.KEY`; overrides without one come at the end.
        """
        left = dict(self.overrides)
        flags = []
        for word in words:
            if not word.startswith(SWEEP_PREFIX):
                flags.append(word)
                continue
            key = word.removeprefix(SWEEP_PREFIX)
            if key in left:
                flags.append(_flag(key, left.pop(key)))
        return flags + [_flag(key, value) for key, value in left.items()]


def of(overrides: Mapping[str, object]) -> Trial:
    """The trial of a dict; values that are no text become theirs by `str`."""
    return Trial(tuple((key, _text(value)) for key, value in overrides.items()))


def combine(axes: Axes, *, zipped: bool = False) -> list[dict[str, str]]:
    """Every combination of the values of all axes, or the n-th of each together.

    Raises:
      SweepError: axes to be zipped differ in length.
    """
    lengths = {key: len(values) for key, values in axes.items()}
    if zipped and len(set(lengths.values())) > 1:
        found = ", ".join(f"{key}: {length}" for key, length in lengths.items())
        raise SweepError(f"--zip needs as many values on each axis, got {found}.")
    columns = axes.values()
    rows = zip(*columns, strict=True) if zipped else itertools.product(*columns)
    return [dict(zip(axes, row, strict=True)) for row in rows]


def unique(all_overrides: Iterable[Mapping[str, object]]) -> list[Trial]:
    """The trials of all overrides, each once, in order."""
    return list({trial.id: trial for trial in map(of, all_overrides)}.values())


def covering(trials: Sequence[Trial]) -> list[Trial]:
    """The first trials that together hold every value of every override."""
    seen: set[tuple[str, str]] = set()
    chosen = []
    for trial in trials:
        if not seen.issuperset(trial.overrides) or not chosen:
            seen.update(trial.overrides)
            chosen.append(trial)
    return chosen


def split(text: str) -> list[str]:
    """The parts between commas that are outside of brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        elif char == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in [*parts, text[start:]]]


def _flag(key: str, value: str) -> str:
    return f"{key if key.startswith('--') else f'--fdl.{key}'}={value}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)
