"""The thread that watches over a run: stops, other processes, hangs.

It does what the main thread cannot while it waits for data, a device or a compiler. It
ends the process itself where the main thread does not come back.
"""

import contextlib
import os
import pathlib
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from roxxel import leaving
from roxxel.errors import EXIT_ERROR, EXIT_RESTART
from roxxel.notices import Board
from roxxel.sinks.worker import tell_stderr
from roxxel.train import watchdog
from roxxel.train.stop import StopRequest
from roxxel.train.watchdog import Deadlines

if TYPE_CHECKING:
    from roxxel.logger import Logger
    from roxxel.train.timing import StepClock

_POLL_SECS = 0.2
_POLL_SECS_PER_PROCESS = 0.002  # so that thousands do not flood the coordinator

# How long the main thread may take to end by itself once another process has failed,
# and process 0, where the board lives, waits for what the others have to tell.
_GRACE_SECS = 5.0

# A watch that did not run for so long was stopped itself, and the clock with it.
_ASLEEP_SECS = 5.0


class Watch:
    """Watches while its context is open.

    Args:
      workdir: where stacks are written.
      stop: is polled.
      deadlines: of the phases.
      board: of the run's processes; None for one.
      logger: gets the last words.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        stop: StopRequest,
        deadlines: Deadlines,
        board: Board | None,
        logger: "Logger",
    ):
        self._workdir, self._stop, self._deadlines = workdir, stop, deadlines
        self._board, self._logger = board, logger
        self._beats: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self._clock: StepClock | None = None
        self._closed = threading.Event()
        self._awake_since = self._last_round = time.perf_counter()
        self._main = threading.current_thread().ident
        self._failed_at: float | None = None
        self._told_stop = False
        self._thread = threading.Thread(
            target=self._run, name="roxxel-watch", daemon=True
        )

    def follow(
        self, clock: "StepClock", beats: Callable[[], None] = lambda: None
    ) -> None:
        """The clock of the run, once there is one; `beats` is called at each round."""
        self._clock, self._beats = clock, beats

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        self._closed.set()
        self._thread.join()

    @contextlib.contextmanager
    def telling(self) -> Generator[None]:
        """Tells the other processes of an error that leaves the block."""
        try:
            yield
        except BaseException as err:
            self._error, self._failed_at = err, time.monotonic()
            if self._board is not None:
                leaving.leave_at_exit()
                with contextlib.suppress(Exception):
                    self._tell(self._board, err)
            raise

    def _tell(self, board: Board, error: BaseException) -> None:
        before = board.read("failed/")
        text = f"{type(error).__name__}: {error}".splitlines()[0][:500]
        code = getattr(error, "exit_code", EXIT_ERROR)
        board.post(f"code/{board.index}", str(code))
        board.post(f"failed/{board.index}", f"on {socket.gethostname()}: {text}")
        for index, cause in before.items():
            tell_stderr(f"[process {board.index}] process {index} failed {cause}\n")

    def _run(self) -> None:
        count = 1 if self._board is None else self._board.count
        pause = _POLL_SECS + _POLL_SECS_PER_PROCESS * count
        while not self._closed.wait(pause):
            now = time.perf_counter()
            if now - self._last_round > _ASLEEP_SECS:
                self._awake_since = now
            self._last_round = now
            for look in (
                self._stop.poll,
                self._look_at_others,
                self._look_at_stop,
                self._look_at_phase,
                self._beats,
            ):
                # What fails here, such as a coordinator that is gone, is no reason to
                # end: the main thread sees it too.
                with contextlib.suppress(Exception):
                    look()

    # -- other processes -----------------------------------------------------------

    def _look_at_others(self) -> None:
        board = self._board
        if board is None:
            return
        hung = board.read("hung/")
        if hung:
            self._end_hung(*min(hung.items()))
        failed = board.read("failed/")
        if not failed:
            return
        if self._failed_at is None:
            self._failed_at = time.monotonic()
        waited = time.monotonic() - self._failed_at
        if self._error is not None and waited > 4 * _GRACE_SECS:
            code = getattr(self._error, "exit_code", EXIT_ERROR)
            self._end(code, "".join(traceback.format_exception(self._error)))
        if self._error is None and waited > _GRACE_SECS:
            index, cause = min(failed.items())
            # All end with the code of the cause: a launcher may see any of them first.
            code = int(board.read("code/").get(index, EXIT_ERROR))
            self._end(code, f"process {index} failed {cause}; ending too")

    # -- a stop that does not come to its end ----------------------------------------

    def _look_at_stop(self) -> None:
        asked = self._stop.asked_at
        if asked is None:
            return
        waited = time.monotonic() - asked
        if not self._told_stop:
            self._told_stop = True
            self._logger.log_message(
                f"{self._stop.reason}: stopping within {self._deadlines.stop:g} s, and "
                "the time of one save; a second signal ends at once"
            )
        phase = "start" if self._clock is None else self._clock.current
        insisted = self._stop.insisted
        if insisted is not None and waited > 2.0:
            self._end(128 + insisted, "a second signal ends the run at once")
        if phase != "save" and waited > self._deadlines.stop:
            self._dump(f'no end of "{phase}" {waited:.0f} s after {self._stop.reason}')
            self._end(
                EXIT_RESTART,
                f'{self._stop.reason}: "{phase}" did not end within '
                f"{self._deadlines.stop:g} s; the run continues from its last "
                "checkpoint",
            )

    # -- hangs -----------------------------------------------------------------------

    def _look_at_phase(self) -> None:
        clock = self._clock
        if clock is None:
            return
        phase = clock.current
        limit = self._deadlines.of(phase) if phase in clock.warm else None
        spent = time.perf_counter() - max(clock.since, self._awake_since)
        if limit is None or spent <= limit or clock.current != phase:
            return
        place = watchdog.where(self._main)
        why = (
            f'on {socket.gethostname()}: no progress in "{phase}" for {spent:.1f} s '
            f"(deadline {limit:g} s), at {place}"
        )
        if self._board is None:
            self._end_hung("0", why)
        else:
            self._board.post(f"hung/{self._board.index}", why)

    def _end_hung(self, index: str, why: str) -> None:
        """All processes write their stacks and end; process 0, the board's, last."""
        board = self._board
        text = f"process {index} hangs {why}"
        path = self._dump(text)
        if board is not None:
            board.post(f"dumped/{board.index}", str(path))
            until = time.monotonic() + _GRACE_SECS
            while board.index == 0 and time.monotonic() < until:
                if len(board.read("dumped/")) == board.count:
                    time.sleep(_POLL_SECS)  # the others leave first
                    break
                time.sleep(_POLL_SECS)
        self._end(EXIT_RESTART, f"{text}; stacks are in {path.parent}")

    def _dump(self, why: str) -> pathlib.Path:
        index = 0 if self._board is None else self._board.index
        try:
            return watchdog.dump(self._workdir, process=index, why=why)
        except OSError as err:
            tell_stderr(f"stacks could not be written: {err}\n{watchdog.stacks()}\n")
            return self._workdir / watchdog.FOLDER

    def _end(self, code: int, text: str) -> None:
        """The last words, and out: the main thread cannot be waited for."""
        if self._closed.is_set():
            return
        index = 0 if self._board is None else self._board.index
        if index:
            tell_stderr(f"[process {index}] {text} (exit code {code})\n")
        else:
            with contextlib.suppress(Exception):
                self._logger.log_message(f"{text} (exit code {code})", level="error")
        writing = threading.Thread(target=self._logger.flush, daemon=True)
        writing.start()
        writing.join(_GRACE_SECS)
        with contextlib.suppress(Exception):
            leaving.tell_leaving()
        os._exit(code)
