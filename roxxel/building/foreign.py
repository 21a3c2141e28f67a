"""Data set builders for what other tools wrote; each needs only its own extra.

All take the options of `engine.build`: `tokenizer` for text, `separator` after each
document, `split` with `heldout_fraction`, `cache_dir`, `processes` and `dtype`.
"""

import os
from collections.abc import Callable
from typing import Any

from roxxel.building import arrays as array_sources
from roxxel.building import engine
from roxxel.building import megatron as megatron_sources
from roxxel.building import nanogpt as nanogpt_sources
from roxxel.building.documents import Patterns
from roxxel.dataset import Roxxel


def parquet(
    patterns: Patterns,
    *,
    column: str = "text",
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """A column of Parquet files: text, or lists of token ids; null rows are left out.

    Args:
        patterns: A glob, a path, a folder (every `*.parquet` in it, at any depth), or
            a list of them.
        column: Its name, or a path through structs such as `meta.text`.
        tokenizer: See `engine.build`, as for all that follow.
        separator: See there.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there.

    Raises:
        ConfigError: No file matches, a file is damaged, the column is not there or
            holds something else; names file and row.
    """
    from roxxel.building.parquet import ParquetSource

    return engine.build(
        ParquetSource(patterns, column=column),
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        processes=processes,
        dtype=dtype,
    )


def huggingface(
    data: Any,
    *,
    column: str = "text",
    data_split: str | None = None,
    key: str | None = None,
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """A column of a Hugging Face data set: text, or lists of token ids.

    Args:
        data: A `Dataset`, an `IterableDataset`, a dict of these, a folder made by
            `save_to_disk`, or json, jsonl, csv, tsv, parquet, arrow or txt files (a
            path, a glob or a list). Nothing is downloaded.
        column: Its name, or a path through structs such as `meta.text`.
        data_split: Which member of a dict of data sets.
        key: For an `IterableDataset`: names the content in place of a hash of it, for
            which everything is read once more.
        tokenizer: See `engine.build`, as for all that follow.
        separator: See there.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there.

    Raises:
        ConfigError: It is none of these, a file is damaged, the split or column is not
            there or holds something else; names the row.
    """
    from roxxel.building.huggingface import HuggingFaceSource

    return engine.build(
        HuggingFaceSource(data, column=column, data_split=data_split, key=key),
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        processes=processes,
        dtype=dtype,
    )


def arrays(
    inputs: array_sources.Inputs,
    *,
    key: str | None = None,
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """Token ids in arrays: a 1-D one is a document, each row of a 2-D one too.

    Args:
        inputs: An array, a list of arrays or of lists of ints, an iterable of them, a
            function that returns one, or paths of .npy (mapped) and .npz files.
        key: Names the content of what is no file, in place of a hash of it, for which
            everything is read once more.
        tokenizer: What made the ids, to be stored with them; see `engine.build`.
        separator: See there, as for all that follow.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there; also converts floats that are whole numbers, which are
            refused without.

    Raises:
        ConfigError: No file matches, a file is damaged, an array holds no token ids or
            has another shape, or an iterator was given, which is read only once.
    """
    return engine.build(
        array_sources.ArraySource(inputs, key=key, dtype=dtype),
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        processes=processes,
        dtype=dtype,
    )


def nanogpt(
    patterns: Patterns,
    *,
    end_of_text: int | None = None,
    stored_dtype: Any = "uint16",
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """Token ids of nanoGPT `.bin` files, with or without the header of llm.c.

    Args:
        patterns: A glob, a path, or a list of them.
        end_of_text: Id that ends documents, in which it stays. None makes each file
            one document.
        stored_dtype: Of files without a header, little-endian.
        tokenizer: What made the ids, to be stored with them; see `engine.build`.
        separator: See there, as for all that follow.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there.

    Raises:
        ConfigError: No file matches, or a size is not what header or dtype ask for.
    """
    source = nanogpt_sources.BinSource(
        patterns, end_of_text=end_of_text, stored_dtype=stored_dtype
    )
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


def megatron(
    prefixes: Patterns,
    *,
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """Documents of Megatron `.idx` and `.bin` pairs.

    Args:
        prefixes: `data/corpus` for `data/corpus.idx` and `data/corpus.bin`, either
            file's path, a glob of these, or a list.
        tokenizer: What made the ids, to be stored with them; see `engine.build`.
        separator: See there, as for all that follow.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there; also converts floats that are whole numbers, which are
            refused without.

    Raises:
        ConfigError: A file is missing, or an index is damaged or another one's.
    """
    return engine.build(
        megatron_sources.MegatronSource(prefixes, dtype=dtype),
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        processes=processes,
        dtype=dtype,
    )


def seqio(
    task_or_mixture: Any,
    *,
    feature: str = "targets",
    data_split: str = "train",
    seed: int = 0,
    key: str | None = None,
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """One epoch of a SeqIO task or mixture, unshuffled and untrimmed.

    A mixture ends, as in SeqIO, where the first of its tasks has no more examples.

    Args:
        task_or_mixture: Its registered name, or the object.
        feature: Such as `targets` or `inputs`.
        data_split: Of the task.
        seed: Of stochastic preprocessors and of sampling from the tasks of a mixture.
        key: Names the content in place of a hash of it, for which everything is read
            once more.
        tokenizer: What made the ids, to be stored with them; see `engine.build`.
        separator: See there, as for all that follow.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there.

    Raises:
        ConfigError: There is no such task, split or feature, or it holds no tokens.
    """
    from roxxel.building.tfdata import seqio_source

    source = seqio_source(
        task_or_mixture, feature=feature, data_split=data_split, seed=seed, key=key
    )
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


def tf_data(
    dataset: Callable[[], Any] | Any,
    *,
    feature: str | None,
    key: str | None = None,
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """A feature of the elements of a tf.data pipeline: text, or 1-D token ids.

    Args:
        dataset: A `tf.data.Dataset`, or a function that returns it: the same elements
            each time.
        feature: A key, or a path of keys such as `meta.text`; None takes elements that
            are tensors.
        key: Names the content in place of a hash of it, for which everything is read
            once more.
        tokenizer: See `engine.build`, as for all that follow.
        separator: See there.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there.

    Raises:
        ConfigError: The feature is not there or holds something else.
    """
    from roxxel.building.tfdata import TfDataSource

    return engine.build(
        TfDataSource(dataset, feature=feature, key=key),
        tokenizer=tokenizer,
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
        processes=processes,
        dtype=dtype,
    )


def tfds(
    name: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    feature: str = "text",
    data_split: str = "train",
    tokenizer: Any = None,
    separator: Any = None,
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
    processes: int = 1,
    dtype: Any = None,
) -> Roxxel:
    """A feature of a prepared TFDS data set, in the order of its files.

    Args:
        name: Of the builder, such as `lm1b:1.1.0`, or a folder with its files. Nothing
            is downloaded.
        data_dir: Where builders have their files; the library's default with None.
        feature: As in `tf_data`.
        data_split: A split, or a slice such as `train[:10%]`.
        tokenizer: See `engine.build`, as for all that follow.
        separator: See there.
        split: See there.
        heldout_fraction: See there.
        cache_dir: See there.
        processes: See there.
        dtype: See there.

    Raises:
        ConfigError: There are no such files, split or feature, or it holds no text and
            no token ids.
    """
    from roxxel.building.tfdata import TfdsSource

    source = TfdsSource(name, data_dir=data_dir, feature=feature, data_split=data_split)
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
