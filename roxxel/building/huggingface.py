"""Hugging Face `datasets` as a source: objects, saved folders and local data files.

Nothing is downloaded. Data files are streamed, without a copy in the library's cache.
"""

import glob
import os
import pathlib
from collections.abc import Iterator
from typing import Any, cast

from roxxel import extras
from roxxel.building import arrow, input_files, tokens
from roxxel.building.documents import Patterns
from roxxel.building.huggingface_parts import StreamPart, TablePart, file_errors
from roxxel.building.input_files import InputFiles
from roxxel.errors import ConfigError

try:
    import datasets
except ImportError as err:
    raise extras.missing("roxxel.building.huggingface", "datasets", err) from err

_BUILDERS = {
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# What yields the same examples in the same order one shard after the other.
_SHARD_BY_SHARD = (
    "ExamplesIterable",
    "ArrowExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "FormattedExamplesIterable",
)


class HuggingFaceSource:
    """A column of text or token ids of a data set of the `datasets` library.

    Args:
        data: A `Dataset`, an `IterableDataset`, a dict of these, a folder made by
            `save_to_disk`, or json, jsonl, csv, tsv, parquet, arrow or txt files (a
            path, a glob or a list).
        column: Its name, or a path through structs such as `meta.text`.
        data_split: Which member of a dict of data sets.
        key: For an `IterableDataset`: names the content in place of a hash of it, for
            which everything is read once more.

    Raises:
        ConfigError: It is none of these, or the split or column is not there.
    """

    name = "huggingface"
    unit = "rows"

    def __init__(
        self,
        data: Any,
        *,
        column: str = "text",
        data_split: str | None = None,
        key: str | None = None,
    ):
        self._files: InputFiles | None = None
        self._key = key
        self._where = "data set"
        self.column = column
        if isinstance(data, str | os.PathLike | list | tuple):
            data = self._from_disk(data)
        if isinstance(data, dict):
            data = _member(data, data_split, self._where)
        elif data_split is not None:
            raise ConfigError(
                f"data_split is {data_split!r}, but {self._where} is a single data "
                "set: leave it out."
            )
        if not isinstance(data, datasets.Dataset | datasets.IterableDataset):
            raise ConfigError(
                f"data is {type(data).__name__}, expected a Dataset, IterableDataset "
                "or DatasetDict of the datasets library, or a path."
            )
        self._data = data
        if isinstance(data, datasets.Dataset):
            arrow.find_column(data.features.arrow_schema, column, self._where)

    def key(self) -> dict:
        """States of files, the data set's fingerprint, or a hash of the content."""
        options = {"column": self.column}
        if self._files:
            return {"inputs": self._files.states, "options": options}
        if isinstance(self._data, datasets.Dataset):
            return {"inputs": self._data._fingerprint, "options": options}
        if self._key is None:
            everything = (doc for part in self.parts() for doc in part.documents())
            self._key = tokens.content_hash(everything)
        return {"inputs": self._key, "options": options}

    def describe(self) -> dict:
        """The column; number and size of files."""
        files = self._files.describe() if self._files else {}
        return {"column": self.column} | files

    def check_unchanged(self) -> None:
        """Raises ConfigError when a file changed since this was made."""
        if self._files:
            self._files.check_unchanged()

    def parts(self) -> list[TablePart] | list[StreamPart]:
        """Ranges of rows; shards of an `IterableDataset` if they are in its order."""
        if isinstance(self._data, datasets.Dataset):
            return list(self._table_parts(self._data))
        return list(self._stream_parts(self._data))

    def _table_parts(self, data: datasets.Dataset) -> Iterator[TablePart]:
        chosen = data.select_columns([self._top_column(data.column_names)])
        data = cast(datasets.Dataset, chosen)
        num_bytes = data.data.nbytes
        rows = max(1, tokens.PART_BYTES * len(data) // max(1, num_bytes))
        batch_rows = arrow.batch_rows(len(data), num_bytes)
        for start in range(0, len(data), rows):
            stop = min(start + rows, len(data))
            yield TablePart(data, self.column, start, stop, batch_rows)

    def _stream_parts(self, data: datasets.IterableDataset) -> Iterator[StreamPart]:
        files = self._files.paths if self._files else []
        with file_errors(files):
            names = data.column_names
        if names:
            data = data.select_columns([self._top_column(names)])
        if data.num_shards < 2 or not _is_shard_by_shard(data):
            yield StreamPart(data, self.column, self._where, bool(self._files))
            return
        for i in range(data.num_shards):
            shard = data.shard(data.num_shards, i)
            named = len(files) == data.num_shards
            where = files[i] if named else f"shard {i} of {self._where}"
            yield StreamPart(shard, self.column, where, named)

    def _top_column(self, names: list[str]) -> str:
        top = self.column if self.column in names else self.column.split(".")[0]
        if top in names:
            return top
        raise ConfigError(
            f"{self._where}: no column {self.column!r}; columns there: "
            f"{', '.join(map(repr, names))}; choose with column=."
        )

    def _from_disk(self, paths: Patterns) -> Any:
        if isinstance(paths, str | os.PathLike) and os.path.isdir(paths):
            self._where = os.fspath(paths)
            return _saved(self._where)
        self._files = input_files.find(paths)
        files = self._files.paths
        self._where = files[0] if len(files) == 1 else f"{files[0]} and others"
        return _streamed(files)


def _saved(folder: str) -> Any:
    try:
        return datasets.load_from_disk(folder)
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"{folder}: is a folder that save_to_disk of the datasets library did not "
            "make; give its files instead, e.g. folder/*.parquet."
        ) from err


def _streamed(files: list[str]) -> datasets.IterableDataset:
    kinds = {_kind(path) for path in files}
    if len(kinds) > 1:
        raise ConfigError(
            f"files of several kinds: {', '.join(sorted(map(repr, kinds)))}, expected "
            "one kind at a time."
        )
    ending = kinds.pop()
    options: dict = {"delimiter": "\t"} if ending == ".tsv" else {}
    with file_errors(files):
        return datasets.load_dataset(
            _BUILDERS[ending],
            data_files=list(map(glob.escape, files)),
            split="train",
            streaming=True,
            **options,
        )


def _kind(path: str) -> str:
    name = pathlib.Path(path)
    if name.suffix in _COMPRESSED:
        name = name.with_suffix("")
    if name.suffix not in _BUILDERS:
        raise ConfigError(
            f"{path}: ending {name.suffix!r}, expected one of "
            f"{', '.join(_BUILDERS)} (and of {', '.join(_COMPRESSED)} behind it)."
        )
    return name.suffix


def _member(data: dict, split: str | None, where: str) -> Any:
    if split in data:
        return data[split]
    problem = "holds several data sets" if split is None else f"no split {split!r}"
    raise ConfigError(
        f"{where}: {problem}; choose with data_split= one of "
        f"{', '.join(map(repr, data))}."
    )


def _is_shard_by_shard(data: datasets.IterableDataset) -> bool:
    """Whether its shards, one after the other, are what iterating it yields."""
    step = data._ex_iterable
    while step is not None:
        if type(step).__name__ not in _SHARD_BY_SHARD:
            return False
        step = getattr(step, "ex_iterable", None)
    return data._distributed is None
