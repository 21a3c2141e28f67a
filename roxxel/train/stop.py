"""A polite stop: the first signal asks, the second one ends at once.

A run passes *points* in an order that is the same in all its processes: before each
step, before each batch of an evaluation. When one process is asked to stop, each tells
how many points it went on from, and all go on to the largest of these numbers: nobody
begins what another does not, so that no process waits for one that has stopped. What is
told goes through `roxxel.notices` on a thread (`StopRequest.poll`); to pass a point
costs less than a microsecond.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator
from types import FrameType

from roxxel.notices import Board

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# Wakes the main thread from a wait; ignored by processes that do not handle it.
_KICK = getattr(signal, "SIGURG", signal.SIGTERM)

# Launchers and terminals may deliver one and the same stop twice.
_SAME_STOP_SECS = 1.0


class StopNow(BaseException):
    """Raised where the run agreed to stop, from a wait or between two batches.

    Not an `Exception`: what handles errors of a user's data source must let it pass.
    """


class StopRequest:
    """Turns SIGTERM and SIGINT into a stop at one agreed point.

    Args:
      board: where the processes of the run meet; None for one process.

    Attributes:
      reason: "SIGTERM", or "SIGTERM of process 1"; None before.
      asked_at: `time.monotonic()` of the first request; None before.
      insisted: the signal that came when the stop was asked for already, and which
        the main thread has not seen; None before.
    """

    def __init__(self, board: Board | None = None) -> None:
        self.reason: str | None = None
        self.asked_at: float | None = None
        self.insisted: int | None = None
        self._board = board
        self._lock = threading.Lock()
        self._begun = 0  # points that this process went on from
        self._frozen = False  # it goes on from no other before all agreed
        self._agreed = 0
        self._decided = threading.Event()
        self._may_interrupt = False
        self._wakeup: tuple[int, int, int] | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        # Python lets only the main thread set handlers; elsewhere the caller's stay.
        if threading.current_thread() is threading.main_thread():
            for number in (*_SIGNALS, _KICK):
                self._previous[number] = signal.signal(number, self._handle)
            reading, writing = os.pipe()
            for descriptor in (reading, writing):
                os.set_blocking(descriptor, False)
            before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
            self._wakeup = reading, writing, before
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()

    def __bool__(self) -> bool:
        return self.asked_at is not None

    def ask(self, reason: str) -> None:
        """Asks all processes to stop; only the first request counts."""
        if self.asked_at is not None:
            return
        self.reason, self.asked_at = reason, time.monotonic()
        if self._board is None:
            self._agreed, self._frozen = self._begun, True
            self._decided.set()

    def reached(self) -> bool:
        """Whether this point is where all stop; if not, the run goes on from it."""
        if not self._frozen:
            with self._lock:
                if not self._frozen:
                    self._begun += 1
                    return False
        self._decided.wait()
        if self._begun >= self._agreed:
            return True
        self._begun += 1
        return False

    def check(self) -> None:
        """Raises `StopNow` if this point is where all stop."""
        if self.reached():
            raise StopNow

    @contextlib.contextmanager
    def interruptible(self) -> Generator[None]:
        """A wait of this process alone, which a stop may end at once.

        Raises:
          StopNow: the run stops at the point that this process is at.
        """
        self._may_interrupt = True
        try:
            self._raise_if_over()
            yield
        finally:
            self._may_interrupt = False

    # -- on the watching thread ----------------------------------------------------

    def poll(self) -> None:
        """Takes signals that the main thread is too busy for; agrees with the others.

        Raises:
          jax.errors.JaxRuntimeError: the coordination service is gone.
        """
        self._read_wakeup()
        if self._decided.is_set():
            return
        board = self._board
        if board is None:
            return
        if self.asked_at is None:
            for reason in board.read("stop/").values():
                self.ask(reason)
        if self.asked_at is not None:
            self._agree(board)

    def _agree(self, board: Board) -> None:
        if not self._frozen:
            assert self.reason is not None
            if " of process " not in self.reason:
                self.reason = f"{self.reason} of process {board.index}"
                board.post(f"stop/{board.index}", self.reason)
            with self._lock:
                self._frozen, begun = True, self._begun
            board.post(f"begun/{board.index}", str(begun))
        bounds = board.read("begun/")
        if len(bounds) == board.count:
            self._agreed = max(map(int, bounds.values()))
            self._decided.set()
            self._kick()

    def _read_wakeup(self) -> None:
        wakeup = self._wakeup
        if wakeup is None:
            return
        try:
            numbers = os.read(wakeup[0], 64)
        except (BlockingIOError, OSError):
            return
        for number in numbers:
            if number in _SIGNALS:
                if self._is_another():
                    self.insisted = number
                self.ask(signal.Signals(number).name)

    def _kick(self) -> None:
        """Lets the main thread look whether its wait is over."""
        if self._previous and self._may_interrupt:
            signal.pthread_kill(threading.main_thread().ident or 0, _KICK)

    # -- on the main thread --------------------------------------------------------

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Signals are counted by what they wrote to the pipe: a busy main thread comes
        # here long after the watching thread has seen the very same one.
        self._read_wakeup()
        if self.insisted is not None:
            self._restore()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._raise_if_over()

    def _is_another(self) -> bool:
        asked = self.asked_at
        return asked is not None and time.monotonic() - asked > _SAME_STOP_SECS

    def _raise_if_over(self) -> None:
        is_over = self._decided.is_set() and self._begun >= self._agreed
        if self._may_interrupt and is_over:
            raise StopNow

    def _restore(self) -> None:
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            signal.set_wakeup_fd(wakeup[2])
            for descriptor in wakeup[:2]:
                os.close(descriptor)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
