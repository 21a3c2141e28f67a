"""A scope that writes no data set: what is there is found, the rest is refused."""

import contextlib
import contextvars
from collections.abc import Generator

_is_on = contextvars.ContextVar("roxxel_reading_only", default=False)


class NotBuiltError(Exception):
    """A data set is not there yet. `is_used`: what was asked for depends on it."""

    def __init__(self, message: str, *, is_used: bool = False):
        super().__init__(message)
        self.is_used = is_used


@contextlib.contextmanager
def reading_only() -> Generator[None]:
    """While the block runs, whatever would write a data set raises `NotBuiltError`.

    Nothing is written: neither into the cache nor to an output of its own.
    """
    token = _is_on.set(True)
    try:
        yield
    finally:
        _is_on.reset(token)


def check(message: str) -> None:
    """Called before a data set is written.

    Raises:
      NotBuiltError: with `message`, inside of `reading_only`.
    """
    if _is_on.get():
        raise NotBuiltError(message)
