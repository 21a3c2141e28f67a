"""Checksums looked at as the payload is read: every span once per opened data set."""

import numpy as np
from absl import logging

from roxxel.data import checksums, rox_format
from roxxel.data.region import Region
from roxxel.errors import ShardFormatError

_NO_SPAN = 1 << 62  # bytes: all of a shard without sums is one span, checked already


class LazyCheck:
    """Checks the spans that a read touches, each the first time that it is touched.

    Spans are numbered through all shards. Takes a byte of memory a span (4 KiB as a
    rule) that was read. Shards without checksums are read as they are, which is logged
    once. Threads may check a span twice, which changes nothing.
    """

    def __init__(self, shards: list[rox_format.Shard], region: Region):
        self._shards = shards
        self._region = region
        self._has_checked_index = np.zeros(len(shards), bool)
        has_sums = [checksums.are_in(s) for s in shards]
        sizes = [
            s.extension["sums"]["span_bytes"] if has else _NO_SPAN
            for s, has in zip(shards, has_sums, strict=True)
        ]
        self._span_bytes = np.array(sizes, np.int64)
        self._payload = np.array([s.payload_bytes for s in shards], np.int64)
        counts = np.maximum(1, -(-self._payload // self._span_bytes))
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts
        self._is_checked = np.zeros(int(self._ends[-1]) if shards else 0, bool)
        self._is_checked[self._begins[~np.array(has_sums, bool)]] = True
        _note_without(shards, has_sums)

    def spans(self, shard_ids: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
        """The spans of `size` > 0 bytes from every byte `at` of the region, [n, most].

        Every row has as many columns as the longest needs, the last span repeated.
        """
        span = self._span_bytes[shard_ids]
        begins = at - self._region.offsets[shard_ids]
        last = np.minimum(begins + size, self._payload[shard_ids]) - 1
        base = self._begins[shard_ids]
        first, last = base + begins // span, base + last // span
        most = int((last - first).max(initial=0)) + 1
        return np.minimum(first[:, None] + np.arange(most), last[:, None])

    def check_spans(self, spans: np.ndarray) -> None:
        """Checks those of `spans` that are not yet; their shards are mapped.

        Raises:
            ShardFormatError: One is damaged; names shard, block and bytes.
        """
        is_checked = self._is_checked[spans]
        if is_checked.all():
            return
        new = np.unique(spans[~is_checked])
        shard_ids = np.searchsorted(self._ends, new, side="right")
        for k in np.unique(shard_ids).tolist():
            mine = new[shard_ids == k]
            self._compare(k, mine - self._begins[k])
            self._is_checked[mine] = True

    def check(self, k: int, begin: int, end: int) -> None:
        """Checks payload bytes [begin, end) of shard `k`, which is mapped.

        Raises:
            ShardFormatError: They are damaged; names shard, block and bytes.
        """
        if end > begin:
            at = self._region.offsets[k : k + 1] + begin
            self.check_spans(self.spans(np.array([k]), at, end - begin))

    def check_index(self, k: int) -> None:
        """Checks the index of shard `k`, all of it the first time.

        Raises:
            ShardFormatError: It is damaged.
        """
        if not self._has_checked_index[k]:
            fault = checksums.index_fault(self._shards[k])
            if fault:
                raise ShardFormatError(f"{fault}.")
            self._has_checked_index[k] = True

    def _compare(self, k: int, spans: np.ndarray) -> None:
        """Compares spans of shard `k`, in ascending order, with their sums."""
        shard, size = self._shards[k], int(self._span_bytes[k])
        payload = self._region.view(k, 0, shard.payload_bytes)
        sums = checksums.sums_at(payload, size, spans)
        begin, length = shard.sections["sums"]
        stored = self._region.view(k, begin, begin + length).view("<u4")
        bad = spans[sums != stored[spans]].tolist()
        if bad:
            raise ShardFormatError(f"{checksums.fault(shard, bad[0], bad[0] + 1)}.")


def _note_without(shards: list[rox_format.Shard], has_sums: list[bool]) -> None:
    without = sum(
        s.records > 0 and not has for s, has in zip(shards, has_sums, strict=True)
    )
    if without:
        logging.warning(
            "%d of %d shards have no checksums and are read unchecked, the first"
            " data from %s. Write them again to have checksums.",
            without,
            len(shards),
            shards[0].path,
        )
