"""Any source of documents as `.rox` shards: tokenized, in parallel, built once.

    parts -> documents -> batches -> ids and separators -> Roxxel.write

The separator follows every document that is not empty, as in `Roxxel.write`. What is
written does not depend on the number of processes.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from roxxel import tokenizers
from roxxel.building import cache, encode, recipe, splits, workers
from roxxel.building.source import Part, Source
from roxxel.data import modes, paths
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.progress import Progress

_CODE_VERSION = 2  # another one builds anew; raise it when the bytes would differ
_MAX_SHARD_BYTES = 1 << 30
_KB = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What is made of a source, and where it goes; see `build`."""

    tokenizer: Any = None
    separator: Any = None
    split: str | None = None
    heldout_fraction: float = 0.0
    cache_dir: str | os.PathLike | None = None
    output: str | os.PathLike | None = None
    processes: int = 1
    dtype: Any = None
    max_shard_bytes: int | None = None
    mode: str = "new"
    resume: bool = False

    def __post_init__(self):
        if not 0 <= self.heldout_fraction < 1:
            raise ConfigError(
                f"heldout_fraction is {self.heldout_fraction!r}, expected 0 to below 1."
            )
        if not isinstance(self.processes, int) or self.processes < 1:
            raise ConfigError(
                f"processes is {self.processes!r}, expected a number of at least 1."
            )
        if not self.heldout_fraction and self.split is not None:
            raise ConfigError(
                f"split is {self.split!r} but heldout_fraction is 0: give the fraction "
                "to hold out, or no split."
            )
        if self.heldout_fraction and (self.output is None or self.split is not None):
            splits.check_split(self.split)
        recipe.parse_dtype(self.dtype)

    @property
    def sides(self) -> list[str]:
        """The sides that are written, kept documents first."""
        if self.heldout_fraction:
            return [splits.TRAIN, splits.HELDOUT]
        return [splits.ALL]

    @property
    def side(self) -> str:
        """The side that the caller gets."""
        return self.split or self.sides[0]


def build(
    source: Source,
    *,
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    output: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
    max_shard_bytes: int | None = None,
    mode: str = "new",
    resume: bool = False,
) -> Roxxel:
    """The documents of `source` as a data set, built the first time.

    Args:
        source: Text or token ids.
        tokenizer: Anything that `roxxel.tokenizers.load` takes; UTF-8 bytes by
            default. For token ids the one that made them: they are checked against
            its vocabulary, and it is stored with them.
        separator: Follows every document: an id, a list of ids, or text that names a
            token (for bytes any text). None: the tokenizer's own for text, and
            nothing for token ids. An empty one ("" or []): nothing.
        split: "train" or "heldout" with a `heldout_fraction`, else None.
        heldout_fraction: Expected share of documents held out, chosen by a hash of
            their content: the same text is on the same side wherever it stands.
        cache_dir: The data cache; $ROXXEL_CACHE or ~/.cache/roxxel by default.
        output: Write here instead of into the cache, e.g. 'data/wiki_*.rox'; with a
            `heldout_fraction` to `data/wiki_train_*.rox` and `wiki_heldout_*.rox`.
        processes: That read and tokenize. The result does not depend on it. Worker
            processes import roxxel and not the main program, which needs no
            `if __name__ == "__main__"` for them; so what a source or tokenizer of
            your own consists of has to live in a module.
        dtype: Of the elements; the smallest that holds the vocabulary by default,
            that of token ids without a tokenizer.
        max_shard_bytes: As in `Roxxel.write`; 1 GiB by default for a pattern.
        mode: As in `Roxxel.write`, with `output`.
        resume: As in `Roxxel.write`, with `output`: the same call goes on where a
            killed one stopped.

    Raises:
        ConfigError: An option or a document is wrong; names it.
    """
    options = Options(
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        output=output,
        processes=processes,
        dtype=dtype,
        max_shard_bytes=max_shard_bytes,
        mode=mode,
        resume=resume,
    )
    return run(source, options)[0]


def run(source: Source, options: Options) -> tuple[Roxxel, splits.Counts]:
    """`build`, and the documents and elements of each side.

    The counts are empty where nothing had to be written to an `output`.
    """
    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = tokenizers.load(options.tokenizer)
    options = dataclasses.replace(options, tokenizer=tokenizer)
    if options.output is None:
        return _cached(source, options)
    output = os.fspath(options.output)
    locations = {side: splits.location(output, side) for side in options.sides}
    counts = _write(source, options, locations)
    return Roxxel(locations[options.side]), counts


