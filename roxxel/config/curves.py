"""Two tables of metrics compared as text, bit by bit."""

import csv
import re
from pathlib import Path

from roxxel.config import workdir as workdir_lib
from roxxel.errors import ConfigError

# Columns that measure the machine, not the run.
_MEASURED = re.compile(
    r"sec|time|_per_|mfu|memory|elapsed|bytes_in|rate_of|wait", re.IGNORECASE
)
_ALWAYS = {"bits_per_byte"}


def read(folder: Path, flag: str) -> dict[int, dict[str, str]]:
    """The rows of a run's table by step, without measured columns.

    Raises:
      ConfigError: there is no table, or nothing in it.
    """
    file = folder / workdir_lib.METRICS
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
        table = {int(row["step"]): _kept(row) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ConfigError(f"{flag}: {file} cannot be read: {err}") from err
    if not table:
        raise ConfigError(f"{flag}: {file} holds no step to compare with.")
    return table


def first_difference(
    before: dict[int, dict[str, str]], after: dict[int, dict[str, str]]
) -> str | None:
    """The first value that is not the same text, as a sentence; None if all are."""
    for step in sorted({*before, *after}):
        old, new = before.get(step), after.get(step)
        if old is None or new is None:
            return f"step {step} is only in the {'run' if new is None else 'replay'}"
        for name in dict.fromkeys([*old, *new]):
            if old.get(name, "") != new.get(name, ""):
                was, is_now = old.get(name) or "empty", new.get(name) or "empty"
                return f"{name} of step {step} was {was}, is {is_now}"
    return None


def _kept(row: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in row.items()
        if name and (not _MEASURED.search(name) or _is_loss(name))
    }


def _is_loss(name: str) -> bool:
    return any(name.endswith(kept) for kept in _ALWAYS)
