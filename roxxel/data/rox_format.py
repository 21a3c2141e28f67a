"""The bytes of a `.rox` shard: what is where, packed, parsed and checked.

    payload    records * block bytes, elements little-endian, the last block padded
    index      int64 little-endian end offset of every record, in payload bytes
    extension  sections | JSON body | trailer          (older writers leave it out)
    footer     <qq8s8s = records, payload bytes, dtype name, b"ROXXEL02"

A `ROXXEL01` file has no extension, holds uint8 and ends in `<qq8s` = records,
payload bytes, b"ROXXEL01". Readers that know no extension find the index at the end
of the payload and the footer at the end of the file, so it is invisible to them.

`extension_format` says what is in the extension.
"""

import dataclasses
import os
import struct
from io import FileIO

import numpy as np

from roxxel.data import dtypes, extension_format
from roxxel.errors import ShardFormatError

MAGIC_01 = b"ROXXEL01"
MAGIC_02 = b"ROXXEL02"

FOOTER_01 = struct.Struct("<qq8s")
FOOTER_02 = struct.Struct("<qq8s8s")
OFFSET_BYTES = 8
_TAIL_BYTES = 4096  # one read takes the footer and almost every extension


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """What the tail of one shard says; the payload has not been read.

    `elements` counts valid elements (padding excluded), `records` the records in the
    index, `extension` is the JSON body, empty for files without one. `sections` gives
    first byte and bytes of every binary section in the file. `version` tells the file
    from one that takes its place: its inode and when it was written, in ns.
    """

    path: str
    file_bytes: int
    records: int
    payload_bytes: int
    dtype: np.dtype
    elements: int
    extension: dict
    sections: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    version: tuple[int, int] | None = None


def open_again(shard: Shard) -> FileIO:
    """The file of `shard` for reading, which is still the one that was parsed.

    Raises:
        ShardFormatError: It was replaced or written to since.
        FileNotFoundError: It is gone.
    """
    file = FileIO(shard.path)
    try:
        stat = os.fstat(file.fileno())
        is_same = shard.version in (None, _version(stat))
        if stat.st_size != shard.file_bytes or not is_same:
            size = f"{shard.file_bytes} bytes"
            if stat.st_size != shard.file_bytes:
                size += f" then, {stat.st_size} now"
            raise ShardFormatError(
                f"{shard.path} changed since it was opened ({size}): it was replaced or"
                " written to. Open the data set again; close() lets go of the old one."
            )
    except BaseException:
        file.close()
        raise
    return file


def item_shape(shard: Shard) -> tuple[int | None, ...]:
    """Shape of a record, its first dimension None for any size; () for sequences."""
    return tuple(shard.extension.get("item_shape", ()))


def pack_footer(*, records: int, payload_bytes: int, dtype: np.dtype) -> bytes:
    """The 32 bytes that end a shard."""
    name = dtype.name.encode()[:8]
    return FOOTER_02.pack(records, payload_bytes, name, MAGIC_02)


def pack_tail(
    ends: np.ndarray, *, dtype: np.dtype, extension: dict, sections: dict[str, bytes]
) -> bytes:
    """Index, extension and footer of a shard whose records end at bytes `ends`."""
    payload_bytes = int(ends[-1]) if ends.size else 0
    footer = pack_footer(records=ends.size, payload_bytes=payload_bytes, dtype=dtype)
    index = ends.astype("<i8").tobytes()
    return index + extension_format.pack(extension, sections) + footer


def map_index(shard: Shard) -> np.ndarray:
    """End offsets of the records of `shard`, int64 [records], mapped."""
    if not shard.records:
        return np.empty(0, np.int64)
    with open_again(shard) as file:
        shape = (shard.records,)
        return np.memmap(file, "<i8", "r", shard.payload_bytes, shape)  # pyrefly: ignore


def read_shard(path: str | os.PathLike) -> Shard:
    """Parses the tail of `path`; cost does not grow with the file.

    Raises:
        ShardFormatError: The file is no complete shard; names file, size and what was
            expected.
        FileNotFoundError: There is no such file.
    """
    path = str(os.fspath(path))
    with open(path, "rb", buffering=0) as file:
        return _Parser(path, file.fileno()).parse()


