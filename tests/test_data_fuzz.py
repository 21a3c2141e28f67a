"""Damaged files: each reads as before or is refused, whatever was damaged and how."""

import contextlib
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from roxxel import Roxxel, ShardFormatError
from roxxel.data import rox_format

CASES = {
    "blocks": ([np.arange(3000, dtype=np.int32)], {"block_size": 400}),
    "items": (np.arange(600, dtype=np.uint8).reshape(50, 4, 3), {"item_shape": (4, 3)}),
    "ragged": ([bytes(range(n % 97)) for n in range(150)], {"item_shape": (None,)}),
    "empty": ([], {}),
}
METADATA = {
    "a": [1, "b"],
    "tokenizer": {"name": "bpe", "fingerprint": "a1", "vocab_size": 300},
    "build": {"files": ["a.txt"], "bytes": 3},
}
EXTREMES = [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 31, 32, 4096]


def everything(path, verify):
    data = Roxxel(path, verify=verify)
    rows = data.rows(np.arange(data.num_elements // 7), 7)
    records = [(r.shape, r.tobytes()) for r in data[:]]
    facts = (len(data), data.dtype, data.item_shape, data.metadata)
    return facts, records, rows.tobytes(), data.elements(0, data.num_elements).tobytes()


@contextlib.contextmanager
def bounded_memory(size):
    """Allocations stay in proportion to a file of `size` bytes."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < 16 * size + (1 << 20)


@pytest.fixture(autouse=True)
def traced():
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


def mutate(raw, begin, rng):
    """`raw` with one kind of damage behind byte `begin`."""
    content = bytearray(raw)
    # half of them in the tail, where the sizes are
    low = begin if rng.integers(2) else max(begin, len(raw) - 120)
    at = int(rng.integers(low, len(raw)))
    match int(rng.integers(6)):
        case 0:
            content[at] ^= 1 << int(rng.integers(8))
        case 1:
            for i in rng.integers(low, len(raw), 4).tolist():
                content[i] = int(rng.integers(256))
        case 2:
            value = EXTREMES[int(rng.integers(len(EXTREMES)))]
            content[at : at + 8] = value.to_bytes(8, "little", signed=True)
        case 3:
            del content[at : at + int(rng.integers(1, 60))]
        case 4:
            content[at:at] = content[at : at + int(rng.integers(1, 60))]
        case 5:
            content[at : at + 16] = bytes(16)
    return bytes(content)


@pytest.mark.parametrize("verify", ["lazy", None])
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_read_as_before_or_are_refused(tmp_path, name, verify):
    items, options = CASES[name]
    path = tmp_path / "a.rox"
    Roxxel(path).write(items, metadata=METADATA, **options)
    raw = path.read_bytes()
    payload = int.from_bytes(raw[-24:-16], "little")
    # without checks only the structure is looked at, and lengths have no structure
    begin = 0 if verify else payload
    if name == "ragged" and not verify:
        begin += 8 * len(Roxxel(path))
    expected = everything(path, verify)
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(1250):
        mutated = mutate(raw, begin, rng)
        path.write_bytes(mutated)
        try:
            with bounded_memory(len(mutated)):
                assert everything(path, verify) == expected
        except ShardFormatError:
            refused += 1
            continue
    assert refused > 500


JUNK = [None, True, -1, 0, 1, 7, 2**31, 2**63, -(2**70), 1e300, float("nan")]
JUNK += ["", "int32", "crc32", "x" * 300, [], [None], [[]], [1, 2], ["sums", 4], [-1]]
JUNK += [[["sums", 2**62]], [["sums", -4]], {}, {"name": 3}, {"kind": "crc32"}, [0, 1]]


def with_body(raw, body, sections):
    """`raw` with another JSON body, its length and CRC-32 right."""
    payload_and_index, footer = raw[: sections["begin"]], raw[-32:]
    text = json.dumps(body).encode()
    total = len(sections["raw"]) + len(text) + 32
    crc = zlib.crc32(text)
    trailer = struct.pack("<qqIi8s", total, len(text), crc, 2, b"ROXXEXT\0")
    return payload_and_index + sections["raw"] + text + trailer + footer


@pytest.mark.parametrize("name", CASES)
def test_every_field_of_the_extension_is_checked_before_it_is_used(tmp_path, name):
    """Bodies whose checksum is right: what they say is read or refused, never obeyed
    into a crash or an allocation."""
    items, options = CASES[name]
    path = tmp_path / "a.rox"
    separator = {} if "item_shape" in options else {"separator": 1}
    Roxxel(path).write(items, metadata=METADATA, **separator, **options)
    raw, shard = path.read_bytes(), rox_format.read_shard(path)
    begin, size = shard.sections["sums"]
    sections = {"begin": begin, "raw": raw[begin : begin + size]}
    body = shard.extension
    assert with_body(raw, body, sections) != b""
    assert {"tokenizer", "build", "metadata", "separator", "pad", "sums"} < set(body)
    bodies = [body | {field: junk} for field in body for junk in JUNK]
    for field in ("sums", "tokenizer"):
        bodies += [
            body | {field: body[field] | {key: junk}}
            for key in body[field]
            for junk in JUNK
        ]
    bodies += [{k: v for k, v in body.items() if k != field} for field in body]
    refused = 0
    for changed in bodies:
        mutated = with_body(raw, changed, sections)
        path.write_bytes(mutated)
        try:
            with bounded_memory(len(mutated)):
                everything(path, "lazy")
                Roxxel(path).fingerprint()
        except ShardFormatError:
            refused += 1
    assert refused > len(bodies) // 3
