"""Where the records of a `roxxel.Logger` go.

A sink is any object with the five methods of `Sink`, called in the order in which the
records were logged. Those given to the logger as `sinks=` run on a thread of their own
each (`roxxel.sinks.background`), so that a slow one stops neither training nor the
others. A sink that raises is reported once and not called again; the others go on.

A sink may have two more methods: `media(record)` for texts, histograms and images, and
`attach(log_dir)`, which is called once, before all others.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Media:
    """Something of a step that is no number.

    `value` is a str for a text, a numpy array of any shape for a histogram, and one of
    uint8 [height, width, 1 | 3 | 4] for an image.
    """

    time: float
    step: int
    kind: Literal["text", "histogram", "image"]
    name: str
    value: Any


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


def attach(sinks: Sequence[Sink], log_dir: pathlib.Path) -> None:
    """Tells each sink that wants to know where the run writes."""
    for sink in sinks:
        tell = getattr(sink, "attach", None)
        if tell is not None:
            tell(log_dir)
