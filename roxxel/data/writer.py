"""Items in, complete shards out: `write_shards` is all that callers need.

Elements are copied once into a buffer of whole blocks and written from there, so that
a generator may reuse its array, and a small document costs little more than a copy.
"""

from collections.abc import Iterable

import numpy as np

from roxxel.data import items, paths, publish, rox_format
from roxxel.data.layout import Layout
from roxxel.data.shard_sink import ShardSink

_BUFFER_BYTES = 1 << 20


def write_shards(
    documents: Iterable,
    layout: Layout,
    *,
    target: paths.Target,
    first_number: int = 0,
    prefix: Iterable[np.ndarray] = (),
    stale: list[str] | None = None,
    stored: list[rox_format.Shard] | None = None,
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
        stored: Shards of this write that were finished before it was cut off; see
            `resume`.

    Raises:
        BaseException: Whatever `documents` raises, unchanged; no shard of this call
            is left behind then, but for finished ones with `stored`.
    """
    pack = _pack_items if layout.item_shape else _pack
    sink = ShardSink(
        layout, target, first_number, publish_each=stale is None, stored=stored
    )
    try:
        pack(documents, layout, sink, prefix)
        sink.finish()
        if stale is not None:
            publish.check_free([f for _, f in sink.parts if f not in stale])
    except BaseException:
        sink.discard()
        raise
    if stale is not None:
        publish.publish_all(target, sink.parts, stale)
    return [final for _, final in sink.parts]


def _pack(
    documents: Iterable,
    layout: Layout,
    sink: ShardSink,
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


def _pack_items(
    documents: Iterable,
    layout: Layout,
    sink: ShardSink,
    prefix: Iterable[np.ndarray],
) -> None:
    """Every item becomes a record of its own, empty ones too."""
    dtype, shape = layout.dtype, layout.item_shape
    packer = None if dtype is None else _item_packer(layout, dtype, sink)
    if packer is not None:
        for elements in prefix:
            packer.append(elements)
    for index, document in enumerate(documents):
        elements = items.item_elements(document, index, shape, dtype)
        if packer is None:
            dtype = elements.dtype
            packer = _item_packer(layout, dtype, sink)
        packer.append(elements)
    if packer is not None:
        packer.flush()


def _item_packer(layout: Layout, dtype: np.dtype, sink: ShardSink):
    make = _RecordPacker if layout.is_ragged else _Packer
    return make(layout, dtype, sink)


class _RecordPacker:
    """Hands on records of different lengths one by one."""

    def __init__(self, layout: Layout, dtype: np.dtype, sink: ShardSink):
        self.append = sink.write_record
        sink.begin(dtype, np.empty(0, dtype))

    def flush(self) -> None:
        """Nothing is kept back."""


class _Packer:
    """Collects elements of one dtype in a buffer and hands it on when full."""

    def __init__(self, layout: Layout, dtype: np.dtype, sink: ShardSink):
        self._dtype = dtype
        self._separator = np.empty(0, dtype)
        if layout.separator is not None:
            self._separator = items.separator_elements(layout.separator, dtype)
        block = layout.block_elements(dtype)
        self._buffer = np.empty(
            max(1, _BUFFER_BYTES // layout.block_bytes(dtype)) * block, dtype
        )
        self._size = self._buffer.size
        self._separator_size = self._separator.size
        self._used = 0
        self._sink = sink
        sink.begin(dtype, self._separator)

    def add_array(self, document) -> bool:
        """Takes a plain array of the right dtype, the common case; else False.

        Written out: the calls would cost as much as the copy of a small document.
        """
        if type(document) is not np.ndarray or document.ndim != 1:
            return False
        dtype, size = document.dtype, document.size
        if (dtype is not self._dtype and dtype != self._dtype) or not size:
            return False
        end = self._used + size
        stop = end + self._separator_size
        if stop > self._size:
            self.add(document)
            return True
        self._buffer[self._used : end] = document
        if stop > end:
            self._buffer[end:stop] = self._separator
        self._used = stop
        return True

    def add(self, elements: np.ndarray) -> None:
        """Takes a document and its separator."""
        self.append(elements)
        if self._separator_size:
            self.append(self._separator)

    def flush(self) -> None:
        self._sink.write(self._buffer[: self._used])
        self._used = 0

    def append(self, elements: np.ndarray) -> None:
        """Takes elements that no separator follows."""
        end = self._used + elements.size
        if end <= self._size:
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
