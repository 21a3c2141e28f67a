"""Many shards as one virtual sequence of elements on the page cache."""

import math

import numpy as np

from roxxel.data import rox_format
from roxxel.data.lazy_check import LazyCheck
from roxxel.data.region import Region
from roxxel.data.rows import RowWindow
from roxxel.errors import ShardFormatError

_COPY_BYTES = 1 << 23  # asked of the kernel at once when elements are copied


class ShardReader:
    """Reads elements, records and rows of shards; safe to use from many threads.

    Attributes:
        shards: Tails of the shards in the order of the sequence, all of one dtype.
        num_elements: Valid elements of all shards.
        num_records: Records of all shards.
        item_shape: Of every record, its first dimension None for any size; () for
            sequences.
        fingerprint: Of the shards, once somebody asked for it.
        check: Compares what is read with its checksums, None to leave that out.
    """

    def __init__(
        self,
        shards: list[rox_format.Shard],
        dtype: np.dtype,
        *,
        is_checked: bool = False,
        drops_behind: bool = False,
    ):
        self.shards = shards
        self.dtype = dtype
        self.fingerprint: str | None = None
        filled = [s for s in shards if s.records] or shards
        self.item_shape = rox_format.item_shape(filled[0])
        self.record_shape = [-1 if n is None else n for n in self.item_shape] or [-1]
        self._element_ends = np.cumsum([s.elements for s in shards], dtype=np.int64)
        self._record_ends = np.cumsum([s.records for s in shards], dtype=np.int64)
        self.num_elements = int(self._element_ends[-1]) if shards else 0
        self.num_records = int(self._record_ends[-1]) if shards else 0
        self.region = Region(shards, drops_behind=drops_behind)
        self.check = LazyCheck(shards, self.region) if is_checked else None
        # element v of the sequence, in shard k, is element v + shift[k] of the region
        starts = self._element_ends - [s.elements for s in shards]
        self._shifts = self.region.offsets // dtype.itemsize - starts

    def elements(self, start: int, stop: int) -> np.ndarray:
        """A copy of elements [start, stop) of the sequence, 0 <= start <= stop."""
        out = np.empty(stop - start, self.dtype)
        self._read_into(out, start)
        return out

    def record(self, index: int) -> np.ndarray:
        """A copy of record `index`, padding left out, 0 <= index < num_records.

        Raises:
            ShardFormatError: The index says something impossible about this record.
        """
        k = int(np.searchsorted(self._record_ends, index, side="right"))
        shard = self.shards[k]
        local = index - int(self._record_ends[k]) + shard.records
        self.region.map(k)
        if self.check:
            self.check.check_index(k)
        begin, end = self._record_range(k, local)
        block = shard.extension.get("block_bytes")
        is_block = not block or (begin, end) == (local * block, (local + 1) * block)
        if not 0 <= begin <= end <= shard.payload_bytes or not is_block:
            raise ShardFormatError(
                f"{shard.path}: {shard.file_bytes} bytes, its index puts record {local}"
                f" at bytes {begin} to {end}, expected {block or 'a range'} bytes"
                f" within 0 to {shard.payload_bytes}."
            )
        end = min(end, shard.elements * self.dtype.itemsize)
        if (begin | end) % self.dtype.itemsize:
            raise ShardFormatError(
                f"{shard.path}: record {local} is bytes {begin} to {end}, which are not"
                f" whole elements of {self.dtype.name}; read elements() instead."
            )
        end = max(begin, end)
        if self.check:
            self.check.check(k, begin, end)
        raw = self.region.bytes(k, begin, end).view(self.dtype)
        row = math.prod(size or 1 for size in self.item_shape)
        if raw.size % row:
            raise ShardFormatError(
                f"{shard.path}: its index gives record {local} {raw.size} elements"
                f" (bytes {begin} to {end}), expected whole rows of {row} for items of"
                f" shape {self.item_shape}: damaged, copy or write it again."
            )
        return raw.reshape(self.record_shape)

    def records(self, indices: list[int]) -> list[np.ndarray]:
        """Copies of several records; those of one shape are gathered at once."""
        if not self.item_shape or None in self.item_shape:
            return [self.record(index) for index in indices]
        ids, size = np.array(indices, np.int64), math.prod(self.record_shape)
        rows = self.locate(ids, size, 0, self.dtype).read(0, len(ids))
        return list(rows.reshape(-1, *self.record_shape))

    def locate(
        self, row_ids: np.ndarray, seq_len: int, overlap: int, dtype: np.dtype
    ) -> RowWindow:
        """Finds rows, int64 and within the data, so that reading them costs little."""
        return RowWindow(self, row_ids, seq_len, overlap, dtype)

    def place_rows(
        self, starts: np.ndarray, width: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shards, element in the region, whether it crosses shards: of each row."""
        shard_ids = np.searchsorted(self._element_ends, starts, side="right")
        at = starts + self._shifts[shard_ids]
        crossing = starts + width > self._element_ends[shard_ids]
        return shard_ids, at, crossing

    def place(self, index: int) -> tuple[str, int]:
        """The path of the shard that holds an element, and the element's byte there."""
        k = int(np.searchsorted(self._element_ends, index, side="right"))
        before = int(self._element_ends[k]) - self.shards[k].elements
        return self.shards[k].path, (index - before) * self.dtype.itemsize

    def _read_into(self, out: np.ndarray, start: int) -> None:
        done = 0
        k = int(np.searchsorted(self._element_ends, start, side="right"))
        while done < out.size:
            self.region.map(k)
            left = int(self._element_ends[k]) - start - done
            take = min(out.size - done, left, _COPY_BYTES // self.dtype.itemsize)
            at = start + done + int(self._shifts[k])
            flat = self.region.windows(self.dtype, 1)[:, 0]
            size = self.dtype.itemsize
            self.region.will_need(at * size, (at + take) * size)
            if self.check:
                begin = at * size - int(self.region.offsets[k])
                self.check.check(k, begin, begin + take * size)
            out[done : done + take] = flat[at : at + take]
            if self.region.behind:
                place = np.array([k]), np.array([at * size])
                self.region.behind.add(*place, take * size)
            done += take
            k += take == left

    def _record_range(self, k: int, local: int) -> tuple[int, int]:
        shard = self.shards[k]
        at = shard.payload_bytes + local * rox_format.OFFSET_BYTES
        if local == 0:
            raw = self.region.bytes(k, at, at + rox_format.OFFSET_BYTES)
            return 0, int(raw.view("<i8")[0])
        raw = self.region.bytes(k, at - rox_format.OFFSET_BYTES, at + 8)
        begin, end = raw.view("<i8").tolist()
        return begin, end
