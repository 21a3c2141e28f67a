"""Hugging Face `datasets` as a source: objects, saved folders and local data files.

Nothing is downloaded. Data files are streamed, without a copy in the library's cache.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from roxxel import extras
from roxxel.building import arrow, documents, tokens
from roxxel.building.source import Document
from roxxel.errors import ConfigError

try:
    import datasets
    import datasets.exceptions
    import pyarrow as pa
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
_STREAM_ROWS = 256
_DATA_ERRORS = (datasets.exceptions.DatasetsError, pa.ArrowException)
_FILE_ERRORS = (*_DATA_ERRORS, OSError, ValueError)  # with those of pandas and codecs
# What yields the same examples in the same order one shard after the other.
_SHARD_BY_SHARD = (
    "ExamplesIterable",
    "ArrowExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "FormattedExamplesIterable",
)


@dataclasses.dataclass(frozen=True)
class TablePart:
    """Rows [start, stop) of a `Dataset`; its row 0 is `first_row` of the source."""

    data: datasets.Dataset
    column: str
    start: int
    stop: int
    batch_rows: int
    first_row: int = 0

    @property
    def size(self) -> int:
        """Rows."""
        return self.stop - self.start

    def documents(self) -> Iterator[bytes | np.ndarray]:
        """The column's values, some MB at a time."""
        tables = self.data.with_format("arrow")
        for start in range(self.start, self.stop, self.batch_rows):
            table = tables[start : min(start + self.batch_rows, self.stop)]
            values = arrow.select(table, self.column)
            yield from arrow.documents(
                values, _place(self.column, self.first_row + start)
            )

    def __reduce__(self):
        fields = (self.data, self.column, self.start, self.stop, self.batch_rows)
        if self.data.cache_files:  # of mapped files only the paths are pickled
            return TablePart, (*fields, self.first_row)
        row = self.first_row + self.start
        return _unpacked, (_pack(self), self.column, self.batch_rows, row)


@dataclasses.dataclass(frozen=True)
class StreamPart:
    """An `IterableDataset`, or one shard of it."""

    data: datasets.IterableDataset
    column: str
    where: str
    is_file: bool
    size: int = 1

    def documents(self) -> Iterator[Document]:
        """The column's values.

        Raises:
            ConfigError: The column is not there or a file cannot be read.
        """
        if self.data.features is None:  # types differ from one example to the next
            return self._from_examples()
        return self._from_tables()

    def _from_tables(self) -> Iterator[Document]:
        row = 0
        tables = self.data.with_format("arrow").iter(batch_size=_STREAM_ROWS)
        while table := self._next(tables):
            arrow.find_column(table.schema, self.column, self.where)
            values = arrow.select(table, self.column)
            yield from arrow.documents(values, _place(self.column, row, self.where))
            row += len(values)

    def _from_examples(self) -> Iterator[Document]:
        place = _place(self.column, 0, self.where)
        examples = iter(self.data)
        for row in itertools.count():
            if (example := self._next(examples)) is None:
                return
            yield _document(_value(example, self.column, place(row)), place(row))

    def _next(self, items: Iterator) -> Any:
        try:
            return next(items, None)
        except _FILE_ERRORS as err:
            if not self.is_file and not isinstance(err, _DATA_ERRORS):
                raise  # of a function that the user mapped over it
            raise _unreadable(self.where, err) from err


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
        self._files: list[str] = []
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
            return {"inputs": documents.states(self._files), "options": options}
        if isinstance(self._data, datasets.Dataset):
            return {"inputs": self._data._fingerprint, "options": options}
        if self._key is None:
            everything = (doc for part in self.parts() for doc in part.documents())
            self._key = tokens.content_hash(everything)
        return {"inputs": self._key, "options": options}

    def parts(self) -> list[TablePart] | list[StreamPart]:
        """Ranges of rows; shards of an `IterableDataset` if they are in its order."""
        if isinstance(self._data, datasets.Dataset):
            return list(self._table_parts(self._data))
        return list(self._stream_parts(self._data))

    def _table_parts(self, data: datasets.Dataset) -> Iterator[TablePart]:
        data = data.select_columns([self._top_column(data.column_names)])
        num_bytes = data.data.nbytes
        rows = max(1, tokens.PART_BYTES * len(data) // max(1, num_bytes))
        batch_rows = arrow.batch_rows(len(data), num_bytes)
        for start in range(0, len(data), rows):
            stop = min(start + rows, len(data))
            yield TablePart(data, self.column, start, stop, batch_rows)

    def _stream_parts(self, data: datasets.IterableDataset) -> Iterator[StreamPart]:
        with _file_errors(self._files):
            names = data.column_names
        if names:
            data = data.select_columns([self._top_column(names)])
        if data.num_shards < 2 or not _is_shard_by_shard(data):
            yield StreamPart(data, self.column, self._where, bool(self._files))
            return
        for i in range(data.num_shards):
            shard = data.shard(data.num_shards, i)
            named = len(self._files) == data.num_shards
            where = self._files[i] if named else f"shard {i} of {self._where}"
            yield StreamPart(shard, self.column, where, named)

    def _top_column(self, names: list[str]) -> str:
        top = self.column if self.column in names else self.column.split(".")[0]
        if top in names:
            return top
        raise ConfigError(
            f"{self._where}: no column {self.column!r}; columns there: "
            f"{', '.join(map(repr, names))}; choose with column=."
        )

    def _from_disk(self, paths: documents.Patterns) -> Any:
        if isinstance(paths, str | os.PathLike) and os.path.isdir(paths):
            self._where = os.fspath(paths)
            return _saved(self._where)
        files = documents.find_files(paths)
        self._files = files
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
    with _file_errors(files):
        return datasets.load_dataset(
            _BUILDERS[ending],
            data_files=files,
            split="train",
            streaming=True,
            **options,
        )


@contextlib.contextmanager
def _file_errors(files: list[str]) -> Generator[None]:
    try:
        yield
    except _FILE_ERRORS as err:
        raise _unreadable(", ".join(files[:3]), err) from err


def _unreadable(where: str, err: Exception) -> ConfigError:
    reason = str(err.__cause__ or err).partition("\n")[0].rstrip(".: ")
    return ConfigError(f"{where}: cannot be read: {reason}.")


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


def _place(column: str, first_row: int, where: str = "data set") -> arrow.Place:
    return lambda i: f"{where}: row {first_row + i} of column {column!r}"


def _value(example: dict, column: str, place: str) -> Any:
    """The value of `column`, a name or a path; None where a part of it is."""
    if column in example:
        return example[column]
    value: Any = example
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(map(repr, list(example)[:10])) or "none"
            raise ConfigError(
                f"{place}: is not there; columns there: {names}; choose with column=."
            )
        value = value[name]
        if value is None:
            return None
    return value


def _document(value: Any, place: str) -> Document:
    if value is None:
        return b""
    if isinstance(value, str | bytes):
        return value
    array = np.asarray(value)
    if array.ndim != 1:
        kind = f"{type(value).__name__} of shape {array.shape}"
        raise ConfigError(f"{place}: is {kind}, expected text or a list of integers.")
    if not array.size:
        return np.empty(0, np.int64)
    return tokens.integers(array, place)


def _pack(part: TablePart) -> bytes:
    """The rows of a part whose data are in memory, and no others."""
    table = part.data.with_format("arrow")[part.start : part.stop]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _unpacked(packed: bytes, column: str, batch_rows: int, row: int) -> TablePart:
    data = datasets.Dataset(pa.ipc.open_stream(packed).read_all())
    return TablePart(data, column, 0, len(data), batch_rows, row)
