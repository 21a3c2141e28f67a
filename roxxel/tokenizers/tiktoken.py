"""Encodings of tiktoken: by name, as objects, and from files of ranks."""

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roxxel import extras
from roxxel.errors import ConfigError
from roxxel.tokenizers.protocol import digest, plain_ids

try:
    import tiktoken
except ImportError as err:
    raise extras.missing("roxxel.tokenizers.tiktoken", "tiktoken", err) from err

_END = "<|endoftext|>"

# How text is cut before ranks are merged, as published with these vocabularies
# (tiktoken_ext/openai_public.py).
_GPT2 = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
)
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++"
    r"[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_PATTERNS = {
    "gpt2": _GPT2, "r50k_base": _GPT2, "p50k_base": _GPT2, "cl100k_base": _CL100K,
}  # fmt: skip


class TikToken:
    """An encoding of tiktoken; special tokens are text where a text has them.

    Args:
        encoding: A `tiktoken.Encoding`.
        spec: What `roxxel.tokenizers.load` makes it from again.
    """

    def __init__(self, encoding: tiktoken.Encoding, *, spec: str | None = None):
        self.name = encoding.name
        self.spec = spec
        self._encoding = encoding

    @classmethod
    def from_name(cls, name: str):
        """The encoding that tiktoken knows by `name`, from its cache.

        Raises:
            ConfigError: There is none, or its ranks are not on this machine.
        """
        if name not in tiktoken.list_encoding_names():
            known = ", ".join(tiktoken.list_encoding_names())
            raise ConfigError(f"tiktoken has no encoding {name!r}; known: {known}.")
        try:
            return cls(tiktoken.get_encoding(name), spec=f"tiktoken:{name}")
        except Exception as err:  # whatever the network raises
            raise ConfigError(
                f"the ranks of tiktoken encoding {name!r} are not on this machine and"
                f" could not be fetched ({type(err).__name__}): put them into the"
                " folder $TIKTOKEN_CACHE_DIR, or give the path of a .tiktoken file."
            ) from err

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
        spec: str | None = None,
    ):
        """An encoding from a file of lines `base64-token rank`.

        Args:
            path: Its name without `.tiktoken` is the name of the encoding.
            pattern: Regular expression that cuts a text into words; known for the
                names gpt2, r50k_base, p50k_base and cl100k_base.
            special_tokens: Their ids; `<|endoftext|>` behind the ranks by default.
            spec: What `roxxel.tokenizers.load` makes it from again.

        Raises:
            ConfigError: The file holds no ranks, or the pattern is not known.
        """
        path = Path(path)
        pattern = pattern or _PATTERNS.get(path.stem)
        if pattern is None:
            raise ConfigError(
                f"{path}: how it cuts text into words is not known for this name, "
                f"expected one of {', '.join(_PATTERNS)}; give pattern= to "
                "roxxel.tokenizers.tiktoken.TikToken.from_file."
            )
        ranks = _read_ranks(path)
        if special_tokens is None:
            special_tokens = {_END: max(ranks.values()) + 1}
        encoding = tiktoken.Encoding(
            path.stem,
            pat_str=pattern,
            mergeable_ranks=ranks,
            special_tokens=dict(special_tokens),
        )
        return cls(encoding, spec=spec)

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id."""
        return self._encoding.n_vocab

    @property
    def separator_id(self) -> int | None:
        """Id of `<|endoftext|>`, None if there is none."""
        return self.token_id(_END)

    def encode(self, text: str) -> np.ndarray:
        """Ids of `text`, uint32."""
        return self._encoding.encode_to_numpy(text, disallowed_special=())

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, by this thread alone."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD."""
        return self._encoding.decode(plain_ids(ids))

    def token_id(self, token: str) -> int | None:
        """Id of a token by its name, special ones too."""
        try:
            return self._encoding.encode_single_token(token)
        except KeyError:
            return None

    def fingerprint(self) -> str:
        """Hash of pattern, ranks and special tokens."""
        state = self._state()
        ranks = sorted(state["mergeable_ranks"].items(), key=lambda item: item[1])
        specials = sorted(state["special_tokens"].items())
        return digest(
            state["pat_str"].encode(),
            *(token + b" %d" % rank for token, rank in ranks),
            *(f"{token} {rank}".encode() for token, rank in specials),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "encoding": self._state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(tiktoken.Encoding(**state["encoding"]), spec=state["spec"])

    def _state(self) -> dict[str, Any]:
        encoding = self._encoding
        return {
            "name": encoding.name,
            "pat_str": encoding._pat_str,
            "mergeable_ranks": encoding._mergeable_ranks,
            "special_tokens": encoding._special_tokens,
        }


def _read_ranks(path: Path) -> dict[bytes, int]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}.") from err
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as err:
            raise ConfigError(
                f"{path}:{number}: expected a token in base64 and its rank."
            ) from err
    if not ranks:
        raise ConfigError(f"{path}: holds no ranks.")
    return ranks
