"""Parts handed to worker processes in order, and their pieces back in order.

The processes are started afresh (`python -c`), not forked: threads and devices of
this process are no danger to them, and the main program is not imported there. They
die with this process, which never waits for one that has died.
"""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection as connections
from typing import Any

from roxxel.building import encode, spool
from roxxel.building.recipe import Recipe
from roxxel.building.source import Part
from roxxel.errors import ConfigError

_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    " from roxxel.building import worker; worker.main(int(sys.argv[2]))"
)
_AHEAD = 4  # parts per worker that may be finished before their turn
_EXIT_SECS = 5.0


def pieces(
    parts: Sequence[Part],
    recipe: Recipe,
    processes: int,
    folder: str | os.PathLike,
    on_done: Callable[[int], None],
) -> Iterator[encode.Piece]:
    """One piece for every part, in the order of the parts.

    Args:
        parts: What the workers read.
        recipe: What they make of it.
        processes: Number of workers at most.
        folder: Takes the spool, which is removed at the end.
        on_done: Told the sum of sizes of what was read.

    Raises:
        Exception: What a part raised in its worker, when its turn comes.
        RuntimeError: A worker died.
    """
    with (
        spool.folder(folder) as spool_dir,
        _Crew(parts, recipe, processes, spool_dir, on_done) as crew,
    ):
        for number in range(len(parts)):
            result = crew.result(number)
            if isinstance(result, Exception):
                raise result
            yield result.read(recipe.dtype)


class _Crew:
    """Worker processes and what they are at."""

    def __init__(
        self,
        parts: Sequence[Part],
        recipe: Recipe,
        processes: int,
        spool_dir: str,
        on_done: Callable[[int], None],
    ):
        self._parts = parts
        self._setup = _pickled((recipe, spool_dir), recipe.name)
        self._name = recipe.name
        self._on_done = on_done
        self._workers = [_Worker() for _ in range(min(processes, len(parts)))]
        self._next = 0  # part to hand out
        self._results: dict[int, spool.Spooled | Exception] = {}
        self._amounts: dict[int, int] = {}  # of parts that are being read
        self._finished = 0  # sum of the sizes of those that are over

    def __enter__(self) -> "_Crew":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self._workers:
            worker.stop()

    def result(self, number: int) -> spool.Spooled | Exception:
        """What became of part `number`; the parts before it were asked for before."""
        while number not in self._results:
            self._hand_out(number)
            self._receive()
        result = self._results.pop(number)
        self._hand_out(number + 1)
        return result

    def _hand_out(self, turn: int) -> None:
        """Gives parts to idle workers, within bounds of the part whose turn it is."""
        limit = min(len(self._parts), turn + _AHEAD * len(self._workers))
        for worker in self._workers:
            if worker.part is None and self._next < limit:
                part = _pickled(self._parts[self._next], self._name)
                worker.start(self._setup)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    worker.connection.send((self._next, part))  # died: seen later
                worker.part = self._next
                self._next += 1

    def _receive(self) -> None:
        """Waits for messages and takes them."""
        busy = [worker for worker in self._workers if worker.part is not None]
        ready = connections.wait([worker.connection for worker in busy])
        for worker in (worker for worker in busy if worker.connection in ready):
            try:
                number, news = worker.connection.recv()
            except (EOFError, ConnectionResetError) as err:
                raise RuntimeError(self._obituary(worker)) from err
            self._take(worker, number, news)
        self._on_done(self._finished + sum(self._amounts.values()))

    def _take(self, worker: "_Worker", number: int, news: Any) -> None:
        if isinstance(news, int):
            self._amounts[number] = news
            return
        worker.part = None
        self._results[number] = news
        self._amounts.pop(number, None)
        self._finished += self._parts[number].size

    def _obituary(self, worker: "_Worker") -> str:
        code = worker.wait()
        how = f"ended with exit code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
        part = None if worker.part is None else self._parts[worker.part]
        path = getattr(part, "path", None)
        where = f" reading {path}" if path else ""
        return (
            f"{self._name}: a worker process {how}{where}; the build was given up. "
            "If the machine ran out of memory, give fewer processes=."
        )


class _Worker:
    """One process, started when there is work for it."""

    connection: connections.Connection

    def __init__(self):
        self.process: subprocess.Popen | None = None
        self.part: int | None = None  # number of the part that it is at

    def start(self, setup: bytes) -> None:
        """Starts the process, if it is not running yet."""
        if self.process is not None:
            return
        self.connection, theirs = connections.Pipe()
        with theirs:
            fd = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(fd)],
                stdin=subprocess.PIPE,  # closed when this process ends, which ends it
                pass_fds=[fd],
                process_group=0,  # Ctrl-C is for this process, which stops that one
            )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(setup)

    def wait(self) -> int:
        assert self.process is not None
        try:
            return self.process.wait(_EXIT_SECS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def stop(self) -> None:
        """Ends the process, whatever it is at."""
        if self.process is not None:
            self.process.kill()
            self.connection.close()
            self.process.communicate()


def _pickled(value: Any, name: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as err:
        raise ConfigError(
            f"{name}: a source or tokenizer cannot be sent to worker processes: {err}. "
            "Give processes=1."
        ) from err
