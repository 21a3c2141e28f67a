"""Documents out of text and JSON-lines files, as UTF-8 bytes.

Files that end in .gz, .bz2 or .xz are decompressed on the way. Every complaint about
the content of a file names the file and the line.
"""

import bz2
import codecs
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, BinaryIO, cast

from roxxel.data import paths as shard_paths
from roxxel.errors import ConfigError

Patterns = str | os.PathLike | Sequence[str | os.PathLike]
OnRead = Callable[[int], None]  # gets the bytes on disk that were read so far

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_CHUNK_BYTES = 1 << 20
_REPORT_EVERY_LINES = 1024
_MAX_FIELDS_SHOWN = 10
_BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)


def find_files(patterns: Patterns) -> list[str]:
    """Absolute paths of the files that match, each once, part2 before part10.

    Raises:
        ConfigError: A pattern matches no file; the message says where it looked.
    """
    is_single = isinstance(patterns, str | os.PathLike)
    texts = [os.fspath(p) for p in ([patterns] if is_single else patterns)]
    if not texts:
        raise ConfigError("no file pattern was given, expected at least one.")
    found = {path for text in texts for path in _matches(text)}
    return sorted(found, key=shard_paths.natural_key)


def states(files: Iterable[str]) -> list[tuple[str, int, int]]:
    """Path, size and time of last change (ns) of each file."""
    stats = [(path, os.stat(path)) for path in files]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def content_hash(files: Iterable[str], on_read: OnRead) -> str:
    """Hash of the bytes of all files in this order, wherever they lie."""
    digest = hashlib.blake2b(digest_size=16)
    done = 0
    for path in files:
        try:
            with open(path, "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    done += len(chunk)
                    on_read(done)
        except OSError as err:
            raise ConfigError(f"{path}: cannot be read: {err.strerror}.") from err
        digest.update(f"|{done}|".encode())
    return digest.hexdigest()


def text_documents(
    files: Iterable[str], *, unit: str, encoding: str, errors: str, on_read: OnRead
) -> Iterator[bytes]:
    """One document a file (its text as it is) or a line (without its end)."""
    for path, stream, report in _opened(files, on_read):
        try:
            if unit == "file":
                yield _whole_text(stream, encoding, errors)
                report()
                continue
            lines = io.TextIOWrapper(stream, encoding, errors)
            for number, line in enumerate(lines, 1):
                yield _encode(line.rstrip("\n"), path, number, errors)
                if number % _REPORT_EVERY_LINES == 0:
                    report()
        except UnicodeDecodeError as err:
            number = _line_of_error(path, encoding)
            raise ConfigError(
                f"{path}:{number}: not {encoding} text ({err.reason}): give another "
                "encoding=, or errors='replace'."
            ) from err
        except _BROKEN as err:
            raise ConfigError(f"{path}: cannot be read: {err}.") from err


def json_documents(
    files: Iterable[str], *, field: str, errors: str, on_read: OnRead
) -> Iterator[bytes]:
    """The string `field` of the object on each line; blank lines are skipped."""
    for path, stream, report in _opened(files, on_read):
        try:
            for number, line in enumerate(stream, 1):
                if number % _REPORT_EVERY_LINES == 0:
                    report()
                if not line.isspace():
                    item = _parse(line, path, number, errors)
                    text = _field_of(item, field, path, number)
                    yield _encode(text, path, number, errors)
        except _BROKEN as err:
            raise ConfigError(f"{path}: cannot be read: {err}.") from err


def _matches(pattern: str) -> list[str]:
    pattern = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isfile(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        raise ConfigError(
            f"{pattern} is a folder, expected files: write {pattern}/**/*.txt to take "
            "those in it."
        )
    found = [
        path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)
    ]
    if not found:
        raise ConfigError(f"no file matches {pattern}.")
    return found


def _opened(
    files: Iterable[str], on_read: OnRead
) -> Iterator[tuple[str, IO[bytes], Callable[[], None]]]:
    """Each file with its decompressed stream and what reports the bytes read."""
    done = 0
    for path in files:
        try:
            raw, stream = _open(path)
        except OSError as err:
            raise ConfigError(f"{path}: cannot be read: {err.strerror}.") from err

        def report(raw: BinaryIO = raw, done: int = done) -> None:
            on_read(done + raw.tell())

        with raw:
            size = os.fstat(raw.fileno()).st_size
            yield path, stream, report
        done += size


def _open(path: str) -> tuple[BinaryIO, IO[bytes]]:
    """The file as it is on disk, and decompressed."""
    opener = _OPENERS.get(os.path.splitext(path)[1].lower())
    raw = open(path, "rb")  # noqa: SIM115
    stream = opener(raw, "rb") if opener else raw
    return raw, cast(IO[bytes], stream)


def _whole_text(stream: IO[bytes], encoding: str, errors: str) -> bytes:
    """The text of `stream` in UTF-8, checked a piece at a time."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    pieces = []
    while chunk := stream.read(_CHUNK_BYTES):
        pieces.append(decoder.decode(chunk).encode("utf-8", errors))
    pieces.append(decoder.decode(b"", final=True).encode("utf-8", errors))
    return b"".join(pieces)


def _line_of_error(path: str, encoding: str) -> int:
    """Number of the first line of `path` that does not decode."""
    decoder = codecs.getincrementaldecoder(encoding)()
    number = 1
    raw, stream = _open(path)
    with raw:
        while chunk := stream.read(_CHUNK_BYTES):
            try:
                number += decoder.decode(chunk).count("\n")
            except UnicodeDecodeError as err:
                good = err.object[: err.start]
                return number + good.decode(encoding, "ignore").count("\n")
    return number  # the text ends within a character


def _parse(line: bytes, path: str, number: int, errors: str) -> object:
    try:
        return json.loads(line.decode("utf-8-sig", errors).rstrip())
    except UnicodeDecodeError as err:
        raise ConfigError(
            f"{path}:{number}: not UTF-8 text ({err.reason} at byte {err.start} of the "
            "line): convert it, or give errors='replace'."
        ) from err
    except json.JSONDecodeError as err:
        raise ConfigError(
            f"{path}:{number}: not valid JSON ({err.msg}, column {err.colno}), "
            "expected one object a line."
        ) from err
    except RecursionError as err:
        raise ConfigError(f"{path}:{number}: JSON is nested too deeply.") from err


def _field_of(item: object, field: str, path: str, number: int) -> str:
    if isinstance(item, dict) and isinstance(text := item.get(field), str):
        return text
    if not isinstance(item, dict):
        problem = f"is a JSON {type(item).__name__}, expected an object"
    elif field in item:
        kind = type(item[field]).__name__
        problem = f"field {field!r} is {kind}, expected a string"
    else:
        names = ", ".join(map(repr, list(item)[:_MAX_FIELDS_SHOWN])) or "none"
        problem = (
            f"no field {field!r}; fields of this line: {names}; choose with field="
        )
    raise ConfigError(f"{path}:{number}: {problem}.")


def _encode(text: str, path: str, number: int, errors: str) -> bytes:
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as err:
        raise ConfigError(
            f"{path}:{number}: {text[err.start]!a} is no character of UTF-8 (half of a "
            "surrogate pair): mend the text, or give errors='replace'."
        ) from err
