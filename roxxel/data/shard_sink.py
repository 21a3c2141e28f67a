"""A run of elements cut into shards: knows files, not documents."""

import array
import contextlib
import os
from io import FileIO

import numpy as np

from roxxel.data import checksums, paths, publish, resume, rox_format
from roxxel.data.layout import Layout, plain_values


class ShardSink:
    """Cuts a run of elements into shards; knows files, not documents.

    All writes but the last hold whole blocks. `stored` are the first shards of this
    very write, finished before it was cut off: they are compared, not written, and what
    is finished stays when the write fails. None leaves nothing behind then.
    """

    def __init__(
        self,
        layout: Layout,
        target: paths.Target,
        first_number: int,
        *,
        publish_each: bool,
        stored: list[rox_format.Shard] | None = None,
    ):
        self.parts: list[tuple[str, str]] = []  # hidden name, final name
        self._stored = stored or []
        self._keep_finished = stored is not None
        self._layout = layout
        self._target = target
        self._first_number = first_number
        self._publish_each = publish_each
        self._published: list[tuple[str, os.stat_result]] = []  # as the part was
        self._file: FileIO | None = None
        self._elements = 0  # in the shard that is open
        self._ends = array.array("q")  # of its records, where lengths differ
        self._range: list[int] | None = None  # of its values
        self._sums = checksums.Summer(0)
        self._dtype = layout.dtype or np.dtype(np.uint8)
        self._separator = np.empty(0, self._dtype)
        self._capacity: int | None = None
        self._tail_bytes = 0

    def begin(self, dtype: np.dtype, separator: np.ndarray) -> None:
        """Tells what the elements are, before the first of them."""
        self._dtype = dtype
        self._separator = separator
        blocks = self._layout.blocks_per_shard(dtype, separator)
        if blocks is not None:
            self._capacity = blocks * self._layout.block_elements(dtype)
        self._tail_bytes = self._layout.tail_bytes(dtype, separator)

    def write(self, elements: np.ndarray) -> None:
        """Appends elements, opening further shards as they fill."""
        while elements.size:
            if self._file is None or self._elements == self._capacity:
                self._file = self._next_shard()
            room = elements.size
            if self._capacity is not None:
                room = min(room, self._capacity - self._elements)
            self._write_payload(elements[:room])
            self._note_range(elements[:room])
            self._elements += room
            elements = elements[room:]

    def write_record(self, elements: np.ndarray) -> None:
        """Appends one record of a length of its own."""
        limit = self._layout.max_shard_bytes
        if self._file is None or (
            limit is not None and self._ends and self._bytes_with(elements) > limit
        ):
            self._file = self._next_shard()
        if elements.size:
            self._write_payload(np.ascontiguousarray(elements))
            self._note_range(elements)
        self._elements += elements.size
        self._ends.append(self._elements * self._dtype.itemsize)

    def finish(self) -> None:
        """Completes the last shard; a data set without elements is one empty shard."""
        if self._file is None:
            self._file = self._next_shard()
        self._complete(is_last=True)

    def discard(self) -> None:
        """Removes what this write has made, but for finished shards to go on from."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk, which was raised before
                self._file.close()
        made = self.parts[len(self._stored) :]  # the others stand for finished shards
        publish.remove_all([part for part, _ in made])
        if self._keep_finished:
            return
        # the last first: cut off itself, this leaves the first shards, to be resumed
        for final, made_file in reversed(self._published):
            publish.remove_own(final, made_file)

    def _next_shard(self) -> FileIO:
        if self._file is not None:
            self._complete(is_last=False)
        number = len(self.parts)
        final = self._target.single
        if final is None:
            final = self._target.path(self._first_number + number)
        is_stored = number < len(self._stored)
        part = os.devnull if is_stored else publish.part_path(final)
        self.parts.append((part, final))
        self._elements = 0
        self._ends = array.array("q")
        self._range = None
        self._sums = checksums.Summer(self._layout.block_bytes(self._dtype))
        return FileIO(part, "wb" if is_stored else "xb")

    def _complete(self, *, is_last: bool) -> None:
        assert self._file is not None
        with self._file as file:
            ends = self._pad_and_index()
            section, sums = self._sums.finish()
            facts = self._facts(sums, is_last)
            if self._layout.is_ragged:
                facts["index_digest"] = checksums.digest(ends.tobytes())
            number = len(self.parts) - 1
            if number < len(self._stored):
                resume.check_same(self._stored[number], facts)
            else:
                tail = rox_format.pack_tail(
                    ends,
                    dtype=self._dtype,
                    extension=facts,
                    sections={"sums": section},
                )
                _write_all(file, np.frombuffer(tail, np.uint8))
                os.fsync(file.fileno())
            written = os.fstat(file.fileno())
        self._file = None
        if self._publish_each and number >= len(self._stored):
            part, final = self.parts[-1]
            # noted first: it may be cut off behind giving the name
            self._published.append((final, written))
            publish.publish_one(part, final)

    def _pad_and_index(self) -> np.ndarray:
        """Fills up the last block; the byte where each record ends, int64."""
        if self._layout.is_ragged:
            return np.array(self._ends, "<i8")
        block = self._layout.block_elements(self._dtype)
        records = -(-self._elements // block)
        padding = records * block - self._elements
        self._write_payload(np.full(padding, self._pad_value(), self._dtype))
        block_bytes = self._layout.block_bytes(self._dtype)
        return np.arange(1, records + 1, dtype="<i8") * block_bytes

    def _bytes_with(self, elements: np.ndarray) -> int:
        """Most bytes of the shard that is open with one more record."""
        payload = (self._elements + elements.size) * self._dtype.itemsize
        index = (len(self._ends) + 1) * rox_format.OFFSET_BYTES
        return payload + index + checksums.section_bytes(payload) + self._tail_bytes

    def _write_payload(self, elements: np.ndarray) -> None:
        assert self._file is not None
        raw = elements.view(np.uint8)
        self._sums.add(raw)
        _write_all(self._file, raw)

    def _facts(self, sums: dict, is_last: bool) -> dict:
        """The extension of the shard that is open."""
        return self._layout.extension(
            self._dtype,
            sums=sums,
            elements=self._elements,
            separator=plain_values(self._separator) or None,
            pad=plain_values(self._pad_value().reshape(1))[0],
            range=self._range,
            shard=len(self.parts) - 1,
            last=is_last,
        )

    def _note_range(self, elements: np.ndarray) -> None:
        """Keeps least and greatest value of integers that may not fit int32."""
        if self._dtype.kind in "iu" and not np.can_cast(self._dtype, np.int32):
            low, high = int(elements.min()), int(elements.max())
            if self._range:
                low, high = min(low, self._range[0]), max(high, self._range[1])
            self._range = [low, high]

    def _pad_value(self) -> np.ndarray:
        if self._separator.size == 1:
            return self._separator[0]
        return np.zeros((), self._dtype)


def _write_all(file: FileIO, raw: np.ndarray) -> None:
    """Writes all of uint8 [n]; a raw file may take fewer than it is given."""
    view = raw.data
    while view.nbytes:
        view = view[file.write(view) :]
