"""Tokenizers of the package `tokenizers`: `tokenizer.json` files and objects."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roxxel import extras
from roxxel.errors import ConfigError
from roxxel.tokenizers.protocol import digest, plain_ids

try:
    import tokenizers
except ImportError as err:
    raise extras.missing("roxxel.tokenizers.huggingface", "tokenizers", err) from err

# One core a process: how many is said by `processes=` of the builders. Whoever sets it
# to true has the package's own threads. The package reads it at every call.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Which token ends a document is not in tokenizer.json: that of tokenizer_config.json
# beside it, else the first of these names that the vocabulary has.
_SEPARATORS = (
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[EOS]",
    "<|im_end|>", "<s>", "<bos>", "[SEP]",
)  # fmt: skip


class HuggingFace:
    """A tokenizer of Hugging Face, without its own truncation, padding and templates.

    Args:
        tokenizer: A `tokenizers.Tokenizer`; it is copied.
        name: Stored with the data.
        spec: What `roxxel.tokenizers.load` makes it from again.
        separator_token: Ends a document; found by its usual names by default.

    Raises:
        ConfigError: `separator_token` is not in the vocabulary.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        name: str = "huggingface",
        spec: str | None = None,
        separator_token: str | None = None,
    ):
        self.name = name
        self.spec = spec
        self._set(tokenizer.to_str())
        self.separator_id = self._find_separator(separator_token)

    @classmethod
    def from_file(cls, path: str | os.PathLike, spec: str | None = None):
        """The tokenizer of a `tokenizer.json`, called by its folder.

        Raises:
            ConfigError: The file holds none.
        """
        path = Path(path)
        try:
            made = tokenizers.Tokenizer.from_file(str(path))
        except Exception as err:  # the package raises no more than Exception
            first_line = str(err).partition("\n")[0].rstrip(".")
            raise ConfigError(
                f"{path}: no Hugging Face tokenizer: {first_line}."
            ) from (err)
        name = path.stem
        if name == "tokenizer":
            name = path.absolute().parent.name or name
        separator = _configured_separator(path.with_name("tokenizer_config.json"))
        if separator is not None and made.token_to_id(separator) is None:
            separator = None
        spec = spec or str(path)
        return cls(made, name=name, spec=spec, separator_token=separator)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_tokenizer"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set(state["_json"])

    def encode(self, text: str) -> np.ndarray:
        """Ids of `text`, uint32; special tokens that it spells out are text."""
        return np.array(self._encode_batch([text])[0].ids, np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text."""
        encodings = self._encode_batch(list(texts))
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, special tokens by their names."""
        return self._tokenizer.decode(plain_ids(ids), skip_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        """Id of a token by its name."""
        return self._tokenizer.token_to_id(token)

    def fingerprint(self) -> str:
        """Hash of the content of `tokenizer.json`, however it is laid out."""
        content = json.loads(self._json)
        for name in ("truncation", "padding", "post_processor"):  # not used here
            content.pop(name, None)
        return digest(json.dumps(content, sort_keys=True).encode())

    def _set(self, content: str) -> None:
        self._json = content
        self._tokenizer = tokenizers.Tokenizer.from_str(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        # Ids may have gaps, so that their number says nothing.
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocabulary.values(), default=-1)

    def _find_separator(self, token: str | None) -> int | None:
        if token is not None:
            found = self._tokenizer.token_to_id(token)
            if found is None:
                raise ConfigError(f"separator {token!r} is no token of {self.name}.")
            return found
        ids = map(self._tokenizer.token_to_id, _SEPARATORS)
        return next((found for found in ids if found is not None), None)

    def _encode_batch(self, texts: list[str]) -> list:
        # Fast: without the offsets of the tokens in the text.
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)


def _configured_separator(path: Path) -> str | None:
    """`eos_token`, else `bos_token`, of a tokenizer_config.json, if it is there."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    for name in ("eos_token", "bos_token"):
        token = content.get(name) if isinstance(content, dict) else None
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return None
