"""A stop that comes before there is a run which could answer it."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from types import FrameType

from roxxel.errors import EXIT_RESTART, PreemptedError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LIMIT_SECS = 20.0  # for the main thread to come back from what it does


@contextlib.contextmanager
def until_started() -> Generator[None]:
    """SIGTERM and SIGINT end the block with exit code 42; a run in it takes over.

    Where the main thread does not come back from a call, such as one that waits for a
    device, the process is ended: nothing was trained that could be lost.

    Raises:
      PreemptedError: a signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, _stop) for number in _SIGNALS}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watching = threading.Thread(
        target=_watch, args=(reading,), name="roxxel-early-stop", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)  # ends the thread
        watching.join(1.0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise PreemptedError(
        f"{signal.Signals(number).name} before the first step; nothing is lost, start "
        "the same command again"
    )


def _watch(reading: int) -> None:
    """Ends the process if the block is still open some time after a signal."""
    if not any(number in _SIGNALS for number in os.read(reading, 1)):
        os.close(reading)
        return
    os.set_blocking(reading, False)
    until = time.monotonic() + _LIMIT_SECS
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            if os.read(reading, 64) == b"":
                os.close(reading)
                return
        time.sleep(0.1)
    sys.stderr.write("roxxel: stopped before the first step (exit code 42)\n")
    sys.stderr.flush()
    os._exit(EXIT_RESTART)
