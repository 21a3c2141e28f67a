"""The bytes of UTF-8 as token ids: 256 of them, and special tokens behind."""

from collections.abc import Iterable, Sequence

import numpy as np

from roxxel.errors import ConfigError
from roxxel.tokenizers.protocol import digest, plain_ids

_NUM_BYTES = 256
_NUL = 0


class Bytes:
    """Ids 0 to 255 are bytes, those from 256 on are `specials` in their order.

    The separator is the first special token, without any the NUL byte, which text has
    no use for.

    Raises:
        ConfigError: A special token is empty or named twice.
    """

    name = "bytes"

    def __init__(self, specials: Sequence[str] = ()):
        self.specials = tuple(specials)
        if not all(self.specials) or len(set(self.specials)) < len(self.specials):
            raise ConfigError(f"special tokens must be names, each once: {specials!r}.")
        self.spec = None if self.specials else "bytes"

    @property
    def vocab_size(self) -> int:
        """256 and the number of special tokens."""
        return _NUM_BYTES + len(self.specials)

    @property
    def separator_id(self) -> int:
        """The first special token, else NUL."""
        return _NUM_BYTES if self.specials else _NUL

    def encode(self, text: str) -> np.ndarray:
        """Bytes of `text`, uint8."""
        return np.frombuffer(text.encode(), np.uint8)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Bytes of each text."""
        return [self.encode(text) for text in texts]

    def encode_joined(
        self, texts: Sequence[bytes], separator: np.ndarray
    ) -> np.ndarray:
        """Ids of UTF-8 texts with `separator` between them, at the speed of memory."""
        if separator.size and int(separator.max()) >= _NUM_BYTES:
            return _join_wide(texts, separator)
        between = separator.astype(np.uint8).tobytes()
        return np.frombuffer(between.join(texts), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens by their names."""
        values = np.array(plain_ids(ids), np.int64)
        wrong = values[(values < 0) | (values >= self.vocab_size)]
        if wrong.size:
            raise ConfigError(f"id {wrong[0]} is not below {self.vocab_size}.")
        pieces, start = [], 0
        for end in [*np.flatnonzero(values >= _NUM_BYTES).tolist(), values.size]:
            raw = values[start:end].astype(np.uint8).tobytes()
            pieces.append(raw.decode("utf-8", "replace"))
            if end < values.size:
                pieces.append(self.specials[int(values[end]) - _NUM_BYTES])
            start = end + 1
        return "".join(pieces)

    def token_id(self, token: str) -> int | None:
        """Id of a special token, or of a single byte."""
        if token in self.specials:
            return _NUM_BYTES + self.specials.index(token)
        raw = token.encode("utf-8", "replace")
        return raw[0] if len(raw) == 1 else None

    def fingerprint(self) -> str:
        """Hash of the special tokens."""
        return digest(b"bytes", *(token.encode() for token in self.specials))


def _join_wide(texts: Sequence[bytes], separator: np.ndarray) -> np.ndarray:
    """As a join, but the separator is no byte: filled in behind."""
    gap = separator.size
    raw = (b"\0" * gap).join(texts)
    ids = np.frombuffer(raw, np.uint8).astype(separator.dtype)
    ends = np.cumsum([len(text) + gap for text in texts[:-1]], dtype=np.int64) - gap
    for i in range(gap):
        ids[ends + i] = separator[i]
    return ids
