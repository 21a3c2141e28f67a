"""The extension of a `.rox` shard: what 32 bytes of footer cannot say.

The trailer of the extension is `<qqIi8s` = bytes of the whole extension, bytes of the
JSON body, CRC-32 of the JSON body, version, b"ROXXEXT\\0". The first
`extension bytes - body bytes - 32` bytes are binary sections, one behind the other as
the body lists them. Version 1 lists none, and its readers skip what is there; version
2 is written. A reader skips sections that it does not know. The body is an object:

    dtype       full name; the footer holds its first 8 characters
    elements    valid elements in the payload: what follows is padding
    block_bytes bytes of a block; 0 where every record has a length of its own
    item_shape  [] for sequences; else the shape of a record, whose first dimension may
                be null for any length
    range       least and greatest value of integers that may not fit int32, or null
    separator   list of elements added after each document, or null
    pad         the element that fills the last block
    shard       number of this shard within the write that made it, from 0
    last        whether the write ended with this shard
    tokenizer   what made the elements: an object with "name" and, where known,
                "fingerprint" (text) and "vocab_size"; left out where none was named
    build       what the data were built from, an object; left out where not known
    metadata    whatever else the caller of `write` gave
    sections    [name, bytes] of every binary section (version 2)
    sums        what the section "sums" holds (version 2), an object:
        kind        "crc32": little-endian uint32, the CRC-32 of zlib, gzip and PNG
        span_bytes  bytes under one sum, whole blocks; the last span may be shorter
        digest      BLAKE2b of the section, 16 bytes in hex
    index_digest BLAKE2b of the index, where block_bytes is 0
"""

import json
import math
import os
import struct
import zlib

import numpy as np

PROVENANCE = ("tokenizer", "build")  # given to `write` in metadata, fields of their own
MAGIC = b"ROXXEXT\0"
VERSION = 2

TRAILER = struct.Struct("<qqIi8s")
SUM_BYTES = 4
_MAX_SPAN = 1 << 61


def pack(body: dict, sections: dict[str, bytes]) -> bytes:
    """Sections, JSON body and trailer, the bytes between index and footer."""
    body = body | {"sections": [[name, len(raw)] for name, raw in sections.items()]}
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    binary = b"".join(sections.values())
    total = len(binary) + len(text) + TRAILER.size
    return (
        binary + text + TRAILER.pack(total, len(text), zlib.crc32(text), VERSION, MAGIC)
    )


def read(fd: int, begin: int, size: int) -> tuple[dict, dict[str, tuple[int, int]]]:
    """Body, and first byte and bytes of every section, of an extension in a file.

    Raises:
        ValueError: It is none; says what was found and expected.
    """
    if size < TRAILER.size:
        raise ValueError(
            f"{size} bytes lie between its index and its footer, expected none or"
            f" an extension of at least {TRAILER.size} bytes"
        )
    room = size - TRAILER.size
    total, body_bytes, crc, version, magic = TRAILER.unpack(
        os.pread(fd, TRAILER.size, begin + room)
    )
    if magic != MAGIC or total != size:
        raise ValueError(
            f"the {size} bytes between its index and its footer end in {magic!r}"
            f" and claim {total} bytes, expected {MAGIC!r} and {size}"
        )
    if not 0 <= body_bytes <= room:
        raise ValueError(
            f"its extension of {size} bytes claims a body of {body_bytes} bytes,"
            f" expected 0 to {room}"
        )
    if not 1 <= version <= VERSION:
        raise ValueError(
            f"its extension has version {version}, expected 1 to {VERSION}; read it"
            " with a newer roxxel"
        )
    room -= body_bytes
    body = _parse_body(os.pread(fd, body_bytes, begin + room), crc)
    return body, _sections(body, begin, room) if version > 1 else {}


def split_metadata(metadata: dict) -> dict:
    """The fields of the body that hold what was given as `metadata`."""
    own = {k: v for k, v in metadata.items() if k in PROVENANCE and isinstance(v, dict)}
    return own | {"metadata": {k: v for k, v in metadata.items() if k not in own}}


def joined_metadata(body: dict) -> dict:
    """What was given as `metadata`, from the fields of the body."""
    found = body.get("metadata")
    joined = dict(found) if isinstance(found, dict) else {}
    return joined | {key: body[key] for key in PROVENANCE if key in body}


def check_tokenizer(tokenizer: dict) -> None:
    """Whether the description of a tokenizer is one.

    Raises:
        ValueError: It is not; says what was found and expected.
    """
    kinds = {"name": str, "fingerprint": str | None, "vocab_size": int | None}
    if any(not isinstance(tokenizer.get(key), kind) for key, kind in kinds.items()):
        raise ValueError(
            f"tokenizer is {tokenizer!r:.200}, expected the texts name and fingerprint"
            " and the int vocab_size"
        )


def check(
    body: dict, sections: dict, records: int, payload: int, dtype: np.dtype
) -> None:
    """Whether the body goes with the footer; an empty body always does.

    Raises:
        ValueError: It does not; says what was found and expected.
    """
    if body:
        _check_elements(body, records, payload, dtype)
        _check_item_shape(body.get("item_shape", []), body["block_bytes"], dtype)
        _check_sums(body.get("sums"), sections.get("sums"), payload)
        _check_rest(body)


