"""Documents out of text and JSON-lines files, as lists of UTF-8 bytes.

Files that end in .gz, .bz2 or .xz are decompressed on the way. Every complaint about
the content of a file names the file and the line.
"""

import codecs
import glob
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from roxxel.building import lines
from roxxel.building.lines import OnRead, Span
from roxxel.data import paths as shard_paths
from roxxel.errors import ConfigError

Patterns = str | os.PathLike | Sequence[str | os.PathLike]
State = tuple[str, int, int]  # path, bytes, time of last change in ns

# Their line feeds are the byte 10, and no other character holds that byte.
_LINE_SAFE = ("utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252")
_BATCH_LINES = 1024
_MAX_FIELDS_SHOWN = 10


def find_files(patterns: Patterns) -> list[str]:
    """Absolute paths of the files that match, each once, part2 before part10.

    Raises:
        ConfigError: A pattern matches no file; the message says where it looked.
    """
    return [path for path, _, _ in find_states(patterns)]


def find_states(patterns: Patterns) -> list[State]:
    """The states of the files that `find_files` finds, each looked at once."""
    is_single = isinstance(patterns, str | os.PathLike)
    texts = [os.fspath(p) for p in ([patterns] if is_single else patterns)]
    if not texts:
        raise ConfigError("no file pattern was given, expected at least one.")
    found = {state[0]: state for text in texts for state in _matches(text)}
    return [found[path] for path in sorted(found, key=shard_paths.natural_key)]


def states(files: Iterable[str]) -> list[State]:
    """Path, size and time of last change (ns) of each file."""
    infos = ((path, os.stat(path)) for path in files)
    return [(path, info.st_size, info.st_mtime_ns) for path, info in infos]


def is_line_safe(encoding: str) -> bool:
    """Whether text in `encoding` can be cut behind any line feed byte."""
    return codecs.lookup(encoding).name in _LINE_SAFE


def whole_text(path: str, encoding: str, errors: str) -> bytes:
    """The text of a file as it is, in UTF-8.

    Raises:
        ConfigError: It cannot be read, or does not decode; names file and line.
    """
    try:
        if encoding == "utf-8" and errors == "strict" and not lines.is_compressed(path):
            # Unbuffered: for a short file a buffer costs more than its content.
            with open(path, "rb", buffering=0) as file:
                text = file.read()
            str(text, "utf-8")  # only to know that it is
            return text
        raw, stream = lines.open_file(path)
        with raw:
            return _whole_text(stream, encoding, errors)
    except UnicodeDecodeError as err:
        raise _undecodable(path, encoding, err) from err
    except lines.BROKEN as err:
        raise lines.unreadable(path, err) from err


def text_lines(
    span: Span, encoding: str, errors: str, on_read: OnRead
) -> Iterator[list[bytes]]:
    """Lists of lines without their ends, which may be those of any system.

    Raises:
        ConfigError: As for `whole_text`.
    """
    if not is_line_safe(encoding):
        yield from _decoded_lines(span.path, encoding, errors, on_read)
        return
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    try:
        for block in lines.blocks(span, on_read):
            text = str(block, encoding, errors)
            if not is_utf8 or errors != "strict":
                block = text.encode("utf-8", errors)
            if b"\r" in block:
                block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            yield block.split(b"\n")
    except UnicodeDecodeError as err:
        raise _undecodable(span.path, encoding, err) from err


def json_texts(
    span: Span, field: str, errors: str, on_read: OnRead
) -> Iterator[list[bytes]]:
    """Lists of the string `field` of the object on each line; blank lines are skipped.

    Raises:
        ConfigError: A line is no such object; names file and line.
    """
    number = 0  # of lines of the span
    for block in lines.blocks(span, on_read):
        texts = []
        for line in block.split(b"\n"):
            number += 1
            if line and not line.isspace():
                try:
                    texts.append(_text_of(_parse(line, errors), field, errors))
                except ValueError as err:
                    at = lines.lines_before(span) + number
                    raise ConfigError(f"{span.path}:{at}: {err}.") from err.__cause__
        number -= block.endswith(b"\n")  # what split finds behind the last line feed
        yield texts


