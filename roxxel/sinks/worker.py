"""The thread that reads device values and feeds the sinks, in order."""

import contextlib
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roxxel import progress
from roxxel.sinks import Media, Message, Metrics, Sink, values

_FLUSH_EVERY_ITEMS = 256
# Metrics wait for each other so long: a thread that wakes up for every step takes the
# interpreter and a core from the one that trains.
_GATHER_SECS = 0.1
_POLL_SECS = 0.05


class Worker:
    """Runs until `stop`; `make_sinks` is called on its thread, with the first record.

    Nothing that goes wrong here reaches the caller: a sink that raises and a value
    that cannot be read are reported once, as a warning, and left out from then on.
    """

    def __init__(self, make_sinks: Callable[[], Sequence[Sink]]):
        self._make_sinks = make_sinks
        self._queue: queue.SimpleQueue[tuple[Callable[..., None], tuple] | None]
        self._queue = queue.SimpleQueue()
        self._sinks: list[Sink] | None = None
        self._hurry = threading.Event()
        self._done_items = 0
        self._reported: set[str] = set()
        self._thread = threading.Thread(
            target=self._run, name="roxxel-logger", daemon=True
        )
        self._thread.start()

    def message(self, time: float, level: str, text: Any, args: tuple) -> None:
        """Queues `text % args`, formatted on the worker."""
        self._put_now((self._message, (time, level, text, args)))

    def metrics(self, time: float, step: Any, numbers: dict[str, Any]) -> None:
        """Queues values that the worker reads."""
        self._queue.put((self._metrics, (time, step, numbers)))

    def media(self, time: float, step: Any, kind: str, name: str, value: Any) -> None:
        """Queues a text, histogram or image that the worker reads."""
        self._queue.put((self._media, (time, step, kind, name, value)))

    def rewind(self, step: Any) -> None:
        """Queues `rewind` for all sinks."""
        self._queue.put((self._rewind, (step,)))

    def flush(self, timeout_secs: float) -> bool:
        """Waits until all that was queued before is with the operating system.

        Returns False if nothing moved for `timeout_secs`.
        """
        flushed = threading.Event()
        self._put_now((self._flush, (flushed,)))
        return self._wait(flushed.wait, flushed.is_set, timeout_secs)

    def stop(self, timeout_secs: float) -> bool:
        """Writes everything, closes the sinks and ends the thread; False as above."""
        self._put_now(None)
        return self._wait(self._thread.join, lambda: False, timeout_secs)

    def pending(self) -> int:
        """Records that wait."""
        return self._queue.qsize()

    def _put_now(self, item: tuple[Callable[..., None], tuple] | None) -> None:
        self._queue.put(item)
        self._hurry.set()

    def _wait(
        self,
        wait: Callable[[float], object],
        is_over: Callable[[], bool],
        timeout_secs: float,
    ) -> bool:
        """Whether it was over (or the thread was) before the queue stood still."""
        done, moved = self._done_items, time.monotonic()
        while self._thread.is_alive() and not is_over():
            wait(_POLL_SECS)
            if done != self._done_items:
                done, moved = self._done_items, time.monotonic()
            elif time.monotonic() - moved > timeout_secs:
                return False
        return True

    def _run(self) -> None:
        while (item := self._next()) is not None:
            action, arguments = item
            try:
                action(*arguments)
            except Exception as err:
                self._report(f"a record was lost: {type(err).__name__}: {err}")
            self._done_items += 1
            if self._queue.empty() or self._done_items % _FLUSH_EVERY_ITEMS == 0:
                self._each("flush")
        self._each("close")

    def _next(self) -> tuple[Callable[..., None], tuple] | None:
        """The next item; after a pause, only when more have had time to come."""
        if not self._queue.empty():
            return self._queue.get()
        self._hurry.clear()
        item = self._queue.get()
        if item is not None and item[0] == self._metrics:
            self._hurry.wait(_GATHER_SECS)
        return item

    def _message(self, time: float, level: str, text: Any, args: tuple) -> None:
        self._flush_before_waiting((text, args))
        self._each("message", _to_message(time, level, text, args))

    def _metrics(self, time: float, step: Any, numbers: dict[str, Any]) -> None:
        self._flush_before_waiting((step, numbers))
        step = values.fetch(step)
        read: dict[str, int | float] = {}
        for name, value in numbers.items():
            try:
                read[name] = values.fetch(value)
            except Exception as err:
                self._report(f"metric {name!r} could not be read", f"step {step}", err)
        if "loss" in read and "perplexity" not in read:
            read["perplexity"] = perplexity(read["loss"])
        first = {name: read[name] for name in ("loss", "perplexity") if name in read}
        record = Metrics(time=time, step=int(step), values=first | read)
        self._each("metrics", record)

    def _media(self, time: float, step: Any, kind, name: str, value: Any) -> None:
        self._flush_before_waiting((step, value))
        if kind == "text":
            value = str(value)
        elif kind == "image":
            value = values.as_image(name, np.asarray(value))
        else:
            value = np.asarray(value)
        step = int(values.fetch(step))
        record = Media(time=time, step=step, kind=kind, name=name, value=value)
        self._each("media", record, optional=True)

    def _flush_before_waiting(self, given: tuple) -> None:
        """A device may never deliver: what came before must not wait for it."""
        if values.may_wait(given):
            self._each("flush")

    def _rewind(self, step: Any) -> None:
        self._each("rewind", int(values.fetch(step)))

    def _flush(self, flushed: threading.Event) -> None:
        self._each("flush")
        flushed.set()

    def _each(self, method: str, *args: Any, optional: bool = False) -> None:
        if self._sinks is None:
            self._sinks = list(self._make_sinks())
        for sink in list(self._sinks):
            if optional and not hasattr(sink, method):
                continue
            try:
                getattr(sink, method)(*args)
            except Exception as err:
                self._sinks.remove(sink)
                name = getattr(sink, "name", type(sink).__name__)
                self._report(f"{name} is off from here on", method, err)

    def _report(self, what: str, where: str = "", err: Exception | None = None) -> None:
        """One warning for each `what`, to the sinks that work and to standard error."""
        if what in self._reported:
            return
        self._reported.add(what)
        cause = f": {type(err).__name__}: {err}" if err is not None else ""
        text = f"roxxel.Logger: {what} ({where}){cause}"
        tell_stderr(text + "\n")
        self._each("message", _to_message(time.time(), "warning", text, ()))


def perplexity(loss: float) -> float:
    """exp(loss) for a loss in nats; inf where that is no longer a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def tell_stderr(text: str) -> None:
    """Writes to standard error, if there is one that takes it."""
    with contextlib.suppress(OSError, ValueError, AttributeError), progress.cleared():
        sys.stderr.write(text)
        sys.stderr.flush()


def _to_message(time: float, level: str, text: Any, args: tuple) -> Message:
    try:
        formatted = str(text) % args if args else str(text)
    except Exception as err:  # a wrong format must not cost the message
        formatted = f"{text!s} {args!r} (not formatted: {err})"
    return Message(time=time, level=level, text=formatted)
