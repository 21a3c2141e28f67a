"""Documents of a part to elements: tokenized, joined, divided into sides.

Documents go in batches of about a MB, so that each costs little more than its share
of a join; what comes out does not depend on where batches end.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from roxxel.building.recipe import TEXT, Recipe
from roxxel.building.source import Document, Part
from roxxel.data import dtypes
from roxxel.errors import ConfigError

_BATCH_BYTES = 1 << 20
_MAX_BATCH_DOCUMENTS = 4096


@dataclasses.dataclass(frozen=True)
class Joined:
    """Elements of documents with separators between them.

    Attributes:
        elements: all of them.
        documents: how many they are.
        num_bytes: of their text; 0 where they were token ids.
    """

    elements: np.ndarray
    documents: int
    num_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some documents of a part in order: those that are kept and those held out."""

    kept: Joined
    held: Joined


def pieces(part: Part, recipe: Recipe) -> Iterator[Piece]:
    """All documents of `part` that are not empty.

    Raises:
        ConfigError: A document cannot be encoded; names it.
    """
    prepare, join = (_texts, _join_texts) if recipe.kind == TEXT else (_ids, _join_ids)
    first = 0
    for batch in _batches(part):
        documents = _named(part, recipe, first, batch, prepare)
        kept, held = _divide(documents, recipe.heldout_limit)
        yield Piece(join(kept, recipe), join(held, recipe))
        first += len(batch)


def _batches(part: Part) -> Iterator[list]:
    if hasattr(part, "batches"):
        yield from part.batches()
        return
    batch: list[Document] = []
    num_bytes = 0
    for document in part.documents():
        batch.append(document)
        num_bytes += getattr(document, "nbytes", 0) or len(document)
        if num_bytes >= _BATCH_BYTES or len(batch) >= _MAX_BATCH_DOCUMENTS:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _named(
    part: Part,
    recipe: Recipe,
    first: int,
    batch: Sequence[Document],
    prepare: Callable[[Sequence[Document], Recipe], list],
) -> list:
    """What `prepare` makes of the batch; an error says for which document."""
    try:
        return prepare(batch, recipe)
    except (ValueError, TypeError):
        for index, document in enumerate(batch, first):
            try:
                prepare([document], recipe)
            except (ValueError, TypeError) as err:
                path = getattr(part, "path", None)
                where = f" of {path}" if path else ""
                raise ConfigError(
                    f"{recipe.name}: document {index}{where}: {err}."
                ) from err
        raise


def _texts(batch: Sequence[Document], recipe: Recipe) -> list[bytes]:
    """UTF-8 texts that are not empty."""
    texts = [text for text in batch if type(text) is bytes]
    if len(texts) < len(batch):
        texts = [_utf8(text) for text in batch]
    return list(filter(None, texts))


def _utf8(document: Document) -> bytes:
    if isinstance(document, str):
        try:
            return document.encode()
        except UnicodeEncodeError as err:
            bad = document[err.start]
            raise ValueError(
                f"character {err.start} is {bad!a}, which has no UTF-8 (half of a "
                "surrogate pair): mend the text"
            ) from err
    if isinstance(document, bytes):
        return document
    raise TypeError(f"is {type(document).__name__}, the documents before are text")


def _ids(batch: Sequence[Document], recipe: Recipe) -> list[np.ndarray]:
    """Token ids that are not empty, in the dtype of the recipe."""
    arrays = [_id_array(document) for document in batch]
    arrays = [array for array in arrays if array.size]
    if len(arrays) > 1 and len({array.dtype for array in arrays}) == 1:
        _check_ids(np.concatenate(arrays), recipe)
    else:
        for array in arrays:
            _check_ids(array, recipe)
    return [array.astype(recipe.dtype, copy=False) for array in arrays]


def _id_array(document: Document) -> np.ndarray:
    if isinstance(document, str | bytes):
        if document:
            raise TypeError("is text, the documents before are token ids")
        return np.empty(0, np.uint8)
    array = np.asarray(document).reshape(-1)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"holds {array.dtype.name}, expected integers")
    return array


def _check_ids(array: np.ndarray, recipe: Recipe) -> None:
    if recipe.tokenizer is not None:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= recipe.tokenizer.vocab_size:
            raise ValueError(
                f"holds id {low if low < 0 else high}, {recipe.tokenizer.name} has "
                f"{recipe.tokenizer.vocab_size} ids"
            )
    misfit = dtypes.first_misfit(array, recipe.dtype)
    if misfit is not None:
        raise ValueError(
            f"holds {array[misfit]}, which does not fit {recipe.dtype.name}: give a "
            "wider dtype="
        )


def _divide(documents: list, limit: int) -> tuple[list, list]:
    """Those kept and those held out, by a hash of their content."""
    if not limit:
        return documents, []
    sides: tuple[list, list] = ([], [])
    for document in documents:
        raw = document
        if not isinstance(document, bytes):
            raw = document.astype("<i8").tobytes()
        sides[first_hash_bits(raw) < limit].append(document)
    return sides


def first_hash_bits(data: bytes) -> int:
    """First 32 bits of the SHA-256 of `data`, its first 8 hex digits as a number."""
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big")


def _join_texts(texts: list[bytes], recipe: Recipe) -> Joined:
    if not texts:
        return Joined(np.empty(0, recipe.dtype), 0)
    tokenizer = recipe.tokenizer
    assert tokenizer is not None
    num_bytes = sum(map(len, texts))
    if hasattr(tokenizer, "encode_joined"):
        elements = tokenizer.encode_joined(texts, recipe.separator)
        return Joined(_fit(elements, recipe), len(texts), num_bytes)
    strings = [text.decode() for text in texts]
    if hasattr(tokenizer, "encode_batch"):
        encoded = tokenizer.encode_batch(strings)
    else:
        encoded = [tokenizer.encode(text) for text in strings]
    joined = _join_ids([np.asarray(ids) for ids in encoded if len(ids)], recipe)
    return dataclasses.replace(joined, num_bytes=num_bytes)


def _join_ids(arrays: list[np.ndarray], recipe: Recipe) -> Joined:
    if not arrays:
        return Joined(np.empty(0, recipe.dtype), 0)
    count = len(arrays)
    if recipe.separator.size:
        spaced = [recipe.separator] * (2 * count - 1)
        spaced[::2] = arrays
        arrays = spaced
    joined = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    return Joined(_fit(joined, recipe), count)


def _fit(elements: np.ndarray, recipe: Recipe) -> np.ndarray:
    """`elements` in the dtype of the recipe, every value unchanged."""
    misfit = dtypes.first_misfit(elements, recipe.dtype)
    if misfit is not None:
        assert recipe.tokenizer is not None  # ids were checked before
        raise ConfigError(
            f"{recipe.tokenizer.name} gave id {elements[misfit]}, above its vocab_size "
            f"of {recipe.tokenizer.vocab_size} and dtype {recipe.dtype.name}."
        )
    return elements.astype(recipe.dtype, copy=False)
