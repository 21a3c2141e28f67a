"""A sink on a thread of its own: slow or stuck, it holds up nobody else."""

import collections
import contextlib
import threading
from typing import Any

from roxxel.sinks import Media, Message, Metrics, Sink

_MOST_WAITING = 100_000
_FLUSH_SECS = 0.5
_CLOSE_SECS = 30.0


class Background:
    """Passes records on to `sink` in their order, from a thread of its own.

    Up to 100,000 records wait; what comes beyond them is dropped and counted. What the
    sink raises is raised by the next call here, after which it gets no more. `flush`
    waits half a second at most, and not again until the sink has caught up; `close` 30
    seconds, and then says how many records were not delivered.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        most_waiting: int = _MOST_WAITING,
        flush_secs: float = _FLUSH_SECS,
        close_secs: float = _CLOSE_SECS,
    ):
        self.name = type(sink).__name__
        self._sink = sink
        self._most_waiting = most_waiting
        self._flush_secs, self._close_secs = flush_secs, close_secs
        self._waiting: collections.deque[tuple[str, tuple]] = collections.deque()
        self._changed = threading.Condition()
        self._is_idle = True
        self._is_late = False
        self._is_closed = False
        self._dropped = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"roxxel-{self.name}", daemon=True
        )
        self._thread.start()

    def message(self, record: Message) -> None:
        """Queues one message."""
        self._put("message", record)

    def metrics(self, record: Metrics) -> None:
        """Queues the metrics of a step."""
        self._put("metrics", record)

    def media(self, record: Media) -> None:
        """Queues a text, histogram or image, if the sink takes such."""
        if hasattr(self._sink, "media"):
            self._put("media", record)

    def rewind(self, step: int) -> None:
        """Queues `rewind`."""
        self._put("rewind", step)

    def flush(self) -> None:
        """Waits for the sink, but not for a slow one."""
        self._put("flush")
        with self._changed:
            if self._is_late:
                return
            done = self._changed.wait_for(self._is_done, self._flush_secs)
            self._is_late = not done
            self._raise()

    def close(self) -> None:
        """Delivers what waits and closes the sink.

        Raises:
            RuntimeError: Records were dropped, or not delivered in time; says how many.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(self._close_secs)
        with self._changed:
            self._raise()
            lost = self._dropped + len(self._waiting)
            if lost or self._thread.is_alive():
                raise RuntimeError(f"{max(1, lost)} records were not delivered")

    def _put(self, method: str, *args: Any) -> None:
        with self._changed:
            self._raise()
            if method == "flush" and self._waiting:
                return  # it is flushed when it has caught up
            if len(self._waiting) >= self._most_waiting:
                self._dropped += 1
                return
            self._waiting.append((method, args))
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _is_done(self) -> bool:
        return (self._is_idle and not self._waiting) or not self._thread.is_alive()

    def _next(self) -> tuple[str, tuple] | None:
        with self._changed:
            self._is_idle = True
            self._is_late = self._is_late and bool(self._waiting)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            self._is_idle = False
            return self._waiting.popleft() if self._waiting else None

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                method, args = item
                getattr(self._sink, method)(*args)
            self._sink.close()
        except Exception as err:
            with contextlib.suppress(Exception):
                self._sink.close()  # keeps what it had taken
            with self._changed:
                self._error = err
                self._waiting.clear()
                self._changed.notify_all()
