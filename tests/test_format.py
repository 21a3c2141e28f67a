"""The bytes on disk: golden files, old writers' files, and every way to damage one.

`read_plainly` knows only the documented layout, not roxxel. The golden bytes may change
only with a new version of the extension, whose readers then read both.
"""

import hashlib
import json
import pathlib
import struct
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roxxel import Roxxel, ShardFormatError
from roxxel.data import rox_format

DATA = pathlib.Path(__file__).parent / "data"
EXPECTED = json.loads((DATA / "expected.json").read_text())


def read_plainly(path):
    """(records as bytes, dtype name, extension) of a ROXXEL02 file."""
    raw = pathlib.Path(path).read_bytes()
    records, payload, name, magic = struct.unpack("<qq8s8s", raw[-32:])
    assert magic == b"ROXXEL02"
    ends = struct.unpack(f"<{records}q", raw[payload : payload + 8 * records])
    blocks = [raw[a:b] for a, b in zip((0, *ends), ends, strict=False)]
    gap = raw[payload + 8 * records : -32]
    total, size, crc, version, magic = struct.unpack("<qqIi8s", gap[-32:])
    assert (total, version, magic) == (len(gap), 2, b"ROXXEXT\0")
    body = gap[len(gap) - 32 - size : len(gap) - 32]
    assert zlib.crc32(body) == crc
    extension, sections = json.loads(body), gap[: len(gap) - 32 - size]
    assert extension["sections"] == [["sums", len(sections)]]
    facts = extension["sums"]
    assert facts["kind"] == "crc32"
    assert facts["digest"] == hashlib.blake2b(sections, digest_size=16).hexdigest()
    span = facts["span_bytes"]
    spans = [
        zlib.crc32(raw[i : min(i + span, payload)]) for i in range(0, payload, span)
    ]
    assert sections == struct.pack(f"<{len(spans)}I", *spans)
    return blocks, name.rstrip(b"\0").decode(), extension


@pytest.mark.parametrize("name", EXPECTED)
def test_files_of_old_writers_read_as_expected(name):
    # "rox02_int32_*.rox" is rox02_int32_base_0000.rox to _0003.rox
    expected = EXPECTED[name]
    with Roxxel(DATA / name) as data:
        records = [record.tobytes() for record in data[:]]
        assert data.dtype.name == expected["dtype"]
        assert len(data) == len(records) == expected["records"]
        sizes = [len(record) for record in records]
        assert sizes[:6] == expected["record_bytes"]
        assert sum(sizes) == expected["data_bytes"]
        digest = hashlib.sha256(b"".join(records)).hexdigest()
        assert digest == expected["sha256_of_all_record_bytes"]
        prefix = records[0][:16].hex()
        assert prefix.startswith(expected["first_record_hex_prefix"][: len(prefix)])
        assert data.num_elements * data.dtype.itemsize == expected["data_bytes"]
        assert data.elements(0, data.num_elements).tobytes() == b"".join(records)
        assert data.is_complete
        assert data.metadata == {}


GOLDEN_BODY = (
    b'{"block_bytes":4,"dtype":"int16","elements":6,"item_shape":[],"last":true,'
    b'"metadata":{"k":1},"pad":-1,"range":null,%s"separator":[-1],"shard":0%s}'
)


def golden(version, body, section=b""):
    raw = struct.pack("<6h", 1, 2, 3, -1, 4, -1) + struct.pack("<3q", 4, 8, 12)
    total = len(section) + len(body) + 32
    raw += section + body
    raw += struct.pack(
        "<qqIi8s", total, len(body), zlib.crc32(body), version, b"ROXXEXT\0"
    )
    return raw + struct.pack("<qq8s8s", 3, 12, b"int16", b"ROXXEL02")


def test_golden_bytes(tmp_path):
    path = tmp_path / "a.rox"
    items = [np.array([1, 2, 3], np.int16), [4]]
    Roxxel(path).write(items, block_size=4, separator=-1, metadata={"k": 1})
    sums = (
        b',"sums":{"digest":"3f0d451990680204dc95f972437bd50d","kind":"crc32",'
        b'"span_bytes":4096}'
    )
    body = GOLDEN_BODY % (b'"sections":[["sums",4]],', sums)
    section = struct.pack("<I", 0x75EEB436)
    assert path.read_bytes() == golden(2, body, section)


def test_golden_bytes_of_version_1_are_read(tmp_path):
    path = tmp_path / "a.rox"
    path.write_bytes(golden(1, GOLDEN_BODY % (b"", b"")))
    data = Roxxel(path)
    assert data.elements(0, 6).tolist() == [1, 2, 3, -1, 4, -1]
    assert data.metadata == {"k": 1}
    data.write([[5]], block_size=4, separator=-1, mode="append")
    assert data.elements(0, 8).tolist() == [1, 2, 3, -1, 4, -1, 5, -1]