def _version(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_ino, stat.st_mtime_ns


class _Parser:
    """Reads one shard's tail; every size is checked against the file's before use."""

    def __init__(self, path: str, fd: int):
        self._path = path
        self._fd = fd
        stat = os.fstat(fd)
        self._size, self._version = stat.st_size, _version(stat)
        self._tail = os.pread(
            fd, min(self._size, _TAIL_BYTES), max(0, self._size - _TAIL_BYTES)
        )

    def parse(self) -> Shard:
        magic = self._tail[-8:]
        if magic == MAGIC_02 and self._size >= FOOTER_02.size:
            return self._parse_02()
        if magic == MAGIC_01 and self._size >= FOOTER_01.size:
            return self._parse_01()
        raise self._error(
            f"its last bytes are {magic!r}, expected a footer of {FOOTER_02.size} bytes"
            f" that ends in {MAGIC_02!r} (or {FOOTER_01.size} bytes in {MAGIC_01!r})."
            " Not a .rox shard, or its copy is not complete: copy or write it again"
        )

    def _parse_01(self) -> Shard:
        records, payload, _ = FOOTER_01.unpack(self._tail[-FOOTER_01.size :])
        gap = self._gap(records, payload, FOOTER_01.size)
        if gap:
            raise self._error(
                f"{payload} payload bytes and {records} records of a ROXXEL01 footer"
                f" make a file of {self._size - gap} bytes"
            )
        self._check_last_offset(records, payload)
        return self._shard(records, payload, np.dtype(np.uint8), payload, {})

    def _parse_02(self) -> Shard:
        records, payload, name, _ = FOOTER_02.unpack(self._tail[-FOOTER_02.size :])
        gap = self._gap(records, payload, FOOTER_02.size)
        extension, sections = self._read_extension(gap)
        dtype = self._dtype(name, extension)
        self._check_last_offset(records, payload)
        elements = extension.get("elements", payload // dtype.itemsize)
        try:
            extension_format.check(extension, sections, records, payload, dtype)
        except ValueError as err:
            raise self._error(str(err)) from err
        shard = self._shard(records, payload, dtype, elements, extension)
        return dataclasses.replace(shard, sections=sections)

    def _gap(self, records: int, payload: int, footer_bytes: int) -> int:
        """Bytes between index and footer."""
        gap = self._size - payload - records * OFFSET_BYTES - footer_bytes
        if records < 0 or payload < 0 or gap < 0:
            raise self._error(
                f"its footer claims {records} records and {payload} payload bytes,"
                f" expected counts >= 0 that need at most {self._size} bytes with"
                f" {OFFSET_BYTES} a record for the index and {footer_bytes} for the"
                " footer"
            )
        if records == 0 and payload:
            raise self._error(
                f"its footer claims no records in {payload} payload bytes, expected at"
                " least one"
            )
        return gap

    def _check_last_offset(self, records: int, payload: int) -> None:
        if not records:
            return
        at = payload + (records - 1) * OFFSET_BYTES
        last = int.from_bytes(os.pread(self._fd, OFFSET_BYTES, at), "little")
        if last != payload:
            raise self._error(
                f"its index ends at {last}, expected the {payload} payload bytes of"
                " its footer"
            )

    def _read_extension(self, gap: int) -> tuple[dict, dict]:
        if not gap:
            return {}, {}
        begin = self._size - FOOTER_02.size - gap
        try:
            return extension_format.read(self._fd, begin, gap)
        except ValueError as err:
            raise self._error(str(err)) from err

    def _dtype(self, field: bytes, extension: dict) -> np.dtype:
        name = field.rstrip(b"\0").decode("utf-8", "backslashreplace")
        full = extension.get("dtype", name)
        if full[:8] != name:
            raise self._error(
                f"its footer says dtype {name!r}, its extension {full!r}: expected the"
                " same first 8 characters"
            )
        try:
            return dtypes.parse(full)
        except ValueError as err:
            raise self._error(str(err)) from err

    def _shard(self, records, payload, dtype, elements, extension) -> Shard:
        return Shard(
            path=self._path,
            file_bytes=self._size,
            records=records,
            payload_bytes=payload,
            dtype=dtype,
            elements=elements,
            extension=extension,
            version=self._version,
        )

    def _error(self, what: str) -> ShardFormatError:
        return ShardFormatError(f"{self._path}: {self._size} bytes, {what}.")
