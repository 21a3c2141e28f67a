"""Documents divided into training and held-out text and written as `.rox` shards."""

import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

from roxxel.building.encode import Joined, Piece
from roxxel.data import reading_only
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError

ALL, TRAIN, HELDOUT = "all", "train", "heldout"
Counts = dict[str, dict[str, int]]  # side -> documents, elements
_WILD = "*?["


def check_split(split: str | None) -> None:
    """Raises ConfigError for another name than train or heldout."""
    if split not in (TRAIN, HELDOUT):
        raise ConfigError(f"split is {split!r}, expected 'train' or 'heldout'.")


def pattern(folder: str | os.PathLike, side: str) -> str:
    """Where the shards of `side` lie in a folder of the cache."""
    return os.path.join(folder, f"{side}_*.rox")


def location(output: str, side: str) -> str:
    """Where the shards of `side` lie beside each other at a place of the user's.

    `wiki_*.rox` becomes `wiki_train_*.rox`, `wiki.rox` becomes `wiki_train.rox`; both
    stay as they are for "all".
    """
    if side == ALL:
        return output
    folder, name = os.path.split(output)
    start = min((name.find(char) for char in _WILD if char in name), default=-1)
    if start < 0:
        stem, suffix = os.path.splitext(name)
        return os.path.join(folder, f"{stem}_{side}{suffix}")
    words = [name[:start].rstrip("_-"), side, name[start:]]
    return os.path.join(folder, "_".join(filter(None, words)))


def write(
    pieces: Iterable[Piece],
    locations: dict[str, str],
    *,
    separator: np.ndarray,
    dtype: np.dtype,
    metadata: dict[str, Any],
    spool_dir: str | os.PathLike,
    finished: frozenset[str] = frozenset(),
    **options: Any,
) -> Counts:
    """Writes both sides in one pass over `pieces`.

    The held-out documents wait in an unnamed file meanwhile.

    Args:
        pieces: The documents, joined.
        locations: Of the kept documents first, then of those held out, if any are.
        separator: Follows every document; of `dtype`, may be empty.
        dtype: Of the elements.
        metadata: Stored with both sides, beside the name of the side, and the mean
            length of a token of text with what is held out: with it losses become
            bits per byte.
        spool_dir: A folder with room for the held-out documents.
        finished: Sides that are there already and are not written.
        options: Of `Roxxel.write`.

    Returns:
        Documents and elements of each side, separators included.
    """
    reading_only.check("not written yet; the first training run writes it.")
    sides = list(locations)
    counts = {side: {"documents": 0, "elements": 0} for side in sides}
    options |= {"dtype": dtype, "separator": separator if separator.size else None}
    text = {"bytes": 0}  # held out

    def write_side(side: str, items: Iterable[np.ndarray], **more: Any) -> None:
        if side in finished:
            for _ in items:
                pass
            return
        facts = metadata | {"split": side} | more
        Roxxel(locations[side]).write(items, metadata=facts, **options)

    with tempfile.TemporaryFile(dir=spool_dir) as spool:
        kept = _kept(pieces, counts, separator, spool, text)
        write_side(sides[0], kept)
        for _ in kept:  # not read where everything was there
            pass
        for side in sides[1:]:
            more = _text_facts(text["bytes"], counts[side]["elements"], dtype)
            write_side(side, _spooled(spool, dtype), **more)
    return counts


def _kept(
    pieces: Iterable[Piece],
    counts: Counts,
    separator: np.ndarray,
    spool: IO[bytes],
    text: dict[str, int],
) -> Iterator[np.ndarray]:
    """What is kept, in order; what is held out goes to `spool`, joined."""
    kept_side, *held_side = counts
    for piece in pieces:
        if piece.kept.documents:
            _count(counts[kept_side], piece.kept, separator)
            yield piece.kept.elements
        if piece.held.documents:
            (side,) = held_side
            if counts[side]["documents"]:
                spool.write(separator.tobytes())
            _count(counts[side], piece.held, separator)
            spool.write(piece.held.elements.data)
            text["bytes"] += piece.held.num_bytes


def _count(side: dict[str, int], joined: Joined, separator: np.ndarray) -> None:
    side["documents"] += joined.documents
    side["elements"] += joined.elements.size + separator.size


def _text_facts(num_bytes: int, elements: int, dtype: np.dtype) -> dict[str, float]:
    """What evaluation needs of text; bytes need nothing."""
    if not num_bytes or dtype == np.uint8:
        return {}
    return {"bytes_per_token": num_bytes / elements}


def _spooled(spool: IO[bytes], dtype: np.dtype) -> list[np.ndarray]:
    spool.flush()
    size = os.fstat(spool.fileno()).st_size
    return [np.memmap(spool, dtype, "r")] if size else []


def folder_of(location: str) -> pathlib.Path:
    """The folder that the shards of `location` lie in, made if it is missing."""
    folder = pathlib.Path(os.path.dirname(location) or ".")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