def test_a_plain_reader_of_the_layout_reads_what_is_written(tmp_path):
    documents = [np.arange(i, dtype=np.uint16) for i in range(300)]
    data = Roxxel(tmp_path / "w_*.rox")
    data.write(documents, block_size=64, max_shard_bytes=9000, separator=[7, 8])
    flat = np.concatenate([np.append(d, [7, 8]) for d in documents[1:]])
    payload, elements = b"", 0
    for path in data.shards:
        blocks, name, extension = read_plainly(path)
        assert name == extension["dtype"] == "uint16"
        assert {len(block) for block in blocks} == {64}
        assert pathlib.Path(path).stat().st_size <= 9000
        payload += b"".join(blocks)[: extension["elements"] * 2]
        elements += extension["elements"]
    assert payload == flat.astype("<u2").tobytes()
    assert elements == flat.size == data.num_elements
    assert extension["last"]
    assert extension["separator"] == [7, 8]


@pytest.mark.parametrize("block", [1, 100, 3000, 4095, 4096, 5000, 1 << 16])
@pytest.mark.parametrize("size", [1, 5000, 65536, 200_001])
def test_sums_cover_blocks_of_any_size(tmp_path, block, size):
    path = tmp_path / "a.rox"
    pieces = np.split(np.arange(size).astype(np.uint8), [size // 3])
    Roxxel(path).write(pieces, block_size=block)
    span = read_plainly(path)[2]["sums"]["span_bytes"]
    assert span % block == 0
    assert span == block or 2048 < span <= 4096


def test_few_bytes_are_added_to_the_payload(tmp_path):
    path = tmp_path / "a.rox"
    Roxxel(path).write([np.zeros(1 << 20, np.int32)])
    assert path.stat().st_size <= 1.005 * (4 << 20)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
        "int4",
    ],
)
def test_every_dtype_round_trips(tmp_path, dtype):
    # float8_e4m3fn is longer than the footer's 8 bytes: the extension has it in full
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.arange(7).astype(dtype)
    data = Roxxel(tmp_path / "a.rox").write([values, values], block_size=16)
    assert data.dtype == dtype
    got = data.elements(0, 14)
    assert got.dtype == dtype
    assert got.tobytes() == np.concatenate([values, values]).tobytes()
    assert data.rows([1], 7).tobytes() == values.tobytes()


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "good.rox"
    Roxxel(path).write([np.arange(1000, dtype=np.int32)], block_size=256)
    return path


def assert_refused(path, *words):
    with pytest.raises(ShardFormatError) as caught:
        Roxxel(path).open()
    message = str(caught.value)
    for word in (path.name, str(path.stat().st_size), "expected", *words):
        assert word in message


@pytest.mark.parametrize("cut", [1, 8, 31, 32, 33, 100, 2222])
def test_a_cut_file_is_refused(shard, cut):
    shard.write_bytes(shard.read_bytes()[:-cut])
    assert_refused(shard, "ROXXEL02")


@pytest.mark.parametrize("raw", [b"", b"short", b"plain text, no shard\n" * 99])
def test_a_foreign_file_is_refused(tmp_path, raw):
    path = tmp_path / "foreign.rox"
    path.write_bytes(raw)
    assert_refused(path, "ROXXEL02")


@pytest.mark.parametrize(
    ("at", "raw"),
    [
        (-32, struct.pack("<q", 2**62)),  # records: no huge allocation
        (-32, struct.pack("<q", -1)),
        (-32, struct.pack("<q", 15)),  # one fewer than there are
        (-32, struct.pack("<q", 0)),
        (-24, struct.pack("<q", 2**62)),  # payload bytes
        (-24, struct.pack("<q", -(2**63))),
        (-24, struct.pack("<q", 0)),
        (-24, struct.pack("<q", 4088)),
        (-16, b"int64\0\0\0"),  # not what the extension says
        (-16, b"\xff" * 8),
        (-40, b"ROXXEXT1"),  # trailer of the extension
        (-64, struct.pack("<q", 2**62)),
        (-56, struct.pack("<q", 2**62)),
        (-56, struct.pack("<q", -5)),
        (-48, b"\0\0\0\0"),
        (-44, struct.pack("<i", 99)),
        (-70, b"X"),  # within the JSON
        (4096 + 15 * 8, struct.pack("<q", 4095)),  # the last end offset
    ],
)
def test_a_damaged_tail_is_refused(shard, at, raw):
    content = bytearray(shard.read_bytes())
    at %= len(content)
    content[at : at + len(raw)] = raw
    shard.write_bytes(content)
    assert_refused(shard)


def test_a_damaged_index_is_found_where_it_is_used(shard, tmp_path):
    content = bytearray(shard.read_bytes())
    content[4096 + 24 : 4096 + 32] = struct.pack("<q", -9)
    shard.write_bytes(content)
    data = Roxxel(shard)
    with pytest.raises(ShardFormatError, match="index puts record 3 at bytes"):
        data[3]
    with pytest.raises(ShardFormatError, match="record 4"):
        data[4]
    assert data.elements(0, 1000).tolist() == list(range(1000))  # needs no index


