"""Text and JSON-lines files as sources: files in groups, long ones in ranges."""

import dataclasses
import os
from collections.abc import Iterator

from roxxel.building import documents, lines
from roxxel.building.lines import Span
from roxxel.errors import ConfigError

_PART_BYTES = 16 << 20
_MAX_FILES = 1024  # of a part
_MAX_NAMES = 20  # that are stored with the data
_ERRORS = ("strict", "replace", "ignore")


@dataclasses.dataclass
class TextPart:
    """Whole files, or lines of files; a document each."""

    spans: list[Span]
    unit: str
    encoding: str
    errors: str
    done: int = 0

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(span.bytes for span in self.spans)

    def documents(self) -> Iterator[bytes]:
        """Every text, empty ones too."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[bytes]]:
        """The documents in lists of about a MB."""
        batches = _files(self) if self.unit == "file" else _lines(self)
        return batches


@dataclasses.dataclass
class JsonPart:
    """Lines of JSON files."""

    spans: list[Span]
    field: str
    errors: str
    done: int = 0

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(span.bytes for span in self.spans)

    def documents(self) -> Iterator[bytes]:
        """The text of every line that is not blank."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[bytes]]:
        """The documents in lists of about a MB."""
        for span, on_read in _counted(self):
            yield from documents.json_texts(span, self.field, self.errors, on_read)


class _Files:
    """Files that match patterns, as they were when they were found."""

    unit = "bytes"
    kind = "text"
    name: str
    options: dict

    def __init__(self, patterns: documents.Patterns):
        self.states = documents.find_states(patterns)

    def key(self) -> dict:
        """Paths, sizes and times of the files, and the options."""
        return {"inputs": self.states, "options": self.options}

    def describe(self) -> dict:
        """Names without their folders, and the options."""
        names = [os.path.basename(path) for path, _, _ in self.states]
        return {
            "files": len(names),
            "bytes": sum(size for _, size, _ in self.states),
            "inputs": names[:_MAX_NAMES],
        } | self.options

    def check_unchanged(self) -> None:
        """Raises ConfigError if a file is another than when it was found."""
        try:
            same = documents.states(path for path, _, _ in self.states) == self.states
        except OSError:
            same = False
        if not same:
            raise ConfigError(
                f"{self.name}: a file changed while it was read; try again."
            )


class TextSource(_Files):
    """Files, or lines of files; see `roxxel.builders.text_files`."""

    name = "text_files"

    def __init__(
        self,
        patterns: documents.Patterns,
        *,
        unit: str = "file",
        encoding: str = "utf-8",
        errors: str = "strict",
    ):
        if unit not in ("file", "line"):
            raise ConfigError(f"unit is {unit!r}, expected 'file' or 'line'.")
        _check_codec(encoding, errors)
        super().__init__(patterns)
        self.options = {"unit": unit, "encoding": encoding, "errors": errors}

    def parts(self) -> list[TextPart]:
        """Files in groups; long files of lines in ranges."""
        splits = self.options["unit"] == "line" and documents.is_line_safe(
            self.options["encoding"]
        )
        groups = _groups(self.states, is_split=splits)
        return [TextPart(group, **self.options) for group in groups]


class JsonSource(_Files):
    """JSON lines; see `roxxel.builders.jsonl`."""

    name = "jsonl"

    def __init__(
        self,
        patterns: documents.Patterns,
        *,
        field: str = "text",
        errors: str = "strict",
    ):
        _check_codec("utf-8", errors)
        super().__init__(patterns)
        self.options = {"field": field, "errors": errors}

    def parts(self) -> list[JsonPart]:
        """Files in groups, long files in ranges."""
        groups = _groups(self.states, is_split=True)
        return [JsonPart(group, **self.options) for group in groups]


def _groups(states: list[documents.State], *, is_split: bool) -> Iterator[list[Span]]:
    """Spans of all files in order, in groups of about the size of a part."""
    group: list[Span] = []
    num_bytes = 0
    for path, size, _ in states:
        for span in _spans(path, size, is_split=is_split):
            group.append(span)
            num_bytes += span.bytes
            if num_bytes >= _PART_BYTES // 2 or len(group) >= _MAX_FILES:
                yield group
                group, num_bytes = [], 0
    if group:
        yield group


def _spans(path: str, size: int, *, is_split: bool) -> Iterator[Span]:
    if not is_split or size < 2 * _PART_BYTES or lines.is_compressed(path):
        yield Span(path, bytes=size)
        return
    for start in range(0, size, _PART_BYTES):
        stop = min(size, start + _PART_BYTES)
        yield Span(path, start, stop, stop - start)


def _files(part: TextPart) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    num_bytes = 0
    for span in part.spans:
        batch.append(documents.whole_text(span.path, part.encoding, part.errors))
        num_bytes += len(batch[-1])
        part.done += span.bytes
        if num_bytes >= lines.BLOCK_BYTES:
            yield batch
            batch, num_bytes = [], 0
    yield batch


def _lines(part: TextPart) -> Iterator[list[bytes]]:
    for span, on_read in _counted(part):
        yield from documents.text_lines(span, part.encoding, part.errors, on_read)


def _counted(part: TextPart | JsonPart) -> Iterator[tuple[Span, lines.OnRead]]:
    """The spans of `part`, and what notes how far the reading is."""
    before = 0
    for span in part.spans:

        def on_read(num_bytes: int, before: int = before) -> None:
            part.done = before + num_bytes

        yield span, on_read
        before += span.bytes


def _check_codec(encoding: str, errors: str) -> None:
    try:
        "x".encode(encoding)  # refuses the likes of base64, as looking it up does not
    except LookupError as err:
        raise ConfigError(f"encoding is {encoding!r}: {err}.") from err
    if errors not in _ERRORS:
        raise ConfigError(f"errors is {errors!r}, expected one of {_ERRORS}.")
