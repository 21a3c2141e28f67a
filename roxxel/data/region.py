"""All shards of a data set mapped into one reserved range of addresses.

A row of any shard is then a window of one array, so a batch over any number of shards
is one vectorised gather, and no file stays open. Reserving addresses takes no memory;
pages that were read count as file pages of the process (RSS) and the kernel may take
them back at any time.
"""

import contextlib
import ctypes
import mmap
import os

import numpy as np

from roxxel.data import rox_format
from roxxel.data.drop_behind import DropBehind

_MAP_FIXED = 0x10  # the same on Linux and macOS


class Region:
    """One reserved range of addresses with every shard's file at a page of its own."""

    def __init__(self, shards: list[rox_format.Shard], *, drops_behind: bool = False):
        self._shards = shards
        lengths = [-(-s.file_bytes // mmap.PAGESIZE) * mmap.PAGESIZE for s in shards]
        ends = np.cumsum(lengths, dtype=np.int64)
        self.offsets = ends - np.array(lengths, np.int64)
        self._size = int(ends[-1]) if shards else mmap.PAGESIZE
        self._is_mapped = np.zeros(len(shards), bool)
        self.is_all_mapped = False
        self.cold_reads = 1  # for which rows are fetched ahead: the disk was waited for
        self.batches_ahead = 1  # fetched then, doubled every time
        self.behind: DropBehind | None = None
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, self._size, flags=flags, prot=mmap.PROT_READ)
        first = np.frombuffer(self._memory, np.uint8, 1)
        self._base = first.__array_interface__["data"][0]
        if drops_behind:
            self.behind = DropBehind(shards, self.offsets, self._memory)

    def map_all(self, shard_ids: np.ndarray) -> None:
        """Maps the shards that are not mapped yet."""
        if not self._is_mapped[shard_ids].all():
            for k in sorted(set(shard_ids.tolist())):
                self.map(k)

    def map(self, k: int) -> None:
        """Maps shard `k` if it is not mapped yet.

        Raises:
            ShardFormatError: The file changed since it was opened.
        """
        if self._is_mapped[k]:
            return
        # no lock, which a fork could leave taken: mapping a file twice changes nothing
        self._map_file(self._shards[k], int(self.offsets[k]))
        self._is_mapped[k] = True
        self.is_all_mapped = bool(self._is_mapped.all())

    def windows(self, dtype: np.dtype, width: int) -> np.ndarray:
        """The window of `width` elements at every element of the region, read-only.

        Only windows within mapped shards may be touched.
        """
        size = dtype.itemsize
        shape = (max(0, self._size // size - width + 1), width)
        return np.ndarray(shape, dtype, buffer=self._memory, strides=(size, size))

    def tiles(self, dtype: np.dtype, count: int, width: int) -> np.ndarray:
        """The first `count` times `width` elements of the region, read-only."""
        return np.ndarray((count, width), dtype, buffer=self._memory)

    def bytes(self, k: int, begin: int, end: int) -> np.ndarray:
        """A copy of bytes [begin, end) of shard `k`, which is mapped."""
        return self.view(k, begin, end).copy()

    def view(self, k: int, begin: int, end: int) -> np.ndarray:
        """Bytes [begin, end) of shard `k`, which is mapped, read-only."""
        at = int(self.offsets[k]) + begin
        return np.frombuffer(self._memory, np.uint8, end - begin, at)

    def will_need(self, begin: int, end: int) -> None:
        """Has the kernel read bytes [begin, end) of the region, without waiting."""
        begin -= begin % mmap.PAGESIZE
        with contextlib.suppress(OSError):  # a hint; some file systems refuse it
            self._memory.madvise(mmap.MADV_WILLNEED, begin, end - begin)

    def _map_file(self, shard: rox_format.Shard, offset: int) -> None:
        size = shard.file_bytes
        with rox_format.open_again(shard) as file:
            _map_fixed(self._base + offset, size, file.fileno(), shard.path)
        # rows lie anywhere: reading ahead of a fault would fetch what nobody wants
        self._memory.madvise(mmap.MADV_RANDOM, offset, size)


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
