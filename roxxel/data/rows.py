"""Batches of rows as vectorised gathers from the mapped shards."""

import time
from typing import TYPE_CHECKING

import numpy as np

from roxxel.data import dtypes

if TYPE_CHECKING:
    from roxxel.data.lazy_check import LazyCheck
    from roxxel.data.reader import ShardReader

_GATHER_BYTES = 1 << 20  # a cast works on pieces that stay in the cache
# a gather slower than this waits for the disk: then rows are fetched ahead for a while,
# for the page cache that would cost more than the gather
_COLD_SECS = 5e-4
_COLD_BYTES_PER_SEC = 250e6
_COLD_READS = 64
_AHEAD_BYTES = 32 << 20  # under way at once: disks answer many requests in parallel
_AHEAD_ROWS = 1024
_KEPT_SPANS = 1 << 18
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
        self._is_asked: np.ndarray | None = None  # for, of the kernel; each row
        self._spans: np.ndarray | None = None  # of checksums; each row
        self._windows = self._region.windows(reader.dtype, self._width)
        self._always_fits = dtypes.always_fits(reader.dtype, dtype)
        self._min_aligned_rows = _ALIGNED_BYTES // (self._width * dtype.itemsize)
        self._tiles, self._tile_ids = None, row_ids
        if len(reader.shards) == 1 and overlap == 0:  # rows tile the file
            count = reader.num_elements // seq_len
            self._tiles = self._region.tiles(reader.dtype, count, seq_len)

    def __len__(self) -> int:
        return len(self._at)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of the window as a fresh array [stop - start, width].

        Raises:
            ValueError: A value does not fit the dtype; names it.
            ShardFormatError: The data are checked and damaged.
        """
        region = self._region
        if not region.is_all_mapped:
            region.map_all(self._shard_ids[start:stop])
        if region.cold_reads:
            self._look_ahead(start, stop)
        if self._reader.check:
            self._check(self._reader.check, start, stop)
        begin = time.perf_counter()
        out = self._gather(start, stop)
        seconds = time.perf_counter() - begin
        if seconds > _COLD_SECS + out.nbytes / _COLD_BYTES_PER_SEC:
            region.cold_reads = _COLD_READS
        elif region.cold_reads:
            region.cold_reads -= 1
            if not region.cold_reads:
                region.batches_ahead = 1
        if region.behind:
            size = self._reader.dtype.itemsize
            at = self._at[start:stop] * size
            region.behind.add(self._shard_ids[start:stop], at, self._width * size)
        return out

    def _look_ahead(self, start: int, stop: int) -> None:
        """Has the kernel fetch these rows and those of the next batches, all at once.

        Each row once, and only the rows that the caller reads of every batch; more of
        them from call to call, so that the first batch does not wait for all.
        """
        row_bytes = self._width * self._reader.dtype.itemsize
        rows = min(_AHEAD_BYTES // row_bytes, _AHEAD_ROWS)
        most = max(1, rows // max(1, stop - start))
        ahead = self._region.batches_ahead = min(most, 2 * self._region.batches_ahead)
        batches = 1 + ahead
        stride = self.batch_size or stop - start
        if self._is_asked is None:
            self._is_asked = np.zeros(len(self), bool)
        ids = np.arange(start, stop) + stride * np.arange(batches)[:, None]
        ids = ids[ids < len(self)]
        ids = ids[~self._is_asked[ids]]
        self._is_asked[ids] = True
        self._region.map_all(self._shard_ids[ids])
        for at in (self._at[ids] * self._reader.dtype.itemsize).tolist():
            self._region.will_need(at, at + row_bytes)

    def _check(self, check: "LazyCheck", start: int, stop: int) -> None:
        """Compares rows with their checksums where that was not done before."""
        if self._spans is not None:
            check.check_spans(self._spans[start:stop])
            return
        size = self._reader.dtype.itemsize
        begins, row_bytes = self._at * size, self._width * size
        if len(self) * (2 + row_bytes // 4096) <= _KEPT_SPANS:
            self._spans = check.spans(self._shard_ids, begins, row_bytes)
            check.check_spans(self._spans[start:stop])
        else:
            run = slice(start, stop)
            check.check_spans(check.spans(self._shard_ids[run], begins[run], row_bytes))

    def _gather(self, start: int, stop: int) -> np.ndarray:
        if self._has_crossing and self._crossing[start:stop].any():
            return self._read_crossing(start, stop)
        if self._dtype != self._reader.dtype:
            return self._cast(start, stop)
        out = None
        if self._tiles is not None and stop - start >= self._min_aligned_rows:
            out = aligned_empty((stop - start, self._width), self._dtype)
        return self._stored(start, stop, out)

    def _cast(self, start: int, stop: int) -> np.ndarray:
        """Gathers a piece that stays in the cache, casts it, and so on."""
        if self._always_fits and stop - start < self._min_aligned_rows:
            return self._stored(start, stop, None).astype(self._dtype)
        out = self._empty(stop - start)
        step = max(1, _GATHER_BYTES // (self._width * self._reader.dtype.itemsize))
        for i in range(start, stop, step):
            end = min(i + step, stop)
            stored = self._stored(i, end, None)
            if self._always_fits:
                np.copyto(out[i - start : end - start], stored)
            else:
                dtypes.cast_into(out[i - start : end - start], stored)
        return out

    def _stored(self, start: int, stop: int, out: np.ndarray | None) -> np.ndarray:
        """Rows as stored, in `out` or a fresh array."""
        if self._tiles is None:
            return self._windows[self._at[start:stop]]
        # mode="clip" is a fifth faster than "raise"; the ids were checked before
        return self._tiles.take(self._tile_ids[start:stop], 0, out, "clip")

    def _read_crossing(self, start: int, stop: int) -> np.ndarray:
        """Rows that run over the end of a shard are read apart, the others at once."""
        crossing = self._crossing[start:stop]
        starts, at = self._starts[start:stop], self._at[start:stop]
        out = self._empty(stop - start)
        out[~crossing] = dtypes.cast(self._windows[at[~crossing]], self._dtype)
        for i in np.flatnonzero(crossing).tolist():
            row = self._reader.elements(int(starts[i]), int(starts[i]) + self._width)
            dtypes.cast_into(out[i], row)
        return out

    def _empty(self, count: int) -> np.ndarray:
        if count < self._min_aligned_rows:
            return np.empty((count, self._width), self._dtype)
        return aligned_empty((count, self._width), self._dtype)


def aligned_empty(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Uninitialised [rows, columns] at a multiple of 64 bytes.

    The CPU client of jax adopts such an array without a copy.
    """
    size = shape[0] * shape[1] * dtype.itemsize
    raw = np.empty(size + 63, np.uint8)
    skip = -raw.__array_interface__["data"][0] % 64
    return np.ndarray(shape, dtype, raw, skip)
