"""Many shards as one virtual sequence of elements on the page cache.

All shards are mapped, on first touch, into one reserved range of addresses: a row of
any shard is then a window of one array, so a batch over any number of shards is one
vectorised gather, and no file stays open. Reserving addresses takes no memory; pages
that were read count as file pages of the process (RSS) and the kernel may take them
back at any time.
"""

import ctypes
import mmap
import os
import threading

import numpy as np

from roxxel.data import dtypes, rox_format
from roxxel.errors import ShardFormatError

_MAP_FIXED = 0x10  # the same on Linux and macOS
_GATHER_BYTES = 1 << 18  # a cast works on pieces that stay in the cache


class ShardReader:
    """Reads elements, records and rows of shards; safe to use from many threads.

    Attributes:
        shards: Tails of the shards in the order of the sequence, all of one dtype.
        num_elements: Valid elements of all shards.
        num_records: Records of all shards.
    """

    def __init__(self, shards: list[rox_format.Shard], dtype: np.dtype):
        self.shards = shards
        self.dtype = dtype
        self._element_ends = np.cumsum([s.elements for s in shards], dtype=np.int64)
        self._record_ends = np.cumsum([s.records for s in shards], dtype=np.int64)
        self.num_elements = int(self._element_ends[-1]) if shards else 0
        self.num_records = int(self._record_ends[-1]) if shards else 0
        self._region = _Region(shards)
        # element v of the sequence, in shard k, is element v + shift[k] of the region
        starts = self._element_ends - [s.elements for s in shards]
        self._shifts = self._region.offsets // dtype.itemsize - starts

    def elements(self, start: int, stop: int) -> np.ndarray:
        """A copy of elements [start, stop) of the sequence, 0 <= start <= stop."""
        out = np.empty(stop - start, self.dtype)
        self._read_into(out, start)
        return out

    def record(self, index: int) -> np.ndarray:
        """A copy of the valid elements of record `index`, 0 <= index < num_records.

        Raises:
            ShardFormatError: The index says something impossible about this record.
        """
        k = int(np.searchsorted(self._record_ends, index, side="right"))
        shard = self.shards[k]
        local = index - int(self._record_ends[k]) + shard.records
        self._region.map(k)
        begin, end = self._record_range(k, local)
        if not 0 <= begin <= end <= shard.payload_bytes:
            raise ShardFormatError(
                f"{shard.path}: {shard.file_bytes} bytes, its index puts record {local}"
                f" at bytes {begin} to {end}, expected a range within 0 to"
                f" {shard.payload_bytes}."
            )
        end = min(end, shard.elements * self.dtype.itemsize)
        if (begin | end) % self.dtype.itemsize:
            raise ShardFormatError(
                f"{shard.path}: record {local} is bytes {begin} to {end}, which are not"
                f" whole elements of {self.dtype.name}; read elements() instead."
            )
        raw = self._region.bytes(k, begin, max(begin, end))
        return raw.view(self.dtype)

    def rows(
        self, row_ids: np.ndarray, seq_len: int, overlap: int, dtype: np.dtype
    ) -> np.ndarray:
        """Rows as a fresh array [len(row_ids), seq_len + overlap] of `dtype`.

        Row i is elements [i * seq_len, (i + 1) * seq_len + overlap) of the sequence.
        `row_ids` is int64 and within the data.

        Raises:
            ValueError: A value does not fit `dtype`; names it.
        """
        if len(self.shards) == 1 and overlap == 0 and dtype == self.dtype:
            return self._take(row_ids, seq_len)
        width = seq_len + overlap
        starts = row_ids * seq_len
        shard_ids = np.searchsorted(self._element_ends, starts, side="right")
        self._region.map_all(shard_ids)
        at = starts + self._shifts[shard_ids]
        crossing = starts + width > self._element_ends[shard_ids]
        out = self._gather(at, crossing, width, dtype)
        for i in np.flatnonzero(crossing).tolist():
            row = self.elements(int(starts[i]), int(starts[i]) + width)
            dtypes.cast_into(out[i], row)
        return out

    def _take(self, row_ids: np.ndarray, seq_len: int) -> np.ndarray:
        """Rows that tile one file, straight into an array that jax can adopt."""
        self._region.map(0)
        rows = self._region.tiles(self.dtype, self.num_elements // seq_len, seq_len)
        out = aligned_empty((len(row_ids), seq_len), self.dtype)
        return np.take(rows, row_ids, axis=0, out=out, mode="clip")

    def _gather(
        self, at: np.ndarray, crossing: np.ndarray, width: int, dtype: np.dtype
    ) -> np.ndarray:
        """Windows of the region at `at`; those that cross shards are left to fill."""
        if crossing.all():
            return aligned_empty((len(at), width), dtype)
        if crossing.any():
            at[crossing] = at[~crossing][0]  # any row that is all data
        windows = self._region.windows(self.dtype, width)
        if dtype == self.dtype:
            return windows[at]
        out = aligned_empty((len(at), width), dtype)
        step = max(1, _GATHER_BYTES // (width * self.dtype.itemsize))
        for i in range(0, len(at), step):
            dtypes.cast_into(out[i : i + step], windows[at[i : i + step]])
        return out

    def _read_into(self, out: np.ndarray, start: int) -> None:
        done = 0
        k = int(np.searchsorted(self._element_ends, start, side="right"))
        while done < out.size:
            self._region.map(k)
            take = min(out.size - done, int(self._element_ends[k]) - start - done)
            at = start + done + int(self._shifts[k])
            flat = self._region.windows(self.dtype, 1)[:, 0]
            out[done : done + take] = flat[at : at + take]
            done += take
            k += 1

    def _record_range(self, k: int, local: int) -> tuple[int, int]:
        shard = self.shards[k]
        at = shard.payload_bytes + local * rox_format.OFFSET_BYTES
        if local == 0:
            raw = self._region.bytes(k, at, at + rox_format.OFFSET_BYTES)
            return 0, int(raw.view("<i8")[0])
        raw = self._region.bytes(k, at - rox_format.OFFSET_BYTES, at + 8)
        begin, end = raw.view("<i8").tolist()
        return begin, end


def aligned_empty(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Uninitialised [rows, columns] at a multiple of 64 bytes.

    The CPU client of jax adopts such an array without a copy.
    """
    size = shape[0] * shape[1] * dtype.itemsize
    raw = np.empty(size + 63, np.uint8)
    skip = -raw.__array_interface__["data"][0] % 64
    return raw[skip : skip + size].view(dtype).reshape(shape)


class _Region:
    """One reserved range of addresses with every shard's file at a page of its own."""

    def __init__(self, shards: list[rox_format.Shard]):
        self._shards = shards
        lengths = [-(-s.file_bytes // mmap.PAGESIZE) * mmap.PAGESIZE for s in shards]
        ends = np.cumsum(lengths, dtype=np.int64)
        self.offsets = ends - np.array(lengths, np.int64)
        self._size = int(ends[-1]) if shards else mmap.PAGESIZE
        self._lock = threading.Lock()
        self._is_mapped = np.zeros(len(shards), bool)
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, self._size, flags=flags, prot=mmap.PROT_READ)
        first = np.frombuffer(self._memory, np.uint8, 1)
        self._base = first.__array_interface__["data"][0]

    def map_all(self, shard_ids: np.ndarray) -> None:
        """Maps the shards that are not mapped yet."""
        if not self._is_mapped[shard_ids].all():
            for k in np.unique(shard_ids).tolist():
                self.map(k)

    def map(self, k: int) -> None:
        """Maps shard `k` if it is not mapped yet.

        Raises:
            ShardFormatError: The file changed its size since it was opened.
        """
        if self._is_mapped[k]:
            return
        with self._lock:
            if not self._is_mapped[k]:
                self._map_file(self._shards[k], self._base + int(self.offsets[k]))
                self._is_mapped[k] = True

    def windows(self, dtype: np.dtype, width: int) -> np.ndarray:
        """The window of `width` elements at every element of the region, read-only.

        Only windows within mapped shards may be touched.
        """
        size = dtype.itemsize
        shape = (self._size // size - width + 1, width)
        return np.ndarray(shape, dtype, buffer=self._memory, strides=(size, size))

    def tiles(self, dtype: np.dtype, count: int, width: int) -> np.ndarray:
        """The first `count` times `width` elements of the region, read-only."""
        return np.ndarray((count, width), dtype, buffer=self._memory)

    def bytes(self, k: int, begin: int, end: int) -> np.ndarray:
        """A copy of bytes [begin, end) of shard `k`, which is mapped."""
        at = int(self.offsets[k])
        raw = np.frombuffer(self._memory, np.uint8, end - begin, at + begin)
        return raw.copy()

    def _map_file(self, shard: rox_format.Shard, address: int) -> None:
        fd = os.open(shard.path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if size != shard.file_bytes:
                raise ShardFormatError(
                    f"{shard.path}: {size} bytes, expected the {shard.file_bytes} bytes"
                    " that it had when it was opened; open the data set again."
                )
            _map_fixed(address, size, fd, shard.path)
        finally:
            os.close(fd)


def _map_fixed(address: int, size: int, fd: int, path: str) -> None:
    """Maps a file over reserved addresses; they are unmapped with the reservation."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3
    libc.mmap.argtypes += [ctypes.c_int64]
    flags = mmap.MAP_SHARED | _MAP_FIXED
    got = libc.mmap(address, size, mmap.PROT_READ, flags, fd, 0)
    if got != address:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map ({os.strerror(code)})", path)
