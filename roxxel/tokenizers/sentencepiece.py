"""SentencePiece models."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roxxel import extras
from roxxel.errors import ConfigError
from roxxel.tokenizers.protocol import digest, plain_ids

try:
    import sentencepiece
except ImportError as err:
    raise extras.missing(
        "roxxel.tokenizers.sentencepiece", "sentencepiece", err
    ) from err


class SentencePiece:
    """A model of SentencePiece; its control symbols are text where a text has them.

    Args:
        proto: The content of a `*.model` file.
        name: Stored with the data.
        spec: What `roxxel.tokenizers.load` makes it from again.

    Raises:
        ConfigError: `proto` is no model.
    """

    def __init__(
        self, proto: bytes, *, name: str = "sentencepiece", spec: str | None = None
    ):
        self.name = name
        self.spec = spec
        self._proto = proto
        self._set()

    @classmethod
    def from_file(cls, path: str | os.PathLike, spec: str | None = None):
        """The model in a file, called by the file.

        Raises:
            ConfigError: The file holds none.
        """
        path = Path(path)
        try:
            return cls(path.read_bytes(), name=path.stem, spec=spec or str(path))
        except (OSError, ConfigError) as err:
            raise ConfigError(f"{path}: no SentencePiece model: {err}") from err

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_processor"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set()

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return self._processor.get_piece_size()

    @property
    def separator_id(self) -> int | None:
        """End of sentence, else its beginning, None if the model has neither."""
        ids = (self._processor.eos_id(), self._processor.bos_id())
        return next((found for found in ids if found >= 0), None)

    def encode(self, text: str) -> np.ndarray:
        """Ids of `text`, int32."""
        return np.array(self._processor.encode(text), np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, by this thread alone."""
        encoded = self._processor.encode(list(texts), num_threads=1)
        return [np.array(ids, np.int32) for ids in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; control symbols have none."""
        return self._processor.decode(plain_ids(ids))

    def token_id(self, token: str) -> int | None:
        """Id of a piece by its name."""
        found = self._processor.piece_to_id(token)
        return found if self._processor.id_to_piece(found) == token else None

    def fingerprint(self) -> str:
        """Hash of the model."""
        return digest(self._proto)

    def _set(self) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(self._proto)
        except RuntimeError as err:
            raise ConfigError("not a SentencePiece model.") from err
