"""Documents divided into training and held-out text and written as `.rox` shards."""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np

from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError

ALL, TRAIN, HELDOUT = "all", "train", "heldout"
Document = tuple[bytes, bool]  # UTF-8 text, whether it is held out
_MAX_SHARD_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """What a builder makes of its documents, and which side the caller wants."""

    separator: str | bytes = b"\0"
    split: str | None = None
    heldout_fraction: float = 0.0
    cache_dir: str | os.PathLike | None = None

    def __post_init__(self):
        if not 0 <= self.heldout_fraction < 1:
            raise ConfigError(
                f"heldout_fraction is {self.heldout_fraction!r}, expected 0 to below 1."
            )
        if self.heldout_fraction:
            check_split(self.split)
        elif self.split is not None:
            raise ConfigError(
                f"split is {self.split!r} but heldout_fraction is 0: give the fraction "
                "to hold out, or no split."
            )

    @property
    def separator_bytes(self) -> bytes:
        """In UTF-8."""
        separator = self.separator
        return separator.encode() if isinstance(separator, str) else separator

    @property
    def side(self) -> str:
        """Name of the wanted side."""
        return self.split or ALL

    def divide(self, texts: Iterable[bytes]) -> Iterator[Document]:
        """Each text that is not empty with its side, by a hash of its content."""
        limit = int(self.heldout_fraction * 2**32)
        for text in filter(None, texts):
            yield text, limit > 0 and first_hash_bits(text) < limit


def check_split(split: str | None) -> None:
    """Raises ConfigError for another name than train or heldout."""
    if split not in (TRAIN, HELDOUT):
        raise ConfigError(f"split is {split!r}, expected 'train' or 'heldout'.")


def first_hash_bits(data: bytes) -> int:
    """First 32 bits of the SHA-256 of `data`, its first 8 hex digits as a number."""
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big")


def write(
    folder: pathlib.Path,
    documents: Iterable[Document],
    *,
    separator: bytes,
    metadata: dict,
    side: str = TRAIN,
) -> dict[str, dict[str, int]]:
    """Writes `<side>_*.rox` and `heldout_*.rox` in one pass over `documents`.

    The held-out text waits in an unnamed file meanwhile. A side without text has no
    file.

    Returns:
        Documents and bytes of each side.
    """
    kept, held = _Side(separator), _Side(separator)
    with tempfile.TemporaryFile(dir=folder) as spool:
        _write_side(folder, side, _kept_pieces(documents, kept, held, spool), metadata)
        spool.seek(0)
        _write_side(
            folder, HELDOUT, iter(lambda: spool.read(_CHUNK_BYTES), b""), metadata
        )
    return {side: kept.counts(), HELDOUT: held.counts()}


def pattern(folder: pathlib.Path, side: str) -> str:
    """Where `write` puts the shards of `side`."""
    return os.path.join(folder, f"{side}_*.rox")


class _Side:
    """Joins documents by the separator, and counts."""

    def __init__(self, separator: bytes):
        self._separator = separator
        self._documents = 0
        self._bytes = 0

    def joined(self, text: bytes) -> bytes:
        piece = self._separator + text if self._documents else text
        self._documents += 1
        self._bytes += len(piece)
        return piece

    def counts(self) -> dict[str, int]:
        return {"documents": self._documents, "bytes": self._bytes}


def _kept_pieces(
    documents: Iterable[Document], kept: _Side, held: _Side, spool: IO[bytes]
) -> Iterator[bytes]:
    for text, is_heldout in documents:
        if is_heldout:
            spool.write(held.joined(text))
        elif piece := kept.joined(text):  # nothing for an empty first document
            yield piece


def _write_side(
    folder: pathlib.Path, side: str, pieces: Iterator[bytes], metadata: dict
) -> None:
    chunks = _chunks(pieces)
    first = next(chunks, None)
    if first is not None:
        Roxxel(pattern(folder, side)).write(
            itertools.chain([first], chunks),
            max_shard_bytes=_MAX_SHARD_BYTES,
            dtype=np.uint8,
            metadata=metadata | {"split": side},
        )


def _chunks(pieces: Iterator[bytes]) -> Iterator[np.ndarray]:
    """The pieces in arrays large enough to cost little each."""
    waiting: list[bytes] = []
    num_bytes = 0
    for piece in pieces:
        waiting.append(piece)
        num_bytes += len(piece)
        if num_bytes >= _CHUNK_BYTES:
            yield np.frombuffer(b"".join(waiting), np.uint8)
            waiting, num_bytes = [], 0
    if waiting:
        yield np.frombuffer(b"".join(waiting), np.uint8)
