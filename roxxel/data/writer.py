"""Items in, complete shards out: `write_shards` is all that callers need.

Elements are copied once into a buffer of whole blocks and written from there, so that
a generator may reuse its array, and a small document costs little more than a copy.
"""

import dataclasses
import json
import operator
import os
from collections.abc import Iterable

import numpy as np

from roxxel.data import dtypes, items, paths, publish, rox_format
from roxxel.errors import ConfigError

_BUFFER_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How elements become shards; sizes in bytes.

    `max_shard_bytes` bounds the whole file (None: no bound), except that a shard
    always holds at least one block. `dtype` None is found from the first item.
    """

    block_size: int = 4096
    max_shard_bytes: int | None = None
    separator: object = None
    dtype: np.dtype | None = None
    metadata: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        _check_bytes("block_size", self.block_size)
        if self.max_shard_bytes is not None:
            _check_bytes("max_shard_bytes", self.max_shard_bytes)
        try:
            json.dumps(self.metadata)
        except (TypeError, ValueError) as err:
            raise ConfigError(f"metadata must be plain JSON values: {err}.") from err

    def block_elements(self, dtype: np.dtype) -> int:
        """Elements of a block."""
        if self.block_size % dtype.itemsize:
            raise ConfigError(
                f"block_size is {self.block_size} bytes, expected a multiple of the"
                f" {dtype.itemsize} bytes of an element of {dtype.name}."
            )
        return self.block_size // dtype.itemsize

    def blocks_per_shard(self, dtype: np.dtype, separator: np.ndarray) -> int | None:
        """Blocks that keep a shard within `max_shard_bytes`, at least 1."""
        if self.max_shard_bytes is None:
            return None
        wide = -(1 << 62)
        widest = _body(
            self,
            dtype=dtype,
            elements=wide,
            separator=_plain(separator),
            pad=wide,
            range=[wide, wide],
            shard=wide,
            last=False,
        )
        longest = rox_format.pack_extension(widest)
        room = self.max_shard_bytes - len(longest) - rox_format.FOOTER_02.size
        return max(1, room // (self.block_size + rox_format.OFFSET_BYTES))


def write_shards(
    documents: Iterable,
    layout: Layout,
    *,
    target: paths.Target,
    first_number: int = 0,
    prefix: Iterable[np.ndarray] = (),
    stale: list[str] | None = None,
) -> list[str]:
    """Writes `documents` as shards named by `target` and returns their paths.

    Args:
        documents: The items; see `items.to_elements`. Empty ones store nothing, not
            even a separator.
        layout: Block and shard sizes, separator, dtype, metadata.
        target: Names of the shards.
        first_number: Number of the first shard.
        prefix: Elements of `layout.dtype` that come first, as they are.
        stale: None publishes each shard as soon as it is complete. A list publishes
            all of them together at the end and removes the files in the list.

    Raises:
        BaseException: Whatever `documents` raises, unchanged; no shard of this call
            is left behind then.
    """
    sink = _ShardSink(layout, target, first_number, publish_each=stale is None)
    try:
        _pack(documents, layout, sink, prefix)
        sink.finish()
    except BaseException:
        sink.discard()
        raise
    if stale is not None:
        publish.publish_all(target, sink.parts, stale)
    return [final for _, final in sink.parts]


def _pack(
    documents: Iterable,
    layout: Layout,
    sink: "_ShardSink",
    prefix: Iterable[np.ndarray],
) -> None:
    dtype = layout.dtype
    packer = None
    if dtype is not None:
        packer = _Packer(layout, dtype, sink)
        for elements in prefix:
            packer.append(elements)
    for index, document in enumerate(documents):
        if packer is None or not packer.add_array(document):
            elements = items.to_elements(document, index, dtype)
            if not elements.size:
                continue
            if packer is None:
                dtype = elements.dtype
                packer = _Packer(layout, dtype, sink)
            packer.add(elements)
    if packer is not None:
        packer.flush()


class _Packer:
    """Collects elements of one dtype in a buffer and hands it on when full."""

    def __init__(self, layout: Layout, dtype: np.dtype, sink: "_ShardSink"):
        self._dtype = dtype
        self._separator = np.empty(0, dtype)
        if layout.separator is not None:
            self._separator = items.separator_elements(layout.separator, dtype)
        block = layout.block_elements(dtype)
        self._buffer = np.empty(
            max(1, _BUFFER_BYTES // layout.block_size) * block, dtype
        )
        self._used = 0
        self._sink = sink
        sink.begin(dtype, self._separator)

    def add_array(self, document) -> bool:
        """Takes a plain array of the right dtype, the common case; else False."""
        if (
            type(document) is not np.ndarray
            or document.dtype != self._dtype
            or document.ndim != 1
            or not document.size
        ):
            return False
        self.add(document)
        return True

    def add(self, elements: np.ndarray) -> None:
        """Takes a document and its separator."""
        self.append(elements)
        if self._separator.size:
            self.append(self._separator)

    def flush(self) -> None:
        self._sink.write(self._buffer[: self._used])
        self._used = 0

    def append(self, elements: np.ndarray) -> None:
        """Takes elements that no separator follows."""
        end = self._used + elements.size
        if end <= self._buffer.size:
            self._buffer[self._used : end] = elements
            self._used = end
            return
        room = self._buffer.size - self._used
        self._buffer[self._used :] = elements[:room]
        self._used = self._buffer.size
        self.flush()
        rest = elements[room:]
        whole = rest.size - rest.size % self._buffer.size
        if whole:
            self._sink.write(np.ascontiguousarray(rest[:whole]))
        self._used = rest.size - whole
        self._buffer[: self._used] = rest[whole:]


class _ShardSink:
    """Cuts a run of elements into shards; knows files, not documents.

    All writes but the last hold whole blocks.
    """

    def __init__(
        self,
        layout: Layout,
        target: paths.Target,
        first_number: int,
        *,
        publish_each: bool,
    ):
        self.parts: list[tuple[str, str]] = []  # hidden name, final name
        self._layout = layout
        self._target = target
        self._first_number = first_number
        self._publish_each = publish_each
        self._published: list[str] = []
        self._file = None
        self._elements = 0  # in the shard that is open
        self._range: list[int] | None = None  # of its values
        self._dtype = layout.dtype or np.dtype(np.uint8)
        self._separator = np.empty(0, self._dtype)
        self._capacity: int | None = None

    def begin(self, dtype: np.dtype, separator: np.ndarray) -> None:
        """Tells what the elements are, before the first of them."""
        self._dtype = dtype
        self._separator = separator
        blocks = self._layout.blocks_per_shard(dtype, separator)
        if blocks is not None:
            self._capacity = blocks * self._layout.block_elements(dtype)

    def write(self, elements: np.ndarray) -> None:
        """Appends elements, opening further shards as they fill."""
        while elements.size:
            if self._file is None or self._elements == self._capacity:
                self._next_shard()
            room = elements.size
            if self._capacity is not None:
                room = min(room, self._capacity - self._elements)
            _write_all(self._file, elements[:room])
            self._note_range(elements[:room])
            self._elements += room
            elements = elements[room:]

    def finish(self) -> None:
        """Completes the last shard; a data set without elements is one empty shard."""
        if self._file is None:
            self._next_shard()
        self._complete(is_last=True)

    def discard(self) -> None:
        """Removes all that this write has made."""
        if self._file is not None:
            self._file.close()
        publish.remove_all([part for part, _ in self.parts] + self._published)

    def _next_shard(self) -> None:
        if self._file is not None:
            self._complete(is_last=False)
        final = self._target.single
        if final is None:
            final = self._target.path(self._first_number + len(self.parts))
        part = publish.part_path(final)
        self._file = open(part, "xb", buffering=0)
        self.parts.append((part, final))
        self._elements = 0
        self._range = None

    def _complete(self, *, is_last: bool) -> None:
        block = self._layout.block_elements(self._dtype)
        records = -(-self._elements // block)
        pad = self._pad_value()
        padding = np.full(records * block - self._elements, pad, self._dtype)
        _write_all(self._file, padding)
        self._file.write(
            rox_format.pack_tail(
                records=records,
                block_bytes=self._layout.block_size,
                dtype=self._dtype,
                extension=_body(
                    self._layout,
                    dtype=self._dtype,
                    elements=self._elements,
                    separator=_plain(self._separator) or None,
                    pad=_plain(pad.reshape(1))[0],
                    range=self._range,
                    shard=len(self.parts) - 1,
                    last=is_last,
                ),
            )
        )
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        if self._publish_each:
            part, final = self.parts[-1]
            publish.publish_one(part, final)
            self._published.append(final)

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


def _body(layout: Layout, *, dtype: np.dtype, **facts) -> dict:
    """The JSON body of an extension; see `rox_format`."""
    return {
        "dtype": dtype.name,
        "block_bytes": layout.block_size,
        "item_shape": [],
        "metadata": layout.metadata,
        **facts,
    }


def _plain(values: np.ndarray) -> list:
    if dtypes.is_extension(values.dtype):
        values = values.astype(np.float64)
    return values.tolist()


def _write_all(file, elements: np.ndarray) -> None:
    """Writes all bytes; a raw file may take fewer than it is given."""
    if not elements.size:
        return
    view = memoryview(elements.view(np.uint8))
    while view.nbytes:
        view = view[file.write(view) :]


def _check_bytes(name: str, value) -> None:
    try:
        is_valid = not isinstance(value, bool) and operator.index(value) > 0
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{name} must be a positive number of bytes, got {value!r}.")
