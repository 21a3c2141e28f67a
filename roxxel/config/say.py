"""Lines for the person at the terminal, on stderr."""

import sys
from collections.abc import Iterable


def lines(given: Iterable[str]) -> None:
    """Write the lines to stderr at once."""
    for line in given:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def result(line: str) -> None:
    """Write what was asked for to stdout."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
