"""Whether the structure of a shard holds all through: index and padding."""

import os

import numpy as np

from roxxel.data import rox_format
from roxxel.errors import ShardFormatError

_CHUNK_OFFSETS = 1 << 17


def check_shard(path: str) -> rox_format.Shard:
    """Reads the tail, the whole index and the padding of `path`, no other payload.

    Raises:
        ShardFormatError: Something does not hold; names file and place.
    """
    shard = rox_format.read_shard(path)
    with open(path, "rb", buffering=0) as file:
        _check_index(shard, file.fileno())
        if shard.extension:
            _check_padding(shard, file.fileno())
    return shard


def _check_index(shard: rox_format.Shard, fd: int) -> None:
    """Records must follow each other, equal blocks where the extension says so."""
    block_bytes = shard.extension.get("block_bytes")
    before = 0
    for first in range(0, shard.records, _CHUNK_OFFSETS):
        count = min(_CHUNK_OFFSETS, shard.records - first)
        at = shard.payload_bytes + first * rox_format.OFFSET_BYTES
        raw = os.pread(fd, count * rox_format.OFFSET_BYTES, at)
        ends = np.frombuffer(raw, "<i8")
        lengths = np.diff(ends, prepend=before)
        bad = lengths < 0 if block_bytes is None else lengths != block_bytes
        if bad.any():
            i = int(np.argmax(bad))
            expected = "at least 0" if block_bytes is None else block_bytes
            raise ShardFormatError(
                f"{shard.path}: its index gives record {first + i} {lengths[i]} bytes,"
                f" expected {expected}."
            )
        before = int(ends[-1])


def _check_padding(shard: rox_format.Shard, fd: int) -> None:
    begin = shard.elements * shard.dtype.itemsize
    raw = os.pread(fd, shard.payload_bytes - begin, begin)
    padding = np.frombuffer(raw, shard.dtype)
    pad = np.array(shard.extension.get("pad", 0)).astype(shard.dtype)
    if padding.tobytes() != np.full_like(padding, pad).tobytes():
        raise ShardFormatError(
            f"{shard.path}: its last {len(raw)} payload bytes are not all the padding"
            f" {pad}."
        )
