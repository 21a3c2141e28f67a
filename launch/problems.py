"""What ends a driver with one line and an exit code; the codes are `roxxel.errors`'."""

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_DIVERGED = 3
EXIT_RESTART = 42


class SweepError(ValueError):
    """The command line or the sweep folder is wrong; the message is one line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, or the whole list where nothing is close."""
    known = sorted(set(known))
    matches = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    if matches:
        return f" Did you mean {' or '.join(matches)}?"
    return f" Known: {', '.join(known)}." if known else ""
