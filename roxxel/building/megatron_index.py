"""The index of a Megatron data set, read and checked.

Little-endian (Megatron-LM, `megatron/core/datasets/indexed_dataset.py`):

    9 bytes   b"MMIDIDX" and two NUL
    u64       version, 1
    u8        code of the tokens' dtype
    u64, u64  number S of sequences, length D of the document index
    i32[S]    tokens of each sequence
    i64[S]    byte in the `.bin` file where each sequence starts
    i64[D]    document i is sequences [index[i], index[i + 1]): 0 first, S last
    i8[S]     modes, of multi-modal data only
"""

import dataclasses
import os
import struct

import numpy as np

from roxxel.errors import ConfigError

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = dict(
    enumerate(("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), start=1)
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index:
    """What the header of `<prefix>.idx` says, agreed with the sizes of both files."""

    prefix: str
    dtype: str
    num_sequences: int
    num_documents: int
    bin_bytes: int

    @property
    def path(self) -> str:
        """Of the index."""
        return f"{self.prefix}.idx"

    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, mapped."""
        return self._map("<i4", self.num_sequences, _HEADER.size)

    def pointers(self) -> np.ndarray:
        """First byte of each sequence, mapped."""
        offset = _HEADER.size + 4 * self.num_sequences
        return self._map("<i8", self.num_sequences, offset)

    def borders(self) -> np.ndarray:
        """The document index, mapped."""
        offset = _HEADER.size + 12 * self.num_sequences
        return self._map("<i8", self.num_documents + 1, offset)

    def _map(self, dtype: str, count: int, offset: int) -> np.ndarray:
        if not count:
            return np.empty(0, dtype)
        mapped = np.memmap(self.path, dtype, "r", offset=offset, shape=(count,))
        return np.asarray(mapped)  # slices of plain arrays cost much less


def read_index(prefix: str) -> Index:
    """The header of an index, checked against the sizes of the pair's files.

    Raises:
        ConfigError: It is damaged or not an index; names file and expectation.
    """
    path = f"{prefix}.idx"
    try:
        with open(path, "rb") as file:
            raw = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
        bin_bytes = os.path.getsize(f"{prefix}.bin")
    except OSError as err:
        raise ConfigError(f"{err.filename}: cannot be read: {err.strerror}.") from err
    if raw[: len(_MAGIC)] != _MAGIC[: len(raw)] or not raw:
        raise ConfigError(
            f"{path}: starts with {raw[: len(_MAGIC)]!r}, expected {_MAGIC!r}: not a "
            "Megatron index."
        )
    if len(raw) < _HEADER.size:
        raise _damaged(path, f"has {size} bytes, expected {_HEADER.size} or more")
    _, version, code, sequences, num_borders = _HEADER.unpack(raw)
    if version != 1 or code not in _DTYPES:
        raise ConfigError(
            f"{path}: version {version} with dtype code {code}, expected version 1 and "
            "a code from 1 to 8."
        )
    expected = _HEADER.size + 12 * sequences + 8 * num_borders
    if size not in (expected, expected + sequences):  # with modes
        says = f"{sequences} sequences and {num_borders} document borders"
        raise _damaged(path, f"has {size} bytes, expected {expected} for {says}")
    if not num_borders:
        raise _damaged(path, "has an empty document index, expected 0 at least")
    index = Index(
        prefix=prefix,
        dtype=_DTYPES[code],
        num_sequences=sequences,
        num_documents=num_borders - 1,
        bin_bytes=bin_bytes,
    )
    _check_ends(index)
    return index


def _check_ends(index: Index) -> None:
    borders = index.borders()
    ends = (int(borders[0]), int(borders[-1]))
    if ends != (0, index.num_sequences):
        problem = f"document index runs from {ends[0]} to {ends[1]}"
        raise _damaged(
            index.path, f"{problem}, expected 0 to {index.num_sequences} sequences"
        )
    itemsize = np.dtype(index.dtype).itemsize
    last = 0
    if index.num_sequences:
        length, pointer = int(index.lengths()[-1]), int(index.pointers()[-1])
        last = pointer + length * itemsize
    if last != index.bin_bytes:
        raise ConfigError(
            f"{index.prefix}.bin: has {index.bin_bytes} bytes, expected {last} from "
            "the last sequence of its index: cut off, or another data set's."
        )


def checked_borders(
    index: Index, borders: np.ndarray, first: int, last: int
) -> np.ndarray:
    """Borders [first, last] in memory, sequence numbers in ascending order."""
    cuts = np.array(borders[first : last + 1])
    bad = np.flatnonzero((np.diff(cuts) < 0) | (cuts[:-1] < 0))
    if bad.size or cuts[-1] > index.num_sequences:
        at = int(bad[0]) if bad.size else len(cuts) - 2
        raise _damaged(
            index.path,
            f"document {first + at} is sequences {cuts[at]} to {cuts[at + 1]}, "
            f"expected ascending numbers up to {index.num_sequences}",
        )
    return cuts


def checked_ranges(
    index: Index,
    lengths: np.ndarray,
    pointers: np.ndarray,
    cuts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """First and last byte of the sequences that the documents of `cuts` hold."""
    sequences = slice(int(cuts[0]), int(cuts[-1]))
    begins = np.array(pointers[sequences])
    itemsize = np.dtype(index.dtype).itemsize
    sizes = lengths[sequences].astype(np.int64) * itemsize
    ends = begins + sizes
    bad = np.flatnonzero((begins < 0) | (sizes < 0) | (ends > index.bin_bytes))
    if bad.size:
        at = int(bad[0])
        raise _damaged(
            index.path,
            f"sequence {sequences.start + at} is {sizes[at] // itemsize} tokens "
            f"at byte {begins[at]}, expected them within the {index.bin_bytes} bytes "
            "of the .bin file",
        )
    return begins, ends


def _damaged(path: str, problem: str) -> ConfigError:
    return ConfigError(f"{path}: {problem}: damaged, or cut off.")
