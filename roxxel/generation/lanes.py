"""Rows of a batch in lanes: on CPU a core each, elsewhere all together.

One step of a small model is a long chain of short loops. Cut over the cores one by one,
as XLA on CPU does it, they wait for each other more than they gain; lanes never wait.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

_LEAST_ROWS = 4  # of a lane: fewer read the parameters too often
# Lanes read the parameters each by itself, which is cheap while caches hold them.
_MOST_BYTES = 8 << 20


class Cores:
    """What lanes run on.

    Args:
      leaves: the parameters.
      most: lanes at most; None: the cores that this process may use.
    """

    def __init__(self, leaves: Sequence[jax.Array], most: int | None = None):
        devices = {device for leaf in leaves for device in leaf.devices()}
        is_one_cpu = [device.platform for device in devices] == ["cpu"]
        is_small = sum(leaf.nbytes for leaf in leaves) <= _MOST_BYTES
        self.most = (most or _num_cores()) if is_one_cpu and is_small else 1
        self._threads = [ThreadPoolExecutor(1, "lane") for _ in range(self.most)]
        self._starting = threading.Lock()

    def split(self, num_rows: int) -> list[slice]:
        """The rows of each lane: equally many, so that one program serves all."""
        most = min(self.most, num_rows // _LEAST_ROWS)
        num = next((n for n in range(most, 1, -1) if num_rows % n == 0), 1)
        size = num_rows // num
        return [slice(at, at + size) for at in range(0, num_rows, size)]

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of compiled functions that run side by side."""
        if len(calls) == 1:
            return [calls[0]()]
        # XLA on CPU runs one after another what one thread has started.
        pairs = zip(self._threads, calls, strict=False)
        waiting = [thread.submit(self._start, call) for thread, call in pairs]
        return [each.result() for each in waiting]

    def _start(self, call):
        with self._starting:  # the first one compiles for all
            return call()


def _num_cores():
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