def _matches(pattern: str) -> list[State]:
    pattern = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isdir(pattern):
        raise ConfigError(
            f"{pattern} is a folder, expected files: write {pattern}/**/*.txt to take "
            "those in it."
        )
    is_file = os.path.exists(pattern)
    names = [pattern] if is_file else glob.iglob(pattern, recursive=True)
    found = [state for path in names if (state := _state_of_file(path))]
    if not found:
        raise ConfigError(f"no file matches {pattern}.")
    return found


def _state_of_file(path: str) -> State | None:
    try:
        info = os.stat(path)
    except OSError:  # a link to nowhere
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    return path, info.st_size, info.st_mtime_ns


def _whole_text(stream: IO[bytes], encoding: str, errors: str) -> bytes:
    """The text of `stream` in UTF-8, checked a piece at a time."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    pieces = []
    while chunk := stream.read(lines.BLOCK_BYTES):
        pieces.append(decoder.decode(chunk).encode("utf-8", errors))
    pieces.append(decoder.decode(b"", final=True).encode("utf-8", errors))
    return b"".join(pieces)


def _decoded_lines(
    path: str, encoding: str, errors: str, on_read: OnRead
) -> Iterator[list[bytes]]:
    """Lines of a file in an encoding that has to be read from its beginning."""
    raw, stream = lines.open_file(path)
    batch = []
    try:
        with raw:
            for line in io.TextIOWrapper(stream, encoding, errors):
                batch.append(line.rstrip("\n").encode("utf-8", errors))
                if len(batch) >= _BATCH_LINES:
                    on_read(raw.tell())
                    yield batch
                    batch = []
        yield batch
    except UnicodeDecodeError as err:
        raise _undecodable(path, encoding, err) from err
    except lines.BROKEN as err:
        raise lines.unreadable(path, err) from err


def _undecodable(path: str, encoding: str, err: UnicodeDecodeError) -> ConfigError:
    return ConfigError(
        f"{path}:{_line_of_error(path, encoding)}: not {encoding} text ({err.reason}): "
        "give another encoding=, or errors='replace'."
    )


def _line_of_error(path: str, encoding: str) -> int:
    """Number of the first line of `path` that does not decode."""
    decoder = codecs.getincrementaldecoder(encoding)()
    number = 1
    raw, stream = lines.open_file(path)
    with raw:
        while chunk := stream.read(lines.BLOCK_BYTES):
            try:
                number += decoder.decode(chunk).count("\n")
            except UnicodeDecodeError as err:
                good = err.object[: err.start]
                return number + good.decode(encoding, "ignore").count("\n")
    return number  # the text ends within a character


def _parse(line: bytes, errors: str) -> object:
    try:
        if line.startswith(codecs.BOM_UTF8):
            line = line[len(codecs.BOM_UTF8) :]
        return json.loads(str(line, "utf-8", errors))
    except UnicodeDecodeError as err:
        raise ValueError(
            f"not UTF-8 text ({err.reason} at byte {err.start} of the line): convert "
            "it, or give errors='replace'"
        ) from err
    except json.JSONDecodeError as err:
        raise ValueError(
            f"not valid JSON ({err.msg}, column {err.colno}), expected one object a "
            "line"
        ) from err
    except RecursionError as err:
        raise ValueError("JSON is nested too deeply") from err


def _text_of(item: object, field: str, errors: str) -> bytes:
    if isinstance(item, dict) and isinstance(text := item.get(field), str):
        return _encode(text, errors)
    if not isinstance(item, dict):
        raise ValueError(f"is a JSON {type(item).__name__}, expected an object")
    if field in item:
        kind = type(item[field]).__name__
        raise ValueError(f"field {field!r} is {kind}, expected a string")
    names = ", ".join(map(repr, list(item)[:_MAX_FIELDS_SHOWN])) or "none"
    raise ValueError(
        f"no field {field!r}; fields of this line: {names}; choose with field="
    )


def _encode(text: str, errors: str) -> bytes:
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as err:
        raise ValueError(
            f"{text[err.start]!a} is no character of UTF-8 (half of a surrogate pair): "
            "mend the text, or give errors='replace'"
        ) from err
