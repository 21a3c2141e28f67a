"""Data set builders: text or token ids in, a `Roxxel` out.

A data set is built with a progress bar the first time, into $ROXXEL_CACHE or
~/.cache/roxxel, and found there again by a hash of inputs and options. Processes that
ask for the same one at once build it once. Both sides of a split are built together.

All builders but `python_library_sources` take these keywords:

- `tokenizer`: what `roxxel.tokenizers.load` takes; the bytes of UTF-8 by default.
- `separator`: follows every document: an id, a list of ids, or text that names a
  token (for bytes any text). None: the tokenizer's own for text, NUL for bytes, and
  nothing for token ids. An empty one: nothing.
- `split`: "train" or "heldout" with a `heldout_fraction`, else None.
- `heldout_fraction`: expected share of documents held out, chosen by a hash of their
  content: the same text is on the same side wherever it stands.
- `cache_dir`: the data cache; $ROXXEL_CACHE or ~/.cache/roxxel by default.
- `processes`: that read and tokenize; the result does not depend on it.
- `dtype`: of the elements; the smallest that holds the vocabulary by default.

Empty texts and lines are left out. `roxxel.building.engine.build` makes a data set of
a source of your own, and writes to a place of your choice.
"""

import os
from typing import Any

from roxxel.building import engine, library, text
from roxxel.building.documents import Patterns
from roxxel.building.foreign import arrays as arrays
from roxxel.building.foreign import huggingface as huggingface
from roxxel.building.foreign import megatron as megatron
from roxxel.building.foreign import nanogpt as nanogpt
from roxxel.building.foreign import parquet as parquet
from roxxel.building.foreign import seqio as seqio
from roxxel.building.foreign import tf_data as tf_data
from roxxel.building.foreign import tfds as tfds
from roxxel.dataset import Roxxel


def python_library_sources(
    split: str = "train",
    *,
    cache_dir: str | os.PathLike | None = None,
    root: str | os.PathLike | None = None,
) -> Roxxel:
    """The `*.py` files of the running interpreter's own standard library.

    Without site-packages, dist-packages, test folders, `encodings/` (tables that
    repeat each other) and `_sysconfigdata*`; in path order, joined by a NUL byte that
    stands between them only. A file is held out if the first 8 hex digits of the
    SHA-256 of its path relative to the library, as a number, divide by 20. CPython
    3.11.7 has 10,158,709 bytes to train on (578 files) and 508,969 held out (33
    files); other versions have other files, so keep `metadata["content_sha256"]` with
    every score.

    Args:
        split: "train" or "heldout".
        cache_dir: The data cache; $ROXXEL_CACHE or ~/.cache/roxxel by default.
        root: Another folder to take for the standard library.

    Raises:
        ConfigError: No source file is there, or the cache cannot be written to.
    """
    return library.build(split, cache_dir, root)


def text_files(
    patterns: Patterns,
    *,
    unit: str = "file",
    encoding: str = "utf-8",
    errors: str = "strict",
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """The text of files (.gz, .bz2 and .xz decompressed), in path order by number.

    With `unit="file"` a document is a file as it is, line ends included, and held in
    memory one at a time; with `unit="line"` it is a line without its end. The other
    keywords are those of all builders.

    Args:
        patterns: A glob (`**` for any folders), a path, or a list of them.
        unit: "file" or "line".
        encoding: Of the files; documents are UTF-8 always.
        errors: What to do with text that does not decode: "strict" refuses with file
            and line, "replace" and "ignore" go on.

    Raises:
        ConfigError: An option is wrong, no file matches, or text does not decode.
    """
    source = text.TextSource(patterns, unit=unit, encoding=encoding, errors=errors)
    return engine.build(
        source,
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        processes=processes,
        dtype=dtype,
    )


def jsonl(
    patterns: Patterns,
    *,
    field: str = "text",
    errors: str = "strict",
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """A string of the JSON object on each line of files; blank lines are skipped.

    Args:
        patterns: As in `text_files`, compressed files too.
        field: Name of the field that holds the text.
        errors: As in `text_files`, for bytes and for halves of surrogate pairs.

    Raises:
        ConfigError: An option is wrong, no file matches, or a line is no JSON object
            with that field; names file and line.
    """
    source = text.JsonSource(patterns, field=field, errors=errors)
    return engine.build(
        source,
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        processes=processes,
        dtype=dtype,
    )
