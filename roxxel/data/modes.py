"""What a write does with shards that are there already: never an accident."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from roxxel.data import (
    extension_format,
    items,
    paths,
    publish,
    resume,
    rox_format,
    writer_lock,
)
from roxxel.data.layout import Layout
from roxxel.data.reader import ShardReader
from roxxel.data.writer import write_shards
from roxxel.errors import ConfigError, ShardFormatError

MODES = ("new", "skip", "append", "overwrite")
_COPY_ELEMENTS = 1 << 20


def write(
    location: str | Sequence[str],
    documents: Iterable,
    layout: Layout,
    mode: str,
    *,
    is_resumed: bool = False,
) -> None:
    """Writes `documents` to `location`; see `Roxxel.write` for the modes.

    Raises:
        ConfigError: The location or the mode is wrong, or the shards that are there do
            not go with what is written.
    """
    if mode not in MODES:
        raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {mode!r}.")
    if is_resumed and mode not in ("new", "skip"):
        raise ConfigError(
            f"resume=True goes with mode='new' or 'skip', got {mode!r}: an append or"
            " overwrite that was cut off left the data as they were."
        )
    target = paths.write_target(location, numbered=layout.max_shard_bytes is not None)
    os.makedirs(target.directory or ".", exist_ok=True)
    if is_resumed or mode == "skip":
        existing = paths.find(location)
        is_settled = not os.path.exists(target.journal)
        if isinstance(location, str) and paths.is_pattern(
            location
        ):  # or others are taken for this data set
            _check_names(target, existing)
        if existing and is_settled and is_complete(read_shards(existing)):
            return  # also where nothing may be written
    with writer_lock.alone(target):
        publish.finish_publishing(target)
        publish.remove_leftovers(target)
        _write_alone(location, documents, layout, target, mode, is_resumed)


def _write_alone(location, documents, layout, target, mode, is_resumed) -> None:
    existing = paths.find(location)
    if is_resumed:
        _resume(documents, layout, target, existing)
    elif not existing:
        write_shards(documents, layout, target=target)
    elif mode == "new":
        raise paths.ShardsExistError(_exists_message(location, existing))
    elif mode == "append":
        _append(documents, layout, target, existing)
    elif mode == "overwrite" or not is_complete(read_shards(existing)):
        _check_names(target, existing)
        write_shards(documents, layout, target=target, stale=existing)


def read_shards(files: Sequence[str]) -> list[rox_format.Shard]:
    """The tails of `files`, all of one dtype.

    Raises:
        ShardFormatError: A file is no complete shard, or two differ in dtype.
    """
    shards = [rox_format.read_shard(path) for path in files]
    typed = [s for s in shards if s.records]
    for shard in typed:
        if shard.dtype != typed[0].dtype:
            raise ShardFormatError(
                f"{shard.path}: dtype {shard.dtype.name}, expected"
                f" {typed[0].dtype.name} as in {typed[0].path}; read them apart."
            )
        theirs = rox_format.item_shape(typed[0])
        if rox_format.item_shape(shard) != theirs:
            raise ShardFormatError(
                f"{shard.path}: items of shape {rox_format.item_shape(shard)}, expected"
                f" {theirs} as in {typed[0].path}; read them apart."
            )
    return shards


def is_complete(shards: list[rox_format.Shard]) -> bool:
    """Whether the writes that made `shards` came to their end, as far as files tell."""
    expected = 0
    for shard in shards:
        number = shard.extension.get("shard", 0)
        if number != expected:
            return False
        expected = 0 if shard.extension.get("last", True) else number + 1
    return expected == 0


def _resume(documents, layout: Layout, target: paths.Target, existing: list[str]):
    shards = read_shards(existing)
    if existing and is_complete(shards):
        return
    resume.check_shards(shards, target)
    write_shards(documents, layout, target=target, stored=shards)


def _append(documents, layout: Layout, target: paths.Target, existing: list[str]):
    _check_names(target, existing)
    shards = read_shards(existing)
    if not is_complete(shards):
        raise ConfigError(
            f"{shards[-1].path} is not the last shard of its write, which was cut off;"
            " continue it with resume=True or write again with mode='overwrite'."
        )
    layout = _layout_of_append(shards, layout)
    if target.single is None:
        number = 1 + max(target.number(path) or 0 for path in existing)
        write_shards(documents, layout, target=target, first_number=number, stale=[])
    else:
        prefix = _pieces(shards) if layout.dtype is not None else ()
        write_shards(documents, layout, target=target, prefix=prefix, stale=existing)


def _layout_of_append(shards: list[rox_format.Shard], layout: Layout) -> Layout:
    """`layout` with what the shards that are there have fixed."""
    filled = [s for s in shards if s.records]
    metadata = metadata_of(shards)
    if not filled:
        return dataclasses.replace(layout, metadata=metadata | layout.metadata)
    _check_tokenizer(layout.metadata.get("tokenizer"), filled[-1])
    if layout.metadata:
        kept = {key: metadata[key] for key in metadata if key == "tokenizer"}
        metadata = layout.metadata | kept
    dtype, extension = filled[-1].dtype, filled[-1].extension
    item_shape = rox_format.item_shape(filled[-1])
    if layout.item_shape not in ((), item_shape):
        raise ConfigError(
            f"cannot append items of shape {layout.item_shape} to {filled[-1].path},"
            f" which holds {item_shape or 'sequences'}; use mode='overwrite'."
        )
    if layout.dtype is not None and layout.dtype != dtype:
        raise ConfigError(
            f"cannot append {layout.dtype.name} to {filled[-1].path}, which holds"
            f" {dtype.name}; leave dtype out or use mode='overwrite'."
        )
    separator = None
    if layout.separator is not None:
        separator = items.separator_elements(layout.separator, dtype)
    theirs = extension.get("separator")
    if "separator" in extension and not _same(separator, theirs, dtype):
        raise ConfigError(
            f"cannot append with separator {layout.separator!r} to {filled[-1].path},"
            f" written with separator {theirs}; use the same or mode='overwrite'."
        )
    return dataclasses.replace(
        layout, dtype=dtype, metadata=metadata, item_shape=item_shape
    )


def metadata_of(shards: list[rox_format.Shard]) -> dict:
    """What the caller of `write` stored with the data, {} if nothing."""
    return extension_format.joined_metadata(shards[0].extension) if shards else {}


def _check_tokenizer(now, shard: rox_format.Shard) -> None:
    """Appended ids must come from the same tokenizer; one not named is the same."""
    before = extension_format.joined_metadata(shard.extension).get("tokenizer")
    if now is not None and now != before:
        raise ConfigError(
            f"cannot append ids of tokenizer {now!r:.200} to {shard.path}, written"
            f" with tokenizer {before!r:.200}; use the same or mode='overwrite'."
        )


def _same(separator: np.ndarray | None, theirs, dtype: np.dtype) -> bool:
    if separator is None or theirs is None:
        return separator is theirs
    return np.array(theirs).astype(dtype).tobytes() == separator.tobytes()


def _pieces(shards: list[rox_format.Shard]) -> Iterator[np.ndarray]:
    reader = ShardReader(shards, shards[0].dtype)
    if None in reader.item_shape:
        yield from (reader.record(i).reshape(-1) for i in range(reader.num_records))
        return
    for start in range(0, reader.num_elements, _COPY_ELEMENTS):
        stop = min(start + _COPY_ELEMENTS, reader.num_elements)
        yield reader.elements(start, stop)


def _check_names(target: paths.Target, existing: list[str]) -> None:
    for path in existing:
        if path != target.single and target.number(path) is None:
            raise ConfigError(
                f"{path} is read as part of this data set but has a name that is not"
                f" written here ({target.path(0)}, ...); move it or write elsewhere."
            )


def _exists_message(location, existing: list[str]) -> str:
    for path in existing:
        try:
            rox_format.read_shard(path)
        except ShardFormatError:
            return (
                f"{location}: {path} is there and is no whole .rox file: its footer is"
                " missing or damaged, which no write that was cut off leaves. Pass"
                " mode='overwrite' to replace it, or move it away."
            )
    try:
        cut_off = not is_complete(read_shards(existing))
    except ShardFormatError:  # they do not go together
        cut_off = False
    state = "an unfinished write left" if cut_off else "there is already"
    others = "resume=True to continue it"
    if not cut_off:
        others = "'append' to add to them or 'skip' to keep them"
    return (
        f"{location}: {state} {existing[0]} ({len(existing)} shards in all). Pass"
        f" mode='overwrite' to replace them, {others}."
    )