def forge(path, payload, ends, dtype, body=None, version=1):
    """A file with a valid check sum over whatever the body says."""
    raw = payload + np.array(ends, "<i8").tobytes()
    if body is not None:
        trailer = (len(body) + 32, len(body), zlib.crc32(body), version, b"ROXXEXT\0")
        raw += body + struct.pack("<qqIi8s", *trailer)
    footer = struct.pack("<qq8s8s", len(ends), len(payload), dtype, b"ROXXEL02")
    path.write_bytes(raw + footer)


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (b">i4", "byte order"),
        (b"int99", "unknown"),
        (b"float8_e", "unknown"),  # cut by an old writer: no telling which float8
        (b"complex1", "unknown"),
        (b"object", "not an integer"),
        (b"S8", "not an integer"),
        (b"", ""),
    ],
)
def test_an_unsupported_dtype_is_refused(tmp_path, dtype, words):
    path = tmp_path / "a.rox"
    forge(path, bytes(16), [8, 16], dtype)
    with pytest.raises(ShardFormatError, match=rf"a\.rox: 64 bytes.*{words}"):
        Roxxel(path).open()


def test_an_old_footer_may_name_its_dtype_as_numpy_codes(tmp_path):
    forge(tmp_path / "a.rox", struct.pack("<4i", 1, 2, 3, 4), [16], b"<i4")
    assert Roxxel(tmp_path / "a.rox").elements(0, 4).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "no 'dtype'"),
        (b"not json", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"dtype":"int32","elements":true,"block_bytes":8}', "'elements'"),
        (b'{"dtype":"int32","elements":5,"block_bytes":8}', "counts 5 elements"),
        (b'{"dtype":"int32","elements":-1,"block_bytes":8}', "counts -1 elements"),
        (b'{"dtype":"int32","elements":2,"block_bytes":8}', "counts 2 elements"),
        (b'{"dtype":"int32","elements":4,"block_bytes":16}', "2 blocks of 16"),
        (b'{"dtype":"int32","elements":4,"block_bytes":8,"range":[0,1e99]}', "range"),
        (b'{"dtype":"int32","elements":4,"block_bytes":8,"range":[5,2]}', "range"),
    ],
)
def test_an_impossible_extension_is_refused(tmp_path, body, words):
    path = tmp_path / "a.rox"
    forge(path, bytes(16), [8, 16], b"int32", body)
    with pytest.raises(ShardFormatError, match=words):
        Roxxel(path).open()


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (b"", "sections None"),
        (b',"sections":5', "sections 5"),
        (b',"sections":[["sums",9]]', "of 8 bytes in all"),
        (b',"sections":[["x",-1],["y",9]]', "of 8 bytes in all"),
        (b',"sections":[["sums",true]]', "sections"),
        (b',"sections":[["sums",8]]', "describes sums as None"),
        (b',"sections":[["sums",8]],"sums":[]', r"describes sums as \[\]"),
        (b',"sections":[["sums",8]],"sums":{"kind":"x"}', "describes sums as"),
        (b',"sections":[["a",8]],"sums":%s', "has 0 bytes of sums"),
        (b',"sections":[["a",4],["sums",4]],"sums":%s', "has 4 bytes of sums"),
    ],
)
def test_impossible_sections_are_refused(tmp_path, listed, words):
    sums = b'{"digest":"","kind":"crc32","span_bytes":8}'
    listed = listed.replace(b"%s", sums)
    body = b'{"dtype":"int32","elements":4,"block_bytes":8%s}' % listed
    forge_sections(tmp_path / "a.rox", body, bytes(8), version=2)
    with pytest.raises(ShardFormatError, match=words):
        Roxxel(tmp_path / "a.rox").open()


@pytest.mark.parametrize(
    ("version", "listed"),
    [(1, b'"news":[1]'), (2, b'"sections":[["news",2],["more",3]]')],
)
def test_unknown_sections_are_skipped(tmp_path, version, listed):
    body = b'{"dtype":"int32","elements":4,"block_bytes":8,%s}' % listed
    forge_sections(tmp_path / "a.rox", body, b"12345", version)
    assert Roxxel(tmp_path / "a.rox").num_elements == 4


def forge_sections(path, body, sections, version):
    forge(path, bytes(16), [8, 16], b"int32", body)
    raw = path.read_bytes()
    total = len(body) + 32 + len(sections)
    trailer = (total, len(body), zlib.crc32(body), version, b"ROXXEXT\0")
    tail = body + struct.pack("<qqIi8s", *trailer) + raw[-32:]
    path.write_bytes(raw[:32] + sections + tail)


def test_shards_of_two_dtypes_are_refused(tmp_path):
    Roxxel(tmp_path / "s_0.rox").write([[1, 2]], block_size=8)
    Roxxel(tmp_path / "s_1.rox").write([[1, 2]], block_size=8, dtype="uint16")
    with pytest.raises(ShardFormatError, match=r"s_1\.rox: dtype uint16, expected int"):
        Roxxel(tmp_path / "s_*.rox").open()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_flipped_byte_of_a_tail_is_read_as_other_sizes(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("flip") / "a.rox"
    Roxxel(path).write([np.arange(50, dtype=np.int32)], block_size=40)
    content = bytearray(path.read_bytes())
    begin = 200 + 5 * 8 + 4  # behind payload, index and sums
    at = data.draw(st.integers(begin, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(ShardFormatError):
        rox_format.read_shard(path)