def _cached(source: Source, options: Options) -> tuple[Roxxel, splits.Counts]:
    if options.mode != "new" or options.resume:
        raise ConfigError("mode= and resume= go with output=, not with the cache.")

    def build_in(folder: pathlib.Path) -> dict:
        locations = {side: splits.pattern(folder, side) for side in options.sides}
        return _write(source, options, locations)

    folder, counts = cache.find_or_build(
        source.name, _key(source, options), build_in, cache_dir=options.cache_dir
    )
    check_filled(source.name, counts, options.side, options.heldout_fraction)
    return Roxxel(splits.pattern(folder, options.side)), counts


def check_filled(
    name: str, counts: splits.Counts, side: str, heldout_fraction: float
) -> None:
    """Raises ConfigError when no document is on the side that the caller wants."""
    if not counts[side]["documents"]:
        others = sum(count["documents"] for count in counts.values())
        raise ConfigError(
            f"{name}: none of the {others} documents with text falls into "
            f"{side!r} (heldout_fraction={heldout_fraction})."
        )


def _key(source: Source, options: Options) -> dict:
    """All that the content of the data set depends on."""
    dtype = recipe.parse_dtype(options.dtype)
    tokenizer = options.tokenizer
    return {
        "version": _CODE_VERSION,
        "source": source.key(),
        "tokenizer": tokenizer and tokenizers.describe(tokenizer),
        "separator": repr(options.separator),
        "heldout_fraction": options.heldout_fraction,
        "dtype": dtype and dtype.name,
        "max_shard_bytes": options.max_shard_bytes,
    }


def _write(
    source: Source, options: Options, locations: dict[str, str]
) -> splits.Counts:
    made = recipe.make(
        source,
        tokenizer=options.tokenizer,
        separator=options.separator,
        dtype=options.dtype,
        heldout_fraction=options.heldout_fraction,
    )
    metadata = _metadata(source, made, options)
    finished = _finished(locations, options, metadata)
    if len(finished) == len(locations):
        return {}
    first = locations[options.sides[0]]
    limit = options.max_shard_bytes
    if limit is None and paths.is_pattern(first):
        limit = _MAX_SHARD_BYTES
    folder = splits.folder_of(first)
    return splits.write(
        _pieces(source, made, options.processes, folder),
        locations,
        separator=made.separator,
        dtype=made.dtype,
        metadata=metadata,
        spool_dir=folder,
        finished=finished,
        max_shard_bytes=limit,
        mode=options.mode,
        resume=options.resume,
    )


def _metadata(source: Source, made: recipe.Recipe, options: Options) -> dict:
    described = getattr(source, "describe", dict)()
    metadata = {"builder": source.name} | described
    if made.tokenizer is not None:
        metadata["tokenizer"] = tokenizers.describe(made.tokenizer)
    if options.heldout_fraction:
        metadata["heldout_fraction"] = options.heldout_fraction
    return metadata


def _finished(
    locations: dict[str, str], options: Options, metadata: dict
) -> frozenset[str]:
    """Sides that are complete, where complete ones stay; else nothing.

    Raises:
        ConfigError: What is there was built from something else.
    """
    if not options.resume and options.mode != "skip":
        return frozenset()
    found = {side: paths.find(place) for side, place in locations.items()}
    done = {side: modes.read_shards(files) for side, files in found.items() if files}
    done = {side: shards for side, shards in done.items() if modes.is_complete(shards)}
    for side, shards in done.items():
        stored = modes.metadata_of(shards)
        for name, value in metadata.items():
            if options.resume and stored.get(name, value) != value:
                raise ConfigError(
                    f"{locations[side]} is there and was built with {name} "
                    f"{stored[name]!r:.80}, this is {value!r:.80}: choose another "
                    "place, or mode='overwrite'."
                )
    return frozenset(done)


def _pieces(
    source: Source, made: recipe.Recipe, processes: int, folder: pathlib.Path
) -> Iterator[encode.Piece]:
    """Everything in order, by this process or by several; nothing is no data set."""
    parts = source.parts()
    scale, unit = (_KB, "kB") if source.unit == "bytes" else (1, source.unit)
    total = -(-sum(part.size for part in parts) // scale)
    documents = 0
    with Progress(total, source.name, unit) as bar:

        def on_done(amount: int) -> None:
            bar.set(amount // scale)

        if processes == 1:
            made_pieces = _in_process(parts, made, on_done)
        else:
            made_pieces = workers.pieces(parts, made, processes, folder, on_done)
        for piece in made_pieces:
            documents += piece.kept.documents + piece.held.documents
            yield piece
        bar.set(total)
    if not documents:
        raise ConfigError(f"{source.name}: none of the 0 documents with text is left.")
    getattr(source, "check_unchanged", lambda: None)()


def _in_process(
    parts: Sequence[Part], made: recipe.Recipe, on_done: Callable[[int], None]
) -> Iterator[encode.Piece]:
    before = 0
    for part in parts:
        for piece in encode.pieces(part, made):
            on_done(before + getattr(part, "done", 0))
            yield piece
        before += part.size
        on_done(before)
