"""A tokenizer by its name, its file or the object of the package that made it."""

import os
from pathlib import Path
from typing import Any

from roxxel.errors import ConfigError
from roxxel.tokenizers.bytes import Bytes
from roxxel.tokenizers.protocol import Tokenizer

_EXPECTED = (
    "expected 'bytes', 'tiktoken:NAME', a file tokenizer.json, *.model or *.tiktoken, "
    "or a folder that holds one"
)
_FILES_OF_A_FOLDER = ("tokenizer.json", "tokenizer.model")


def load(spec: Any) -> Tokenizer:
    """The tokenizer that `spec` names.

    Args:
        spec: "bytes"; "tiktoken:gpt2" and the like; the path of a `tokenizer.json` of
            Hugging Face, of a SentencePiece `*.model` or of a `*.tiktoken` file, or of
            a folder that holds one of the first two; a `tokenizers.Tokenizer`, a fast
            tokenizer of transformers, a `SentencePieceProcessor` or a
            `tiktoken.Encoding`; a tokenizer as it is.

    Raises:
        ConfigError: It names nothing, or its file cannot be read.
        ImportError: The package is not installed; names the extra.
    """
    if isinstance(spec, str | os.PathLike):
        return _load_named(os.fspath(spec))
    if isinstance(spec, Tokenizer):
        return spec
    return _wrap(spec)


def _load_named(spec: str) -> Tokenizer:
    if spec == "bytes":
        return Bytes()
    if spec.startswith("tiktoken:"):
        from roxxel.tokenizers import tiktoken

        return tiktoken.TikToken.from_name(spec.removeprefix("tiktoken:"))
    path = Path(spec).expanduser()
    if path.is_dir():
        found = [path / name for name in _FILES_OF_A_FOLDER if (path / name).is_file()]
        if not found:
            raise ConfigError(f"tokenizer {spec!r}: no tokenizer file; {_EXPECTED}.")
        path = found[0]
    if not path.is_file():
        raise ConfigError(f"tokenizer {spec!r}: no such file; {_EXPECTED}.")
    return _load_file(path, spec)


def _load_file(path: Path, spec: str) -> Tokenizer:
    if path.suffix == ".json":
        from roxxel.tokenizers import huggingface

        return huggingface.HuggingFace.from_file(path, spec=spec)
    if path.suffix == ".model":
        from roxxel.tokenizers import sentencepiece

        return sentencepiece.SentencePiece.from_file(path, spec=spec)
    if path.suffix == ".tiktoken":
        from roxxel.tokenizers import tiktoken

        return tiktoken.TikToken.from_file(path, spec=spec)
    raise ConfigError(f"tokenizer {spec!r}: unknown kind of file; {_EXPECTED}.")


def _wrap(spec: Any) -> Tokenizer:
    """The object of a package, told by its class so that no package is imported."""
    packages = {base.__module__.split(".")[0] for base in type(spec).__mro__}
    backend = getattr(spec, "backend_tokenizer", None)
    if backend is not None or "tokenizers" in packages:
        from roxxel.tokenizers import huggingface

        eos = getattr(spec, "eos_token", None)
        return huggingface.HuggingFace(backend or spec, separator_token=eos)
    if "sentencepiece" in packages:
        from roxxel.tokenizers import sentencepiece

        return sentencepiece.SentencePiece(spec.serialized_model_proto())
    if "tiktoken" in packages:
        from roxxel.tokenizers import tiktoken

        return tiktoken.TikToken(spec)
    raise ConfigError(
        f"tokenizer is {spec!r:.60} of type {type(spec).__name__}; {_EXPECTED}, or an "
        "object with encode, encode_batch, decode, vocab_size, name and fingerprint."
    )
