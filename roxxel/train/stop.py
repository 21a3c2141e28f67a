"""A polite stop: the first signal asks, the second one ends at once."""

import signal
import threading
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Turns SIGTERM and SIGINT into a flag while the context is open.

    Attributes:
      signal_name: the signal that came, e.g. `SIGTERM`; None before.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        # Python lets only the main thread set handlers; elsewhere the caller's stay.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()

    def __bool__(self) -> bool:
        return self.signal_name is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
