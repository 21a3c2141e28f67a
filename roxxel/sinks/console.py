"""Messages and metrics as plain lines on standard output.

step 120 | loss 2.3412 | ppl 10.39 | lr 0.0003 | tokens 491,520
"""

import os
import sys
from typing import TextIO

from roxxel import progress
from roxxel.sinks import EXCEPTION, Message, Metrics


class ConsoleSink:
    """Prints to `stream` (standard output at the time of writing by default).

    With `every=N` the metrics of a step that has a loss are shown when N divides the
    step; 0 shows none. Metrics without a loss (an evaluation) are always shown. Text
    appears above a live progress line, never inside it.
    """

    def __init__(self, *, every: int = 1, stream: TextIO | None = None):
        self._every = every
        self._stream = stream
        self._lines: list[str] = []

    def message(self, record: Message) -> None:
        """The text; with its level if that is a warning or an error."""
        if record.level == EXCEPTION:  # the interpreter prints it
            return
        loud = record.level in ("warning", "error")
        head = f"{record.level.upper()}: " if loud else ""
        self._lines.append(f"{head}{record.text}\n")

    def metrics(self, record: Metrics) -> None:
        """One line `step N | name value | ...`."""
        if "loss" in record.values and not self._is_due(record.step):
            return
        cells = [_cell(name, value) for name, value in record.values.items()]
        self._lines.append(" | ".join([f"step {record.step:,}", *cells]) + "\n")

    def rewind(self, step: int) -> None:
        """Nothing: what was printed stays."""

    def flush(self) -> None:
        """Prints what was collected, above the live progress line."""
        if not self._lines:
            return
        text = "".join(self._lines)
        self._lines.clear()
        stream = self._stream or sys.stdout
        if stream is None:  # no console, as in a windowed program
            return
        try:
            with progress.cleared():
                stream.write(_encodable(text, stream))
                stream.flush()
        except BrokenPipeError:
            _silence(stream)
            raise

    def close(self) -> None:
        """Prints the rest; the stream is not ours to close."""
        self.flush()

    def _is_due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0


def _cell(name: str, value: int | float) -> str:
    if name == "perplexity":
        name = "ppl"
    if isinstance(value, int):
        return f"{name} {value:,}"
    if name == "loss":
        return f"loss {value:.4f}"
    return f"{name} {value:.4g}"


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _silence(stream: TextIO) -> None:
    """Points a broken standard output at nothing.

    Otherwise its unwritten rest fails once more when the interpreter exits, and turns
    the exit code of a run that went well into 120.
    """
    if stream is sys.__stdout__:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
