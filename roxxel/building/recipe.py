"""What documents become: tokenizer, separator, dtype and side, checked once."""

import dataclasses
from typing import Any

import numpy as np

from roxxel import tokenizers
from roxxel.building.source import Document, Source
from roxxel.data import dtypes
from roxxel.errors import ConfigError
from roxxel.tokenizers.bytes import Bytes

TEXT, IDS = "text", "ids"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a process needs to turn the documents of a part into elements.

    Attributes:
        name: Of the source, for messages.
        kind: "text" or "ids": what the documents are.
        tokenizer: Encodes text; of ids, the one that made them, if it was given.
        separator: Ids between documents, `dtype` [n], often none or one.
        dtype: Of all elements.
        heldout_limit: A document is held out if the first 32 bits of its hash are less.
    """

    name: str
    kind: str
    tokenizer: tokenizers.Tokenizer | None
    separator: np.ndarray
    dtype: np.dtype
    heldout_limit: int = 0


def make(
    source: Source,
    *,
    tokenizer: tokenizers.Tokenizer | None,
    separator: Any,
    dtype: Any,
    heldout_fraction: float,
) -> Recipe:
    """The recipe for the documents of `source`; reads the first where it must.

    Raises:
        ConfigError: Options do not go with each other or with the documents.
    """
    first = _first_document(source)
    kind = _kind_of(first)
    if kind == TEXT and tokenizer is None:
        tokenizer = Bytes()
    if separator is None and kind == IDS:
        separator = []  # ids hold their own, if any
    ids = _separator_ids(separator, tokenizer)
    chosen = _element_dtype(tokenizer, ids, dtype, first)
    return Recipe(
        name=source.name,
        kind=kind,
        tokenizer=tokenizer,
        separator=np.array(ids, chosen),
        dtype=chosen,
        heldout_limit=int(heldout_fraction * 2**32),
    )


def smallest_dtype(vocab_size: int) -> np.dtype:
    """uint8 for 256 ids, uint16 for 65,536, then int32 and uint32."""
    for name, size in (("uint8", 2**8), ("uint16", 2**16), ("int32", 2**31)):
        if vocab_size <= size:
            return np.dtype(name)
    return np.dtype("uint32" if vocab_size <= 2**32 else "int64")


def parse_dtype(dtype: Any) -> np.dtype | None:
    """The integer dtype called `dtype`; None stays None.

    Raises:
        ConfigError: It is unknown or does not hold integers.
    """
    if dtype is None:
        return None
    try:
        chosen = dtypes.parse(dtype)
    except ValueError as err:
        raise ConfigError(f"{err}.") from err
    if chosen.kind not in "iu":
        raise ConfigError(f"dtype is {chosen.name}, expected integers for token ids.")
    return chosen


def _first_document(source: Source) -> Document:
    """The first document that is not empty; b"" where the source says that it is text.

    Also b"" when there is none.
    """
    if getattr(source, "kind", None) == TEXT:
        return b""
    for part in source.parts():
        for document in part.documents():
            if len(document):
                return document
    return b""


def _kind_of(document: Document) -> str:
    return TEXT if isinstance(document, str | bytes) else IDS


def _separator_ids(separator: Any, tokenizer: tokenizers.Tokenizer | None) -> list[int]:
    """Ids of the separator; None asks the tokenizer, an empty one is none."""
    if separator is None:
        own = getattr(tokenizer, "separator_id", None)
        return [] if own is None else [int(own)]
    if isinstance(separator, str | bytes):
        return _separator_text(separator, tokenizer) if separator else []
    values = np.asarray(separator).reshape(-1)
    if not values.size:
        return []
    if values.dtype.kind not in "iu" or int(values.min()) < 0:
        raise ConfigError(
            f"separator is {separator!r}, expected ids of 0 or more, text, or an empty "
            "one for none."
        )
    return values.tolist()


def _separator_text(
    separator: str | bytes, tokenizer: tokenizers.Tokenizer | None
) -> list[int]:
    if tokenizer is None:
        raise ConfigError(
            f"separator {separator!r} is text, the documents are token ids: give its "
            "id, e.g. separator=0."
        )
    raw = separator.encode() if isinstance(separator, str) else separator
    text = raw.decode("utf-8", "replace")
    token_id = getattr(tokenizer, "token_id", lambda _: None)(text)
    if token_id is not None:
        return [token_id]
    if isinstance(tokenizer, Bytes):
        return list(raw)
    raise ConfigError(
        f"separator {separator!r} is no token of {tokenizer.name}: give a token, its "
        "id, or an empty one for none."
    )


def _element_dtype(
    tokenizer: tokenizers.Tokenizer | None,
    separator: list[int],
    dtype: Any,
    first: Document,
) -> np.dtype:
    """The dtype asked for, else the smallest of the vocabulary, else the ids' own."""
    chosen = parse_dtype(dtype)
    greatest = max([0, *separator])
    if tokenizer is not None:
        greatest = max(greatest, tokenizer.vocab_size - 1)
        chosen = chosen or smallest_dtype(greatest + 1)
    elif chosen is None:
        chosen = _native(np.asarray(first).dtype)
    if greatest > np.iinfo(chosen).max:
        what = "the separator" if tokenizer is None else f"the ids of {tokenizer.name}"
        raise ConfigError(
            f"dtype {chosen.name} holds up to {np.iinfo(chosen).max}, {what} need "
            f"{greatest}: give dtype={smallest_dtype(greatest + 1).name!r} or leave it "
            "out."
        )
    return chosen


def _native(dtype: np.dtype) -> np.dtype:
    if dtype.kind not in "iu":
        raise ConfigError(f"documents are {dtype.name}, expected text or integers.")
    return dtype.newbyteorder("=")
