"""Parts of Hugging Face data sets: rows of a table, shards of a stream."""

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterator
from typing import Any, cast

import numpy as np

from roxxel import extras
from roxxel.building import arrow, tokens
from roxxel.building.source import Document
from roxxel.errors import ConfigError

try:
    import datasets
    import datasets.exceptions
    import pyarrow as pa
except ImportError as err:
    raise extras.missing("roxxel.building.huggingface", "datasets", err) from err

_STREAM_ROWS = 256
_DATA_ERRORS = (datasets.exceptions.DatasetsError, pa.ArrowException)
# ValueError with those of pandas and codecs; StopIteration for a file without rows.
_FILE_ERRORS = (*_DATA_ERRORS, OSError, ValueError, StopIteration)


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


@contextlib.contextmanager
def file_errors(files: list[str]) -> Generator[None]:
    """What the libraries raise for bad files as a ConfigError with their names."""
    try:
        yield
    except _FILE_ERRORS as err:
        raise _unreadable(", ".join(files[:3]), err) from err


def _unreadable(where: str, err: Exception) -> ConfigError:
    reason = str(err.__cause__ or err).partition("\n")[0].rstrip(".: ")
    reason = reason or "it is empty"
    return ConfigError(f"{where}: cannot be read: {reason}.")


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
    table = cast(pa.Table, part.data.with_format("arrow")[part.start : part.stop])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _unpacked(packed: bytes, column: str, batch_rows: int, row: int) -> TablePart:
    data = datasets.Dataset(pa.ipc.open_stream(packed).read_all())
    return TablePart(data, column, 0, len(data), batch_rows, row)
