"""`roxxel_metrics.jsonl`: one JSON object a record, for tools that read streams.

    {"step": 120, "time": 1764450000.1, "loss": 2.34, "perplexity": 10.4}

Numbers that JSON does not have are the strings "nan", "inf" and "-inf".
"""

import json
import math
import os
import pathlib
from typing import TextIO

from roxxel.errors import ConfigError
from roxxel.sinks import Media, Message, Metrics

FILE_NAME = "roxxel_metrics.jsonl"


class JsonlSink:
    """Appends to `path`, or to `roxxel_metrics.jsonl` in the folder of the logger."""

    def __init__(self, path: str | os.PathLike | None = None):
        self._path = None if path is None else pathlib.Path(path)
        self._file: TextIO | None = None
        self._is_first = True

    def attach(self, log_dir: pathlib.Path) -> None:
        """Takes the folder of the run where no path was given."""
        self._path = self._path or log_dir / FILE_NAME

    def message(self, record: Message) -> None:
        """Nothing: the text log has them."""

    def metrics(self, record: Metrics) -> None:
        """One line."""
        if self._is_first:
            self.rewind(record.step - 1)
        self._write({"step": record.step, "time": record.time} | dict(record.values))

    def media(self, record: Media) -> None:
        """One line for a text; the others are not for this file."""
        if record.kind == "text":
            entry = {"step": record.step, "time": record.time}
            self._write(entry | {record.name: record.value})

    def rewind(self, step: int) -> None:
        """Drops the lines after `step`, and a torn last one."""
        self._is_first = False
        self.close()
        path = self._given_path()
        if not path.exists():
            return
        temporary = path.with_name(path.name + ".tmp")
        with (
            open(path, encoding="utf-8", errors="replace") as old,
            open(temporary, "w", encoding="utf-8") as new,
        ):
            new.writelines(line for line in old if _is_kept(line, step))
        os.replace(temporary, path)

    def flush(self) -> None:
        """Hands the lines to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, entry: dict) -> None:
        if self._file is None:
            self._file = open(self._given_path(), "a", encoding="utf-8")  # noqa: SIM115
        plain = {key: _plain(value) for key, value in entry.items()}
        self._file.write(json.dumps(plain, ensure_ascii=False) + "\n")

    def _given_path(self) -> pathlib.Path:
        if self._path is None:
            raise ConfigError("JsonlSink has no path; give one, or use it in a Logger.")
        return self._path


def _plain(value):
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_odd else value


def _is_kept(line: str, step: int) -> bool:
    try:
        return line.endswith("\n") and json.loads(line)["step"] <= step
    except (ValueError, TypeError, KeyError):
        return False
