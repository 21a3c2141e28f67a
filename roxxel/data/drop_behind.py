"""Page cache of rows that were read, given back: for data larger than memory.

Without it the kernel keeps what was read until something else needs the memory, which
is right as a rule. With it a run leaves the cache to others: pages of past rows go, a
few MiB at a time; a page that a later row shares is read again.
"""

import contextlib
import mmap
import os

import numpy as np

from roxxel.data import rox_format

_DROP_BYTES = 16 << 20


class DropBehind:
    """Collects what was read of a mapped region and drops its pages in runs."""

    def __init__(
        self,
        shards: list[rox_format.Shard],
        offsets: np.ndarray,
        memory: mmap.mmap,
    ):
        self._shards = shards
        self._offsets = offsets
        self._memory = memory
        self._waiting: list[tuple[np.ndarray, np.ndarray, int]] = []
        self._bytes = 0

    def add(self, shard_ids: np.ndarray, at: np.ndarray, size: int) -> None:
        """Takes `size` bytes from every byte `at` of the region, within its shard."""
        self._waiting.append((shard_ids, at, size))
        self._bytes += size * len(at)
        if self._bytes >= _DROP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Drops all that was taken; their files are opened only for that."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        shard_ids = np.concatenate([ids for ids, _, _ in waiting])
        begins = np.concatenate([at for _, at, _ in waiting])
        ends = np.concatenate([at + size for _, at, size in waiting])
        for k in np.unique(shard_ids).tolist():
            mine = shard_ids == k
            offset = int(self._offsets[k])
            limit = offset + self._shards[k].payload_bytes
            runs = _page_runs(begins[mine], np.minimum(ends[mine], limit))
            self._drop(self._shards[k].path, offset, runs)

    def _drop(self, path: str, offset: int, runs: list[list[int]]) -> None:
        """Unmaps pages and lets them go; hints, which some file systems refuse."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY)
            try:
                for begin, end in runs:  # a mapped page would stay
                    self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
                    size = end - begin
                    os.posix_fadvise(fd, begin - offset, size, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _page_runs(begins: np.ndarray, ends: np.ndarray) -> list[list[int]]:
    """Runs of whole pages that cover all of them, [begin, end) in ascending order."""
    begins = begins // mmap.PAGESIZE * mmap.PAGESIZE
    ends = -(-ends // mmap.PAGESIZE) * mmap.PAGESIZE
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    is_first = np.append(True, begins[1:] > ends[:-1])
    return np.stack([begins[is_first], ends[np.append(is_first[1:], True)]], 1).tolist()
