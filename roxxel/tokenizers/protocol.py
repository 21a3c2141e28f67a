"""What a tokenizer is to the builders, to sampling and to whoever brings another."""

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

_FINGERPRINT_BYTES = 16


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back. Picklable into worker processes.

    Special tokens that are spelled out in a text are text. A tokenizer may also have

    - `encode_batch(texts) -> list` of ids of each text, where that is faster;
    - `encode_joined(texts: list[bytes], separator) -> array` of all ids with the
      separator between texts, where that is faster still;
    - `separator_id`: id that ends a document (or begins one), or None;
    - `token_id(token) -> int | None`: id of a token by its name, special ones too;
    - `spec`: what `load` makes it from again.
    """

    @property
    def name(self) -> str:
        """Short name, stored with the data."""
        ...

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id."""
        ...

    def encode(self, text: str) -> np.ndarray | list[int]:
        """Ids of `text`, 1-D."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids."""
        ...

    def fingerprint(self) -> str:
        """Hash of all that decides about ids."""
        ...


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """What is stored with the data: name, fingerprint, size, and where it came from."""
    facts: dict[str, Any] = {
        "name": tokenizer.name,
        "fingerprint": tokenizer.fingerprint(),
        "vocab_size": tokenizer.vocab_size,
    }
    spec = getattr(tokenizer, "spec", None)
    return facts | ({"spec": spec} if spec else {})


def digest(*pieces: bytes) -> str:
    """Hash of pieces, each with its length, 32 hex digits."""
    total = hashlib.blake2b(digest_size=_FINGERPRINT_BYTES)
    for piece in pieces:
        total.update(len(piece).to_bytes(8, "little"))
        total.update(piece)
    return total.hexdigest()


def plain_ids(ids: Iterable[int]) -> list[int]:
    """`ids`, an array on a device too, as the ints that packages take."""
    return np.asarray(ids if hasattr(ids, "__array__") else list(ids)).tolist()
