"""Files and line-aligned ranges of files, a block of whole lines at a time."""

import bz2
import dataclasses
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO, cast

from roxxel.errors import ConfigError

OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
BLOCK_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 16
OnRead = Callable[[int], None]  # gets the bytes on disk that were read so far


@dataclasses.dataclass(frozen=True)
class Span:
    """The lines of a file that begin in bytes [start, stop); all with stop None.

    Lines end with a line feed here. `bytes` is the share of the file on disk.
    """

    path: str
    start: int = 0
    stop: int | None = None
    bytes: int = 0


def is_compressed(path: str) -> bool:
    """Whether the file is decompressed on the way, and so cannot be entered midway."""
    return os.path.splitext(path)[1].lower() in OPENERS


def open_file(path: str) -> tuple[BinaryIO, IO[bytes]]:
    """The file as it is on disk, and decompressed.

    Raises:
        ConfigError: It cannot be opened.
    """
    opener = OPENERS.get(os.path.splitext(path)[1].lower())
    try:
        raw = open(path, "rb")  # noqa: SIM115
    except OSError as err:
        raise unreadable(path, err) from err
    stream = opener(raw, "rb") if opener else raw
    return raw, cast(IO[bytes], stream)


def unreadable(path: str, err: Exception) -> ConfigError:
    """The error to raise from one of `BROKEN`, itself if it says so already."""
    if isinstance(err, ConfigError):
        return err
    what = err.strerror if isinstance(err, OSError) and err.strerror else err
    return ConfigError(f"{path}: cannot be read: {what}.")


def blocks(span: Span, on_read: OnRead) -> Iterator[bytes]:
    """The lines of `span` in blocks that end where a line ends.

    Raises:
        ConfigError: The file cannot be read.
    """
    raw, stream = open_file(span.path)
    try:
        with raw:
            begin = _line_start(stream, span.start)
            end = None if span.stop is None else _line_start(stream, span.stop)
            if begin or end is not None:
                stream.seek(begin)
            for block in _whole_lines(stream, None if end is None else end - begin):
                yield block
                on_read(max(0, raw.tell() - begin))
    except BROKEN as err:
        raise unreadable(span.path, err) from err


def lines_before(span: Span) -> int:
    """Lines of the file that begin before those of `span`; reads the file."""
    raw, stream = open_file(span.path)
    with raw:
        left = _line_start(stream, span.start)
        stream.seek(0)
        count = 0
        while left and (block := stream.read(min(left, BLOCK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
    return count


def _line_start(stream: IO[bytes], at: int) -> int:
    """Where the first line begins that does not begin before byte `at`."""
    if at == 0:
        return 0
    stream.seek(at - 1)
    at -= 1
    while block := stream.read(_SEARCH_BYTES):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
    return at


def _whole_lines(stream: IO[bytes], left: int | None) -> Iterator[bytes]:
    """The next `left` bytes, or all, cut behind line feeds only."""
    kept: list[bytes] = []
    while block := stream.read(BLOCK_BYTES if left is None else min(left, BLOCK_BYTES)):
        if left is not None:
            left -= len(block)
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*kept, block[:cut]])
            kept = []
        if cut < len(block):
            kept.append(block[cut:])
    if kept:
        yield b"".join(kept)