def _parse_body(raw: bytes, crc: int) -> dict:
    if zlib.crc32(raw) != crc:
        raise ValueError(
            f"its extension has CRC-32 {zlib.crc32(raw):#010x}, expected {crc:#010x}"
        )
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise ValueError("its extension is not JSON") from err
    for key, kind in {"dtype": str, "elements": int, "block_bytes": int}.items():
        if not isinstance(body, dict) or type(body.get(key)) is not kind:
            raise ValueError(f"its extension has no {key!r} of type {kind.__name__}")
    return body


def _sections(body: dict, begin: int, size: int) -> dict[str, tuple[int, int]]:
    sections = {}
    at = begin
    listed = body.get("sections")
    for pair in listed if isinstance(listed, list) else [None]:
        if not _is_section(pair):
            at = -1
            break
        sections[pair[0]] = (at, pair[1])
        at += pair[1]
    if at != begin + size:
        raise ValueError(
            f"its extension lists the sections {listed!r:.60}, expected [name, bytes]"
            f" of {size} bytes in all"
        )
    return sections


def _is_section(pair) -> bool:
    is_pair = isinstance(pair, list) and [type(x) for x in pair] == [str, int]
    return is_pair and pair[1] >= 0


def _check_elements(body: dict, records: int, payload: int, dtype: np.dtype) -> None:
    elements, block_bytes = body["elements"], body["block_bytes"]
    padding = payload - elements * dtype.itemsize
    if block_bytes and block_bytes * records != payload:
        raise ValueError(
            f"{records} blocks of {block_bytes} bytes are not the {payload} payload"
            " bytes of its footer"
        )
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    noted = body.get("range")
    if noted is not None and not (limits and _is_range(noted, limits)):
        raise ValueError(
            f"its extension has the range {noted!r:.60}, expected two integers of"
            f" {dtype.name}"
        )
    if elements < 0 or not 0 <= padding <= max(0, block_bytes - 1):
        raise ValueError(
            f"its extension counts {elements} elements of {dtype.name} in {payload}"
            f" payload bytes, expected padding of 0 to {block_bytes - 1} bytes"
        )


def _check_item_shape(shape, block_bytes: int, dtype: np.dtype) -> None:
    is_list = isinstance(shape, list)
    sizes = shape[1:] if is_list and shape and shape[0] is None else shape
    if not is_list or any(type(size) is not int or size < 1 for size in sizes):
        raise ValueError(
            f"its extension has the item_shape {shape!r:.60}, expected sizes of at"
            " least 1, the first of which may be null"
        )
    expected = math.prod(sizes) * dtype.itemsize if sizes is shape else 0
    if shape and expected != block_bytes:
        raise ValueError(
            f"its extension has items {shape!r:.60} of {dtype.name} in records of"
            f" {block_bytes} bytes, expected {expected}"
        )


def _check_rest(body: dict) -> None:
    """What is stated for people and for further writes."""
    shard, is_last = body.get("shard", 0), body.get("last", True)
    if type(shard) is not int or shard < 0 or type(is_last) is not bool:
        raise ValueError(
            f"its extension has shard {shard!r:.60} and last {is_last!r:.60}, expected"
            " a number of at least 0 and true or false"
        )
    separator, pad = body.get("separator"), body.get("pad", 0)
    values = [0] if separator is None else separator
    is_fine = isinstance(values, list) and len(values) > 0
    is_fine = is_fine and all(type(x) in (int, float, bool) for x in [pad, *values])
    if not is_fine:
        raise ValueError(
            f"its extension has separator {separator!r:.60} and pad {pad!r:.60},"
            " expected a list of numbers, or null, and a number"
        )
    wrong = [k for k in PROVENANCE if k in body and not isinstance(body[k], dict)]
    if wrong:
        raise ValueError(f"its extension has a {wrong[0]} that is no object")
    check_tokenizer(body.get("tokenizer", {"name": ""}))


def _is_range(noted, limits: np.iinfo) -> bool:
    return (
        isinstance(noted, list)
        and [type(value) for value in noted] == [int, int]
        and limits.min <= noted[0] <= noted[1] <= limits.max
    )


def _check_sums(noted, section: tuple[int, int] | None, payload: int) -> None:
    if noted is None and section is None:
        return
    kinds = {"kind": str, "span_bytes": int, "digest": str}
    if not isinstance(noted, dict) or any(
        type(noted.get(key)) is not kind for key, kind in kinds.items()
    ):
        raise ValueError(
            f"its extension describes sums as {noted!r:.60}, expected"
            f" {', '.join(kinds)}"
        )
    size, span = section[1] if section else 0, noted["span_bytes"]
    if not 1 <= span <= _MAX_SPAN or size != -(-payload // span) * SUM_BYTES:
        raise ValueError(
            f"its extension has {size} bytes of sums, expected {SUM_BYTES} for every"
            f" {span} of {payload} payload bytes"
        )
