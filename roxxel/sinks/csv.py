"""`roxxel_metrics.csv`: one row a step, sorted, under one header.

The first columns are step, loss and perplexity, others follow in order of appearance;
a cell without a value is empty. What is on disk after a kill at any moment is a
complete table, at most with a torn last line that the next process drops.

Which rows a record changes:

| record                                  | rows                                       |
|-----------------------------------------|--------------------------------------------|
| a step after the last row               | a new row                                  |
| a step that has a row                   | its cells are set, other cells stay        |
| a step in between (a late result)       | a row at its place                         |
| the first of a new process, step s      | rows of s and later are dropped before     |
| `rewind(s)`                             | rows after s are dropped, s may get more   |
"""

import csv
import io
import os
import pathlib
import time
from collections.abc import Iterator

from roxxel.sinks import Message, Metrics
from roxxel.sinks.textlog import write_all

FILE_NAME = "roxxel_metrics.csv"
FIRST_COLUMNS = ("step", "loss", "perplexity")
_MAX_PENDING_ROWS = 256
_LATE_SHARE = 10  # late rows rewrite the file for at most a tenth of the time


class CsvSink:
    """Keeps the table at `path`; a foreign file there is moved aside."""

    def __init__(self, path: str | os.PathLike):
        self._path = pathlib.Path(path)
        self._file: io.FileIO | None = None
        self._columns = list(FIRST_COLUMNS)
        self._pending: list[bytes] = []  # complete rows, not yet written
        self._last_step = -1
        self._last_row: dict[str, str] = {}
        self._last_offset = 0  # of the last row in the file, if none is pending
        self._late: dict[int, dict[str, str]] = {}  # rows to merge into the file
        self._late_due = 0.0
        self._is_first = True

    def message(self, record: Message) -> None:
        """Nothing: the text log has them."""

    def metrics(self, record: Metrics) -> None:
        """Sets the cells of the record's step."""
        self._open()
        if self._is_first:
            self.rewind(record.step - 1)
        self._add_columns(record.values)
        row = {name: repr(value) for name, value in record.values.items()}
        if record.step > self._last_step:
            self._append(record.step, row)
        elif record.step == self._last_step:
            self._merge_into_last(row)
        else:
            self._late.setdefault(record.step, {}).update(row)

    def rewind(self, step: int) -> None:
        """Drops the rows after `step`."""
        self._open()
        self._is_first = False
        if self._last_step > step:
            self._rewrite(upto=step)

    def flush(self) -> None:
        """Writes what is pending; late rows at a cadence that costs little."""
        self._write_pending()
        if self._late and time.monotonic() >= self._late_due:
            start = time.monotonic()
            self._rewrite()
            end = time.monotonic()
            self._late_due = end + _LATE_SHARE * (end - start)

    def close(self) -> None:
        """Writes everything and closes the file."""
        self._write_pending()
        if self._late:
            self._rewrite()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> io.FileIO:
        if self._file is not None:
            return self._file
        columns = _read_header(self._path)
        if columns is None and self._path.exists() and self._path.stat().st_size:
            os.replace(self._path, _free_name(self._path))
        if columns is not None:
            self._columns = columns
        return self._rewrite()

    def _append(self, step: int, row: dict[str, str]) -> None:
        if len(self._pending) >= _MAX_PENDING_ROWS:
            self._write_pending()
        self._last_step, self._last_row = step, row
        self._pending.append(_encode(step, row, self._columns))

    def _merge_into_last(self, row: dict[str, str]) -> None:
        self._last_row = self._last_row | row
        data = _encode(self._last_step, self._last_row, self._columns)
        if self._pending:
            self._pending[-1] = data
            return
        file = self._open()
        old_size = file.seek(0, os.SEEK_END) - self._last_offset
        if len(data) < old_size:  # a shorter row would leave the old one's tail
            self._late[self._last_step] = row
            self._rewrite()
            return
        file.seek(self._last_offset)
        write_all(file, data)

    def _write_pending(self) -> None:
        if not self._pending:
            return
        data = b"".join(self._pending)
        file = self._open()
        end = file.seek(0, os.SEEK_END)
        self._last_offset = end + len(data) - len(self._pending[-1])
        self._pending.clear()
        write_all(file, data)

    def _add_columns(self, names) -> None:
        new = [name for name in names if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite()

    def _rewrite(self, *, upto: int | None = None) -> io.FileIO:
        """The table anew: today's columns, late rows merged, rows after `upto` gone."""
        self._write_pending()
        late, self._late = self._late, {}
        temporary = self._path.with_name(self._path.name + ".tmp")
        self._last_step, self._last_row, self._last_offset = -1, {}, 0
        with open(temporary, "wb") as out:
            out.write(_encode_header(self._columns))
            for step, row in _merge(_read_rows(self._path), late):
                if upto is None or step <= upto:
                    self._last_offset = out.tell()
                    self._last_step, self._last_row = step, row
                    out.write(_encode(step, row, self._columns))
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, self._path)
        if self._file is not None:
            self._file.close()
        self._file = io.FileIO(self._path, "r+")
        return self._file


def _encode(step: int, row: dict[str, str], columns: list[str]) -> bytes:
    cells = [str(step), *(row.get(name, "") for name in columns[1:])]
    return (",".join(cells) + "\n").encode()


def _encode_header(columns: list[str]) -> bytes:
    quoted = [_quote(name) for name in columns]
    return (",".join(quoted) + "\n").encode("utf-8", "backslashreplace")


def _quote(name: str) -> str:
    if any(mark in name for mark in ',"'):
        return '"' + name.replace('"', '""') + '"'
    return name


def _read_header(path: pathlib.Path) -> list[str] | None:
    """Column names, or None if there is no table of ours at `path`."""
    if not path.exists():
        return None
    with open(path, "rb") as file:
        line = file.readline()
    if not line.endswith(b"\n"):
        return None
    columns = next(csv.reader([line.decode("utf-8", "replace")]), [])
    return columns if tuple(columns[:3]) == FIRST_COLUMNS else None


def _read_rows(path: pathlib.Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Complete rows in file order; a torn line is left out."""
    columns = _read_header(path)
    if columns is None:
        return
    with open(path, "rb") as file:
        file.readline()
        for line in file:
            cells = line.decode("utf-8", "replace").rstrip("\r\n").split(",")
            is_whole = line.endswith(b"\n") and len(cells) == len(columns)
            if is_whole and cells[0].isdecimal():
                filled = {
                    name: cell
                    for name, cell in zip(columns[1:], cells[1:], strict=True)
                    if cell
                }
                yield int(cells[0]), filled


def _merge(
    rows: Iterator[tuple[int, dict[str, str]]], late: dict[int, dict[str, str]]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Sorted rows with the cells of `late` set, and new rows at their place."""
    waiting = sorted(late.items(), reverse=True)
    for step, row in rows:
        while waiting and waiting[-1][0] < step:
            yield waiting.pop()
        if waiting and waiting[-1][0] == step:
            row = row | waiting.pop()[1]
        yield step, row
    yield from reversed(waiting)


def _free_name(path: pathlib.Path) -> pathlib.Path:
    number = 1
    while (free := path.with_name(f"{path.name}.foreign-{number}")).exists():
        number += 1
    return free
