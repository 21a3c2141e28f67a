"""Arrays, nanoGPT `.bin` files and Megatron pairs as sources, and built from."""

import collections
import pickle
import struct

import numpy as np
import pytest

from roxxel.building import foreign, tokens
from roxxel.building.arrays import ArraySource
from roxxel.building.megatron import MegatronSource
from roxxel.building.nanogpt import BinSource
from roxxel.errors import ConfigError

EOT = 50256


def plain(source) -> list[list[int]]:
    """The documents of all parts, each part sent as to a worker process."""
    parts = pickle.loads(pickle.dumps(list(source.parts())))
    return [doc.tolist() for part in parts for doc in part.documents()]


def elements(data) -> list[int]:
    return data.elements(0, data.num_elements).tolist()


def refused(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as info:
        plain(make())
    assert "\n" not in str(info.value)


# Arrays


ARRAYS = {
    "one": (np.array([3, 1], np.uint16), [[3, 1]]),
    "rows": (np.arange(6, dtype=np.int64).reshape(3, 2), [[0, 1], [2, 3], [4, 5]]),
    "list": ([np.array([1]), np.array([2, 3])], [[1], [2, 3]]),
    "ints": ([[1, 2], [], (3,)], [[1, 2], [3]]),  # what is empty is left out
    "empty first": ([np.array([]), np.array([7])], [[7]]),  # float64, and no matter
    "big endian": (np.array([1, 2, 70000], ">i4"), [[1, 2, 70000]]),
    "strided": (np.arange(6)[::2], [[0, 2, 4]]),
    "transposed": (np.arange(4).reshape(2, 2).T, [[0, 2], [1, 3]]),
    "mixed": ([np.array([[1, 2], [3, 4]]), np.array([5])], [[1, 2], [3, 4], [5]]),
    "deque": (collections.deque([[1], [2]]), [[1], [2]]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_in_memory(kind, tmp_path):
    inputs, expected = ARRAYS[kind]
    assert plain(ArraySource(inputs)) == expected
    if isinstance(inputs, np.ndarray):
        np.save(tmp_path / "a.npy", inputs)
        np.savez(tmp_path / "a.npz", first=inputs, second=inputs)
        assert plain(ArraySource(tmp_path / "a.npy")) == expected
        assert plain(ArraySource(tmp_path / "a.npz")) == expected * 2
        fortran = np.asfortranarray(inputs)
        np.save(tmp_path / "f.npy", fortran)
        assert plain(ArraySource([tmp_path / "f.npy"])) == expected


def generated():
    yield np.array([1, 2])
    yield [3]


def test_arrays_of_a_function_are_read_anew_each_time():
    source = ArraySource(generated)
    assert plain(source) == plain(source) == [[1, 2], [3]]
    assert source.key() == ArraySource([[1, 2], [3]]).key()
    assert source.key() != ArraySource([[1], [2, 3]]).key()
    assert ArraySource(generated, key="v1").key()["inputs"] == "v1"
    refused(lambda: ArraySource(generated()), "a generator can be read only once")


def test_large_arrays_are_parts_of_some_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "PART_BYTES", 100)
    array = np.arange(300, dtype=np.uint16).reshape(30, 10)
    np.save(tmp_path / "a.npy", array)
    for source in (ArraySource(tmp_path / "*.npy"), ArraySource(list(array))):
        assert [part.size for part in source.parts()] == [5] * 6
        assert plain(source) == array.tolist()
    (part, *_) = ArraySource(tmp_path / "a.npy").parts()
    assert not next(part.documents()).flags.owndata  # mapped


WRONG_ARRAYS = {
    "floats": (np.array([1.0]), r"array 0: holds float64, expected integer ids; if th"),
    "objects": (np.array([1, "a"], object), "array 0: holds object, .*; object arrays"),
    "text": (["abc"], "no file matches .*abc"),
    "texts": ([[1], "abc"], "array 1: is str, expected token ids"),
    "strings": (np.array(["a"]), "array 0: holds <U1, expected integer ids."),
    "bools": (np.array([True]), "array 0: holds bool, expected integer"),
    "scalars": ([1, 2], r"array 0: has shape \(\), expected \[tokens\] or"),
    "cube": (np.zeros((1, 1, 1), int), r"array 0: has shape \(1, 1, 1\)"),
    "ragged": ([[1], [[1], [1, 2]]], "array 1: is no array: "),
}


@pytest.mark.parametrize("kind", WRONG_ARRAYS)
def test_other_arrays_are_refused(kind, tmp_path):
    inputs, message = WRONG_ARRAYS[kind]
    refused(lambda: ArraySource(inputs), message)
    if isinstance(inputs, np.ndarray) and kind != "objects":
        np.save(tmp_path / "w.npy", inputs)
        np.savez(tmp_path / "w.npz", x=inputs)
        in_file = message.replace("array 0", r"w\.npy")
        refused(lambda: ArraySource(tmp_path / "w.npy"), in_file)
        in_member = message.replace("array 0", r"w\.npz: array 'x'")
        refused(lambda: ArraySource(tmp_path / "w.npz"), in_member)


def test_damaged_array_files_are_named(tmp_path):
    good, objects = tmp_path / "good.npy", tmp_path / "o.npy"
    np.save(good, np.arange(1000))
    np.save(objects, np.array([1, None]), allow_pickle=True)
    raw = good.read_bytes()
    (tmp_path / "cut.npy").write_bytes(raw[:-8])
    (tmp_path / "head.npy").write_bytes(raw[:50])
    (tmp_path / "no.npy").write_bytes(b"no array")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04" + raw)
    with open(tmp_path / "named.npy", "wb") as file:
        np.savez(file, x=np.arange(3))
    for name in ("o.npy", "cut.npy", "head.npy", "no.npy", "empty.npy", "cut.npz"):
        message = f"{name}: cannot be read as a .npy or .npz file of numbers: "
        refused(lambda name=name: ArraySource(tmp_path / name), message)
    refused(lambda: ArraySource(tmp_path / "named.npy"), "named.npy: is a .npz file")
    refused(lambda: ArraySource(tmp_path / "none.npy"), "no file matches .*none.npy")


def test_floats_that_are_whole_numbers_need_to_be_told():
    whole = np.array([1.0, 70000.0], np.float32)
    assert plain(ArraySource(whole, dtype="int32")) == [[1, 70000]]
    refused(lambda: ArraySource(whole, dtype="uint16"), "array 0: 70000.0 is not exact")
    refused(lambda: ArraySource(np.array([0.5]), dtype=int), "array 0: 0.5 is not ex")


def test_built_from_arrays(tmp_path):
    cache = {"cache_dir": tmp_path / "cache"}
    narrow, wide = np.array([1, 2], np.uint16), np.array([65535, 65536], np.int32)
    data = foreign.arrays([wide, narrow], **cache)
    assert (elements(data), data.dtype) == ([65535, 65536, 1, 2], np.int32)
    with pytest.raises(ConfigError, match=r"document 1.* 65536.* uint16"):
        foreign.arrays([narrow, wide], **cache)
    data = foreign.arrays([narrow, wide], dtype="uint32", separator=9, **cache)
    assert elements(data) == [1, 2, 9, 65535, 65536, 9]
    np.save(tmp_path / "big.npy", np.array([[1, 2], [3, 4]], ">i4"))
    data = foreign.arrays(tmp_path / "big.npy", processes=2, **cache)
    assert elements(data) == [1, 2, 3, 4]
    assert data.dtype.isnative
    with pytest.raises(ConfigError, match="arrays: none of"):
        foreign.arrays([np.array([])], **cache)
    once = foreign.arrays(generated, key="g", **cache)
    assert elements(once) == [1, 2, 3]
    again = foreign.arrays(_never_read, key="g", **cache)
    assert again.shards == once.shards


def _never_read():
    raise AssertionError("it is in the cache")


# nanoGPT


def test_bin_files_without_a_header(tmp_path):
    ids = np.array([1, 65535, EOT, 2, 3, EOT, EOT, 4])
    ids.astype("<u2").tofile(tmp_path / "val.bin")
    ids.astype(">u4").tofile(tmp_path / "big.bin")
    (tmp_path / "empty.bin").touch()
    documents = [[1, 65535, EOT], [2, 3, EOT], [EOT], [4]]
    assert plain(BinSource(tmp_path / "val.bin")) == [ids.tolist()]
    assert plain(BinSource(tmp_path / "val.bin", end_of_text=EOT)) == documents
    assert plain(BinSource(tmp_path / "big.bin", stored_dtype=">u4")) == [ids.tolist()]
    assert plain(BinSource(tmp_path / "empty.bin")) == []
    assert plain(BinSource(tmp_path / "v*.bin", end_of_text=7)) == [ids.tolist()]


def headed(path, ids, magic=20240520, version=1, count=None, dtype="<u2") -> None:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(ids) if count is None else count
    with open(path, "wb") as file:
        header.tofile(file)
        np.asarray(ids).astype(dtype).tofile(file)


def test_bin_files_with_the_header_of_llm_c(tmp_path):
    ids = [EOT, 1, 2, EOT, 3]
    headed(tmp_path / "a_2.bin", ids)
    headed(tmp_path / "a_10.bin", [128000, 5], magic=20240801, version=7, dtype="<u4")
    headed(tmp_path / "none.bin", [])
    (two, ten) = BinSource(tmp_path / "a_*.bin").parts()
    assert [next(p.documents()).tolist() for p in (two, ten)] == [ids, [128000, 5]]
    source = BinSource(tmp_path / "a_2.bin", end_of_text=EOT)
    assert plain(source) == [[EOT], [1, 2, EOT], [3]]
    assert plain(BinSource(tmp_path / "none.bin")) == []


@pytest.mark.parametrize("part_bytes", [2, 6, 14, 1 << 20])
def test_parts_of_a_bin_file_hold_each_document_once(tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(tokens, "PART_BYTES", part_bytes)
    monkeypatch.setattr("roxxel.building.nanogpt._SEARCH_TOKENS", 100)
    rng = np.random.default_rng(part_bytes)
    ids = rng.integers(0, 4, 3000).astype("<u2")
    ids[500:2000] = 1
    ids.tofile(tmp_path / "x.bin")
    source = BinSource(tmp_path / "x.bin", end_of_text=0)
    documents = plain(source)
    assert sum(documents, []) == ids.tolist()  # noqa: RUF017
    assert all(d[-1] == 0 and 0 not in d[:-1] for d in documents[:-1])
    assert sum(part.size for part in source.parts()) == ids.nbytes


def test_bin_files_of_a_wrong_size_are_refused(tmp_path):
    path = tmp_path / "t.bin"

    def message(raw: bytes, text: str) -> None:
        path.write_bytes(raw)
        refused(lambda: BinSource(path), f"t.bin: {text}")

    headed(path, [1, 2, 3])
    good = path.read_bytes()
    message(b"abc", r"has 3 bytes, expected a multiple of 2 \(uint16 without a header")
    message(good[:-1], "has 1029 bytes, expected 1030 for the 3 uint16 tokens of its h")
    message(good + b"\0\0", "has 1032 bytes, expected 1030")
    message(good[:100], "has 100 bytes, expected a header of 1024 bytes")
    headed(path, [1], version=2)
    message(path.read_bytes(), "version is 2 with magic 20240520, expected 1")
    headed(path, [], count=-1)
    message(path.read_bytes(), "has 1024 bytes, expected 1022 for the -1 uint16 tok")
    refused(lambda: BinSource(path, stored_dtype="float32"), "stored_dtype is float32")
    refused(lambda: BinSource(path, stored_dtype="nope"), "stored_dtype is 'nope'")
    refused(lambda: BinSource(tmp_path / "no.bin"), "no file matches")


def test_built_from_bin_files(tmp_path):
    cache = {"cache_dir": tmp_path / "cache"}
    ids = np.random.default_rng(0).integers(0, EOT + 1, 5000)
    ids[49::50] = EOT
    headed(tmp_path / "train_0.bin", ids[:3000])
    ids[3000:].astype("<u2").tofile(tmp_path / "train_1.bin")
    data = foreign.nanogpt(tmp_path / "train_*.bin", **cache)
    assert (elements(data), data.dtype) == (ids.tolist(), np.uint16)
    sides = {
        split: foreign.nanogpt(
            tmp_path / "train_*.bin",
            end_of_text=EOT,
            heldout_fraction=0.3,
            split=split,
            processes=2,
            **cache,
        )
        for split in ("train", "heldout")
    }
    assert 500 < sides["heldout"].num_elements < 2500
    assert sum(d.num_elements for d in sides.values()) == 5000
    assert all(d.elements(0, d.num_elements)[-1] == EOT for d in sides.values())


# Megatron


CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


def write_pair(prefix, documents, code=8, *, modes=False) -> None:
    """A pair as Megatron writes it: `documents` are lists of sequences of ids."""
    dtype = np.dtype(CODES[code])
    sequences = [np.array(s, dtype) for document in documents for s in document]
    lengths = [len(s) for s in sequences]
    pointers = np.cumsum([0, *lengths])[:-1] * dtype.itemsize
    borders = np.cumsum([0, *map(len, documents)])
    with open(f"{prefix}.bin", "wb") as file:
        for sequence in sequences:
            file.write(sequence.tobytes())
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QB", 1, code))
        file.write(struct.pack("<QQ", len(sequences), len(borders)))
        file.write(np.array(lengths, "<i4").tobytes())
        file.write(pointers.astype("<i8").tobytes())
        file.write(borders.astype("<i8").tobytes())
        file.write(bytes(len(sequences)) if modes else b"")


DOCUMENTS = [[[1, 2], [3]], [], [[4]], [[], [5, 6, 7]], [[100]]]
JOINED = [[1, 2, 3], [], [4], [5, 6, 7], [100]]


@pytest.mark.parametrize("code", CODES)
def test_megatron_pairs_of_every_dtype(code, tmp_path):
    write_pair(tmp_path / "c", DOCUMENTS, code, modes=code == 4)
    if code in (6, 7):
        source = MegatronSource(tmp_path / "c", dtype="int32")
        refused(lambda: MegatronSource(tmp_path / "c"), r"c\.idx: holds float")
    else:
        source = MegatronSource(tmp_path / "c")
        assert next(source.parts()[0].documents()).dtype == CODES[code]
    assert plain(source) == JOINED


def test_megatron_pairs_are_found_by_prefix_file_and_glob(tmp_path):
    for number in (10, 2):
        write_pair(tmp_path / f"c_{number}", [[[number]]])
    for prefixes in ("c_2", "c_2.idx", "c_2.bin"):
        assert plain(MegatronSource(tmp_path / prefixes)) == [[2]]
    for pattern in ("c_*", "c_*.idx", "*.bin"):
        assert plain(MegatronSource(tmp_path / pattern)) == [[2], [10]]
    refused(lambda: MegatronSource(tmp_path / "d"), "no file matches .*/d.idx")
    refused(lambda: MegatronSource([]), "no prefix was given")
    (tmp_path / "c_2.bin").unlink()
    refused(lambda: MegatronSource(tmp_path / "c_*"), "c_2.bin is missing, expected b")


@pytest.mark.parametrize("part_bytes", [2, 8, 1 << 20])
def test_megatron_parts_divide_the_documents(part_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "PART_BYTES", part_bytes)
    monkeypatch.setattr("roxxel.building.megatron._BATCH_DOCUMENTS", 2)
    write_pair(tmp_path / "c", DOCUMENTS)
    source = MegatronSource(tmp_path / "c")
    assert plain(source) == JOINED
    assert sum(part.size for part in source.parts()) == 5
    write_pair(tmp_path / "none", [])
    assert plain(MegatronSource(tmp_path / "none")) == []


def test_megatron_sequences_in_another_order_than_their_bytes(tmp_path):
    write_pair(tmp_path / "c", DOCUMENTS)
    raw = bytearray((tmp_path / "c.idx").read_bytes())
    at = 34 + 4 * 6  # the pointers of sequences 0 and 3 change places with 1 and 2
    pointers = np.frombuffer(raw, "<i8", 6, at).copy()
    assert pointers.tolist() == [0, 4, 6, 8, 8, 14]
    pointers[1], pointers[2] = pointers[2], pointers[1]
    raw[at : at + 48] = pointers.tobytes()
    (tmp_path / "c.idx").write_bytes(raw)
    expected = [[1, 2, 4], [], [3], [5, 6, 7], [100]]
    assert plain(MegatronSource(tmp_path / "c")) == expected


def poke(at: int, value: bytes):
    return lambda raw: raw[:at] + value + raw[at + len(value) :]


LENGTHS, POINTERS, BORDERS = 34, 34 + 4 * 6, 34 + 12 * 6
DAMAGE = {
    "empty": (lambda raw: b"", r"starts with b'', expected b'MMIDIDX"),
    "other": (lambda raw: b"PK" + raw, r"starts with b'PK.*: not a Megatron index"),
    "magic only": (lambda raw: raw[:9], "has 9 bytes, expected 34 or more"),
    "cut": (lambda raw: raw[:-1], "has 153 bytes, expected 154 for 6 sequences and 6"),
    "longer": (lambda raw: raw + b"\0", "has 155 bytes, expected 154"),
    "version": (poke(9, b"\2"), "version 2 with dtype code 8, expected version 1"),
    "code": (poke(17, b"\11"), "version 1 with dtype code 9, expected .* from 1 to 8"),
    "other code": (poke(17, b"\4"), r"c\.bin: has 16 bytes, expected 18 from the last"),
    "many": (poke(18, b"\xff" * 8), "has 154 bytes, expected 221360928884514619462"),
    "length": (
        poke(LENGTHS, struct.pack("<i", -1)),
        "sequence 0 is -1 tokens at byte 0, expected them within the 16 bytes",
    ),
    "pointer": (
        poke(POINTERS + 8, struct.pack("<q", 1 << 40)),
        "sequence 1 is 1 tokens at byte 1099511627776, expected",
    ),
    "negative": (poke(POINTERS + 8, struct.pack("<q", -2)), "sequence 1 is 1 tokens"),
    "first border": (
        poke(BORDERS, struct.pack("<q", 1)),
        "document index runs from 1 to 6, expected 0 to 6 sequences",
    ),
    "last border": (
        poke(BORDERS + 40, struct.pack("<q", 5)),
        "document index runs from 0 to 5",
    ),
    "border": (
        poke(BORDERS + 16, struct.pack("<q", 1)),
        "document 1 is sequences 2 to 1, expected ascending numbers up to 6",
    ),
    "far border": (
        poke(BORDERS + 16, struct.pack("<q", 99)),
        "document 2 is sequences 99 to 3",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_megatron_index_is_refused(kind, tmp_path):
    change, message = DAMAGE[kind]
    write_pair(tmp_path / "c", DOCUMENTS)
    index = tmp_path / "c.idx"
    assert len(index.read_bytes()) == 154
    index.write_bytes(change(index.read_bytes()))
    where = "" if message.startswith(r"c\.bin") else r"c\.idx: "
    refused(lambda: MegatronSource(tmp_path / "c"), where + message)


def test_a_megatron_file_of_tokens_that_is_cut_is_refused(tmp_path):
    write_pair(tmp_path / "c", DOCUMENTS)
    (tmp_path / "c.bin").write_bytes(bytes(15))
    message = r"c\.bin: has 15 bytes, expected 16 from the last sequence of its index"
    refused(lambda: MegatronSource(tmp_path / "c"), message)


def test_any_changed_byte_of_a_megatron_index_reads_or_is_refused(tmp_path):
    write_pair(tmp_path / "c", DOCUMENTS)
    raw = (tmp_path / "c.idx").read_bytes()
    for at in range(len(raw)):
        for bit in (1, 128):
            changed = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
            (tmp_path / "c.idx").write_bytes(changed)
            try:
                documents = plain(MegatronSource(tmp_path / "c"))
            except ConfigError:
                continue
            assert sum(map(len, documents)) <= 24


def test_built_from_megatron_pairs(tmp_path):
    cache = {"cache_dir": tmp_path / "cache"}
    write_pair(tmp_path / "a_0", DOCUMENTS, 8)
    write_pair(tmp_path / "a_1", [[[7, 8]]], 8)
    data = foreign.megatron(tmp_path / "a_*", **cache)
    assert elements(data) == [1, 2, 3, 4, 5, 6, 7, 100, 7, 8]
    assert data.dtype == np.uint16
    assert data.metadata["files"] == 4
    data = foreign.megatron(tmp_path / "a_1", separator=0, dtype="int32", **cache)
    assert (elements(data), data.dtype) == ([7, 8, 0], np.int32)
    (tmp_path / "a_0.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"a_0\.bin: has 0 bytes"):
        foreign.megatron(tmp_path / "a_*", **cache)
    left = [p for p in (tmp_path / "cache").iterdir() if "building" in p.name]
    assert not left
