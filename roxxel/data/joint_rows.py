"""One gather over the rows of several data sets."""

import time
from collections.abc import Sequence

import numpy as np

from roxxel.data import dtypes
from roxxel.data.rows import RowWindow, aligned_empty

_CAST_BYTES = 1 << 18  # a cast works on pieces that stay in the cache
# a gather slower than this waits for the disk
_COLD_SECS = 5e-4
_COLD_BYTES_PER_SEC = 250e6
_COLD_READS = 16


class JointRows:
    """Rows of several windows in an order of their own, as if of one array.

    All data sets are mapped into this process, so one strided view from the first to
    the last of them holds all rows; a batch is one gather from it, however many data
    sets it mixes. Only rows that are where the windows say are touched.

    Args:
        places: Of each window where its rows come in the common order.
        windows: Of one width and dtype.
    """

    def __init__(self, places: Sequence[np.ndarray], windows: Sequence[RowWindow]):
        first = windows[0]
        self._windows = windows  # keep the files mapped
        self._regions = [window._region for window in windows]
        self._dtype, self._stored = first._dtype, first._reader.dtype
        views = [window._windows for window in windows]
        bases = [view.__array_interface__["data"][0] for view in views]
        start = min(bases)
        size, width = self._stored.itemsize, first._width
        stop = max(
            base + len(view) * size for base, view in zip(bases, views, strict=True)
        )
        self._view = _view_at(start, (stop - start) // size, width, self._stored)
        count = sum(map(len, windows))
        self._at = np.empty(count, np.int64)
        self._crossing = np.empty(count, bool)
        for where, window, base in zip(places, windows, bases, strict=True):
            self._at[where] = window._at + (base - start) // size
            self._crossing[where] = window._crossing
        self._has_crossing = bool(self._crossing.any())
        self._cold_reads = 0

    @staticmethod
    def can_join(windows: Sequence[RowWindow]) -> bool:
        """Whether the rows are stored alike and nothing but a copy is asked for."""
        if any(type(window) is not RowWindow for window in windows):
            return False
        readers = [window._reader for window in windows]
        alike = len({reader.dtype for reader in readers}) == 1
        return alike and not any(r.check or r.region.behind for r in readers)

    def read(self, start: int, stop: int) -> np.ndarray | None:
        """Rows [start, stop) as a fresh array; None where a plain gather will not do.

        That is for rows that run over the end of a shard, shards that are not mapped
        yet, and data that have to be waited for: the windows themselves know how.
        """
        if not all(r.is_all_mapped and not r.cold_reads for r in self._regions):
            return None
        if self._has_crossing and self._crossing[start:stop].any():
            return None
        if self._cold_reads:
            self._cold_reads -= 1
            return None
        begin = time.perf_counter()
        out = self._gather(self._at[start:stop])
        seconds = time.perf_counter() - begin
        if seconds > _COLD_SECS + out.nbytes / _COLD_BYTES_PER_SEC:
            self._cold_reads = _COLD_READS
        return out

    def _gather(self, at: np.ndarray) -> np.ndarray:
        if self._dtype == self._stored:
            return self._view[at]
        width = self._view.shape[1]
        out = aligned_empty((len(at), width), self._dtype)
        step = max(1, _CAST_BYTES // (width * self._stored.itemsize))
        for i in range(0, len(at), step):
            dtypes.cast_into(out[i : i + step], self._view[at[i : i + step]])
        return out


class _Memory:
    """Addresses of this process as numpy asks for them."""

    def __init__(self, start: int, shape: tuple[int, int], dtype: np.dtype):
        self.__array_interface__ = {
            "version": 3,
            "data": (start, True),  # read-only
            "shape": shape,
            "strides": (dtype.itemsize, dtype.itemsize),
            "typestr": f"|V{dtype.itemsize}",
        }


def _view_at(start: int, count: int, width: int, dtype: np.dtype) -> np.ndarray:
    """The window of `width` elements at each of `count` elements from `start` on."""
    return np.asarray(_Memory(start, (count, width), dtype)).view(dtype)
