"""Batches of rows as vectorised gathers from the mapped shards."""

import time
from typing import TYPE_CHECKING

import numpy as np

from roxxel.data import dtypes

if TYPE_CHECKING:
    from roxxel.data.reader import ShardReader

_GATHER_BYTES = 1 << 18  # a cast works on pieces that stay in the cache
# a gather slower than this waits for the disk: then rows are fetched ahead, for the
# page cache that would cost more than the gather
_COLD_SECS = 5e-4
_COLD_BYTES_PER_SEC = 250e6
_ALIGNED_BYTES = 1 << 20  # from here on a copy by jax costs more than aligning


class RowWindow:
    """Rows that have been located; `read` gathers any run of them.

    Row i of the data is elements [i * seq_len, (i + 1) * seq_len + overlap). Where rows
    lie is worked out for all of them at once: a batch costs little more than its copy.

    Attributes:
        batch_size: Rows from what is read to what will be read next; 0 for as many as
            are read.
    """

    batch_size = 0

    def __init__(
        self,
        reader: "ShardReader",
        row_ids: np.ndarray,
        seq_len: int,
        overlap: int,
        dtype: np.dtype,
    ):
        self._reader = reader
        self._region = reader.region
        self._width = seq_len + overlap
        self._dtype = dtype
        self._starts = row_ids * seq_len
        self._shard_ids, self._at, self._crossing = reader.place_rows(
            self._starts, self._width
        )
        self._has_crossing = bool(self._crossing.any())
        self._windows = self._region.windows(reader.dtype, self._width)
        self._tiles, self._tile_ids, self._min_aligned_rows = None, row_ids, 0
        if len(reader.shards) == 1 and overlap == 0:  # rows tile the file
            count = reader.num_elements // seq_len
            row_bytes = seq_len * reader.dtype.itemsize
            self._min_aligned_rows = _ALIGNED_BYTES // row_bytes
            self._tiles = self._region.tiles(reader.dtype, count, seq_len)

    def __len__(self) -> int:
        return len(self._at)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of the window as a fresh array [stop - start, width].

        Raises:
            ValueError: A value does not fit the dtype; names it.
            ShardFormatError: The data are checked and damaged.
        """
        if not self._region.is_all_mapped:
            self._region.map_all(self._shard_ids[start:stop])
        if self._region.is_cold:
            self._look_ahead(start, stop)
        if self._reader.check:
            size = self._reader.dtype.itemsize
            shard_ids, at = self._shard_ids[start:stop], self._at[start:stop]
            self._reader.check.check_rows(shard_ids, at * size, self._width * size)
        begin = time.perf_counter()
        out = self._gather(start, stop)
        seconds = time.perf_counter() - begin
        self._region.is_cold = seconds > _COLD_SECS + out.nbytes / _COLD_BYTES_PER_SEC
        return out

    def _look_ahead(self, start: int, stop: int) -> None:
        """Has the kernel fetch these rows and those of the next batch, all at once."""
        stride = self.batch_size or stop - start
        size = self._reader.dtype.itemsize
        for first in (start, start + stride):
            run = slice(first, first + stop - start)
            for k, at in zip(self._shard_ids[run], self._at[run].tolist(), strict=True):
                if self._region.is_mapped(k):
                    self._region.will_need(at * size, (at + self._width) * size)

    def _gather(self, start: int, stop: int) -> np.ndarray:
        if self._has_crossing and self._crossing[start:stop].any():
            return self._read_crossing(start, stop)
        if self._dtype != self._reader.dtype:
            return self._cast(self._at[start:stop])
        if self._tiles is None:
            return self._windows[self._at[start:stop]]
        out = None
        if stop - start >= self._min_aligned_rows:
            out = aligned_empty((stop - start, self._width), self._dtype)
        # mode="clip" is a fifth faster than "raise"; the ids were checked before
        return self._tiles.take(self._tile_ids[start:stop], 0, out, "clip")

    def _cast(self, at: np.ndarray) -> np.ndarray:
        out = aligned_empty((len(at), self._width), self._dtype)
        step = max(1, _GATHER_BYTES // (self._width * self._reader.dtype.itemsize))
        for i in range(0, len(at), step):
            dtypes.cast_into(out[i : i + step], self._windows[at[i : i + step]])
        return out

    def _read_crossing(self, start: int, stop: int) -> np.ndarray:
        """Rows that run over the end of a shard are read apart, the others at once."""
        crossing = self._crossing[start:stop]
        starts, at = self._starts[start:stop], self._at[start:stop]
        out = aligned_empty((stop - start, self._width), self._dtype)
        out[~crossing] = self._cast(at[~crossing])
        for i in np.flatnonzero(crossing).tolist():
            row = self._reader.elements(int(starts[i]), int(starts[i]) + self._width)
            dtypes.cast_into(out[i], row)
        return out


def aligned_empty(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Uninitialised [rows, columns] at a multiple of 64 bytes.

    The CPU client of jax adopts such an array without a copy.
    """
    size = shape[0] * shape[1] * dtype.itemsize
    raw = np.empty(size + 63, np.uint8)
    skip = -raw.__array_interface__["data"][0] % 64
    return np.ndarray(shape, dtype, raw, skip)
