"""Where the records of a `roxxel.Logger` go.

A sink is any object with the five methods of `Sink`. All of them are called from one
thread, the logger's worker, in the order in which the records were logged. A sink that
raises is reported once and not called again; the others go on.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

LEVELS = ("debug", "info", "warning", "error")
EXCEPTION = "exception"  # a traceback that the interpreter shows on its own, too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """One line (or more) of text; `time` in seconds since the epoch."""

    time: float
    level: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """Plain numbers after `step` completed steps; `loss` and `perplexity` first."""

    time: float
    step: int
    values: Mapping[str, int | float]


class Sink(Protocol):
    """Takes records; may buffer them until `flush`."""

    def message(self, record: Message) -> None:
        """Takes one message."""

    def metrics(self, record: Metrics) -> None:
        """Takes the metrics of one step; more may follow for the same step."""

    def rewind(self, step: int) -> None:
        """Forgets metrics after `step`: the run goes on from there."""

    def flush(self) -> None:
        """Hands all records to the operating system; the queue has run empty."""

    def close(self) -> None:
        """Flushes and lets go of files."""
