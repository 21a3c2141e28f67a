"""Parquet files as a source of documents, a few row groups at a time."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from roxxel import extras
from roxxel.building import arrow, input_files
from roxxel.building.documents import Patterns
from roxxel.errors import ConfigError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as err:
    raise extras.missing("roxxel.building.parquet", "parquet", err) from err

_PART_BYTES = 64 << 20  # of the column, uncompressed
_READ_BYTES = 1 << 20
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParquetPart:
    """Row groups [start, stop) of a file; `first_row` is the first one's first."""

    path: str
    column: str
    start: int
    stop: int
    first_row: int
    num_rows: int
    batch_rows: int

    @property
    def size(self) -> int:
        """Rows."""
        return self.num_rows

    def documents(self) -> Iterator[bytes | np.ndarray]:
        """The column's values, some MB at a time."""
        row = self.first_row
        with _open(self.path) as file:
            batches = file.iter_batches(
                batch_size=self.batch_rows,
                row_groups=range(self.start, self.stop),
                columns=[self.column],
            )
            while batch := _read(self.path, lambda: next(batches, None)):
                values = arrow.select(batch, self.column)
                yield from arrow.documents(values, self._place(row))
                row += len(values)

    def _place(self, first_row: int) -> arrow.Place:
        return lambda i: f"{self.path}: row {first_row + i} of column {self.column!r}"


class ParquetSource:
    """A column of text or token ids of the files that match, in path order by number.

    Args:
        patterns: A glob, a path, a folder (every `*.parquet` in it, at any depth), or
            a list of them.
        column: Its name, or a path through structs such as `meta.text`.

    Raises:
        ConfigError: No file matches.
    """

    name = "parquet"
    unit = "rows"

    def __init__(self, patterns: Patterns, *, column: str = "text"):
        self._files = input_files.find(patterns, in_folders="*.parquet")
        self._options = {"column": column}
        self._parts: list[ParquetPart] | None = None
        self.column = column

    def key(self) -> dict:
        """Paths, sizes and times of the files, and the column."""
        return {"inputs": self._files.states, "options": self._options}

    def describe(self) -> dict:
        """Number and size of the files, and the options."""
        return self._files.describe() | self._options

    def check_unchanged(self) -> None:
        """Raises ConfigError when a file changed since this was made."""
        self._files.check_unchanged()

    def parts(self) -> list[ParquetPart]:
        """Row groups; reads the footers, once.

        Raises:
            ConfigError: A file is no Parquet file, or has no such column.
        """
        if self._parts is None:
            paths = self._files.paths
            self._parts = [part for path in paths for part in self._parts_of(path)]
        return self._parts

    def _parts_of(self, path: str) -> Iterator[ParquetPart]:
        with _open(path) as file:
            schema = _read(path, lambda: file.schema_arrow)
            arrow.find_column(schema, self.column, path)
            groups = list(map(self._group_size, _groups(file.metadata)))
        first = row = rows = num_bytes = 0
        for number, (group_rows, group_bytes) in enumerate(groups, 1):
            rows, num_bytes = rows + group_rows, num_bytes + group_bytes
            if rows and (num_bytes >= _PART_BYTES or number == len(groups)):
                yield ParquetPart(
                    path=path,
                    column=self.column,
                    start=first,
                    stop=number,
                    first_row=row,
                    num_rows=rows,
                    batch_rows=arrow.batch_rows(rows, num_bytes),
                )
                first, row, rows, num_bytes = number, row + rows, 0, 0

    def _group_size(self, group: pq.RowGroupMetaData) -> tuple[int, int]:
        chunks = (group.column(i) for i in range(group.num_columns))
        mine = (
            chunk.total_uncompressed_size
            for chunk in chunks
            if f"{chunk.path_in_schema}.".startswith(f"{self.column}.")
        )
        return group.num_rows, sum(mine)


def _groups(metadata: pq.FileMetaData) -> Iterator[pq.RowGroupMetaData]:
    return (metadata.row_group(i) for i in range(metadata.num_row_groups))


def _open(path: str) -> pq.ParquetFile:
    # With a buffer, pages are read as they are needed, not whole row groups.
    return _read(path, lambda: pq.ParquetFile(path, buffer_size=_READ_BYTES))


def _read(path: str, action: Callable[[], _T]) -> _T:
    try:
        return action()
    except (pa.ArrowException, OSError) as err:
        first_line = str(err).partition("\n")[0].rstrip(".")
        raise ConfigError(f"{path}: cannot be read as Parquet: {first_line}.") from err
