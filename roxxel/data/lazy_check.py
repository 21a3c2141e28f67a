"""Checksums looked at as the payload is read: every span once per opened data set."""

import numpy as np
from absl import logging

from roxxel.data import checksums, rox_format
from roxxel.data.region import Region
from roxxel.errors import ShardFormatError


class LazyCheck:
    """Checks the spans that a read touches, each the first time that it is touched.

    Takes a byte of memory a span (4 KiB as a rule) of the shards that are read. Shards
    without checksums are read as they are, which is logged once.
    """

    def __init__(self, shards: list[rox_format.Shard], region: Region):
        self._shards = shards
        self._region = region
        self._has_checked_index = np.zeros(len(shards), bool)
        self._is_checked: list[np.ndarray | None] = [None] * len(shards)
        without = sum(not checksums.are_in(s) for s in shards if s.records)
        if without:
            logging.warning(
                "%d of %d shards have no checksums and are read unchecked, the first"
                " data from %s. Write them again to have checksums.",
                without,
                len(shards),
                shards[0].path,
            )

    def check_rows(self, shard_ids: np.ndarray, at: np.ndarray, size: int) -> None:
        """Checks `size` bytes from every byte `at` of the region, within its shard."""
        begins = at - self._region.offsets[shard_ids]
        for k, begin in zip(shard_ids.tolist(), begins.tolist(), strict=True):
            self.check(k, begin, begin + size)

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

    def check(self, k: int, begin: int, end: int) -> None:
        """Checks payload bytes [begin, end) of shard `k`, which is mapped.

        Raises:
            ShardFormatError: They are damaged; names shard, block and bytes.
        """
        shard = self._shards[k]
        if not checksums.are_in(shard):
            return
        span = shard.extension["sums"]["span_bytes"]
        end = min(end, shard.payload_bytes)
        first, stop = begin // span, -(-end // span)
        is_checked = self._is_checked[k]
        if is_checked is None:
            spans = -(-shard.payload_bytes // span)
            is_checked = self._is_checked[k] = np.zeros(spans, bool)
        if not is_checked[first:stop].all():
            self._check_spans(k, first, stop, span)
            is_checked[first:stop] = True

    def _check_spans(self, k: int, first: int, stop: int, span: int) -> None:
        shard = self._shards[k]
        end = min(stop * span, shard.payload_bytes)
        sums = checksums.sums_of(self._region.bytes(k, first * span, end), span)
        at = shard.sections["sums"][0] + first * sums.itemsize
        expected = self._region.bytes(k, at, at + sums.nbytes).view("<u4")
        bad = np.flatnonzero(sums != expected)
        if bad.size:
            span_id = first + int(bad[0])
            raise ShardFormatError(f"{checksums.fault(shard, span_id, span_id + 1)}.")
