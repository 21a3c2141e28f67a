"""Whether a shard holds all through: its structure, and its payload as written."""

import os
from collections.abc import Iterator

import numpy as np

from roxxel.data import checksums, rox_format
from roxxel.errors import ShardFormatError

_CHUNK_OFFSETS = 1 << 17


def check_shard(path: str, faults: list[str]) -> rox_format.Shard | None:
    """Reads all of `path` and adds what is wrong to `faults`, file and place named.

    Files without checksums have nothing to compare the payload with. None when the
    tail cannot be read.
    """
    try:
        shard = rox_format.read_shard(path)
    except ShardFormatError as err:
        faults.append(str(err))
        return None
    with open(path, "rb", buffering=0) as file:
        faults += _index_faults(shard, file.fileno())
        if checksums.are_in(shard):
            faults += checksums.faults(shard)
        elif shard.extension:
            faults += _padding_faults(shard, file.fileno())
    return shard


def _index_faults(shard: rox_format.Shard, fd: int) -> Iterator[str]:
    """Records must follow each other, equal blocks where the extension says so."""
    block_bytes = shard.extension.get("block_bytes")
    before = 0
    for first in range(0, shard.records, _CHUNK_OFFSETS):
        count = min(_CHUNK_OFFSETS, shard.records - first)
        at = shard.payload_bytes + first * rox_format.OFFSET_BYTES
        raw = os.pread(fd, count * rox_format.OFFSET_BYTES, at)
        ends = np.frombuffer(raw, "<i8")
        lengths = np.diff(ends, prepend=before)
        bad = lengths != block_bytes if block_bytes else lengths < 0
        if bad.any():
            i = int(np.argmax(bad))
            expected = block_bytes or "at least 0"
            yield (
                f"{shard.path}: its index gives record {first + i} {lengths[i]} bytes,"
                f" expected {expected}."
            )
            return
        before = int(ends[-1])
    fault = checksums.index_fault(shard)
    if fault:
        yield fault


def _padding_faults(shard: rox_format.Shard, fd: int) -> Iterator[str]:
    begin = shard.elements * shard.dtype.itemsize
    raw = os.pread(fd, shard.payload_bytes - begin, begin)
    padding = np.frombuffer(raw, shard.dtype)
    pad = np.array(shard.extension.get("pad", 0)).astype(shard.dtype)
    if padding.tobytes() != np.full_like(padding, pad).tobytes():
        yield (
            f"{shard.path}: its last {len(raw)} payload bytes are not all the padding"
            f" {pad}."
        )
