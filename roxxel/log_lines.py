"""Log lines of other packages stand above a live progress line, not inside of it.

Handlers of `logging` (absl's too) write to the terminal on their own. While a line is
live, a filter on each of them takes it away right before a record is written; it comes
back with its next drawing. Nothing of a record, a level or a handler changes, and the
filters are gone with the line.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any


class Above(logging.Filter):
    """Is told of each record that goes to a terminal, and lets all of them pass."""

    def __init__(self, clear: Callable[[], None]):
        super().__init__()
        self._clear = clear
        self._handlers: list[logging.Handler] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Clears the line; always true."""
        self._clear()
        return True

    def enter(self, is_terminal: Callable[[Any], bool]) -> None:
        """Attaches to the handlers there are whose stream is a terminal."""
        for handler in _handlers():
            known = handler in self._handlers
            if not known and is_terminal(getattr(handler, "stream", None)):
                handler.addFilter(self)
                self._handlers.append(handler)

    def leave(self) -> None:
        """Leaves the handlers as they were."""
        for handler in self._handlers:
            handler.removeFilter(self)
        self._handlers.clear()


def _handlers() -> Iterator[logging.Handler]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            # absl's handler hands records on to one that has the stream.
            yield getattr(handler, "python_handler", handler)
    if logging.lastResort is not None:
        yield logging.lastResort
