"""Contestants take turns: each in a process of its kind, one running at a time."""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
SLICE_SECS = 0.25  # of one turn, about


class Worker:
    """A process that holds contestants, stopped while it is not its turn."""

    def __init__(self, entries: list[dict], *, python=sys.executable, env=None):
        self._process = subprocess.Popen(
            [python, str(HERE / "worker.py"), json.dumps(entries)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"} | (env or {}),
        )
        self.failed: dict[str, str] = {}
        answer = self._answer()
        self.names = answer.get("ready", [])
        self.failed = answer.get("failed", {"all": "the process ended"})
        self._process.send_signal(signal.SIGSTOP)

    def run(self, name: str, count: int) -> float:
        """Seconds of `count` batches of contestant `name`; nan when it broke."""
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps([name, count]) + "\n")
            self._process.stdin.flush()
            return self._answer().get("seconds", float("nan"))
        except BrokenPipeError:
            return float("nan")
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        return json.loads(line) if line else {}


@contextlib.contextmanager
def started(groups: list[dict]) -> Iterator[list[Worker]]:
    """Workers of `groups`, each the keywords of a `Worker`, ended afterwards."""
    workers = []
    try:
        for group in groups:
            workers.append(Worker(**group))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def measure(
    workers: list[Worker], rounds: int, *, slice_secs: float = SLICE_SECS
) -> dict[str, list[float]]:
    """Seconds an item of every contestant in every round.

    Turns take about `slice_secs`, or a single item.
    """
    counts: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    for worker in workers:
        for name in worker.names:  # the first turn warms up and sets the length
            each = worker.run(name, 1)
            if each < slice_secs / 4:
                each = worker.run(name, 3) / 3
            counts[name] = max(1, int(slice_secs / each)) if each > 0 else 1
            seconds[name] = []
    for _ in range(rounds):
        for worker in workers:
            for name in worker.names:
                taken = worker.run(name, counts[name]) / counts[name]
                seconds[name].append(taken)
    return seconds


def ratio(limit: list[float], seconds: list[float]) -> float:
    """Median over rounds of the limit's time by the contestant's."""
    return statistics.median(a / b for a, b in zip(limit, seconds, strict=True))
