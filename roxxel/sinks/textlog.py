"""`roxxel_system.log`: every message with time and level, appended."""

import io
import os
import time

from roxxel.sinks import Message, Metrics

FILE_NAME = "roxxel_system.log"


class TextLogSink:
    """Appends messages to the file at `path`; metrics go elsewhere.

    Lines are collected here and written unbuffered on `flush`, so that a forked child
    holds nothing that it could write a second time.
    """

    def __init__(self, path: str | os.PathLike):
        self._path = os.fspath(path)
        self._lines: list[str] = []
        self._file: io.FileIO | None = None

    def message(self, record: Message) -> None:
        """One line: local time, level, text."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.time))
        millis = int(record.time * 1000) % 1000
        level = record.level.upper()
        self._lines.append(f"{clock}.{millis:03d} {level} {record.text}\n")

    def metrics(self, record: Metrics) -> None:
        """Nothing: the CSV has them."""

    def rewind(self, step: int) -> None:
        """Nothing: messages stay."""

    def flush(self) -> None:
        """Appends what was collected."""
        if not self._lines:
            return
        if self._file is None:
            self._file = io.FileIO(self._path, "a+")
            self._lines.insert(0, _missing_newline(self._file))
        data = "".join(self._lines).encode("utf-8", "backslashreplace")
        self._lines.clear()
        write_all(self._file, data)

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


def write_all(file: io.FileIO, data: bytes) -> None:
    """Writes `data` to an unbuffered binary file, whatever it takes at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _missing_newline(file: io.FileIO) -> str:
    """Ends a line that a killed process left unfinished."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return ""
    file.seek(size - 1)
    return "" if file.read(1) == b"\n" else "\n"
