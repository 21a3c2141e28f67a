"""Batches of a mixture by their step; no thread, no jax, nothing kept."""

import bisect
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roxxel.data.joint_rows import JointRows
from roxxel.data.mixture import Leg, Source
from roxxel.data.rows import RowWindow, aligned_empty

if TYPE_CHECKING:
    from roxxel.dataset import Roxxel

_WINDOW_ROWS = 8192  # rows that are located at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureBatches:
    """Makes batches; what a thread holds, so that the stream can be collected.

    `places[i]` makes a batch of leg i of its rows, as in `Batches`; None leaves batches
    on the host.
    """

    datasets: Sequence["Roxxel"]
    sources: Sequence[Source]
    legs: Sequence[Leg]
    overlap: int
    dtype: np.dtype
    places: Sequence[Callable] | None
    item_shape: tuple[int, ...] = ()

    def run(self, start: int, stop: int) -> Generator:
        """The batches of steps [start, stop), which the legs cover."""
        for i, leg in enumerate(self.legs):
            end = stop if leg.stop_step is None else min(stop, leg.stop_step)
            if start < end:
                yield from self._run_leg(i, leg, start, end)
                start = end

    def _run_leg(self, i: int, leg: Leg, start: int, stop: int) -> Generator:
        place = self.places[i] if self.places else None
        size, ahead = leg.batch_size, 1
        while start < stop:
            # the first window is small, so that the first batch comes at once
            count = min(stop - start, ahead, max(1, _WINDOW_ROWS // size))
            first = (start - leg.start_step) * size
            window = self._locate(leg, first, first + count * size)
            for begin in range(0, count * size, size):
                if place is not None:
                    yield place(window.read, begin)
                    continue
                rows = window.read(begin, begin + size)
                yield rows.reshape(-1, *self.item_shape) if self.item_shape else rows
            start += count
            ahead *= 4

    def _locate(self, leg: Leg, start: int, stop: int) -> "MixedWindow":
        """The rows at draws [start, stop) of a leg."""
        numbers = leg.sources(start, stop)
        before, after = leg.counts(start), leg.counts(stop)
        parts = []
        for k, dataset in enumerate(self.datasets):
            if before[k] == after[k]:
                continue
            ids = leg.row_ids(k, self.sources[k], before[k], after[k])
            window = dataset.locate(ids, leg.seq_len, self.overlap, self.dtype)
            parts.append((np.flatnonzero(numbers == k), window))
        return MixedWindow(parts, leg.seq_len + self.overlap, self.dtype)


class MixedWindow:
    """Rows of several data sets that have been located, in the order of the mixture."""

    def __init__(
        self,
        parts: Sequence[tuple[np.ndarray, RowWindow]],
        width: int,
        dtype: np.dtype,
    ):
        self._parts = [(places, places.tolist(), rows) for places, rows in parts]
        places, windows = zip(*parts, strict=True)
        can_join = len(parts) > 1 and JointRows.can_join(windows)
        self._joint = JointRows(places, windows) if can_join else None
        self._width = width
        self._dtype = dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of the window as a fresh array [stop - start, width].

        Errors are those of `RowWindow.read`.
        """
        if len(self._parts) == 1:
            return self._parts[0][2].read(start, stop)
        joint = self._joint.read(start, stop) if self._joint else None
        return self._read_apart(start, stop) if joint is None else joint

    def _read_apart(self, start: int, stop: int) -> np.ndarray:
        out = aligned_empty((stop - start, self._width), self._dtype)
        for places, listed, rows in self._parts:
            begin = bisect.bisect_left(listed, start)
            end = bisect.bisect_left(listed, stop, begin)
            if begin < end:
                out[places[begin:end] - start] = rows.read(begin, end)
        return out
