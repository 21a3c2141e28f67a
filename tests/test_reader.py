"""Reading: records, elements and rows of many shards; resources; far offsets."""

import concurrent.futures
import os
import pathlib
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roxxel import ConfigError, Roxxel, ShardFormatError
from roxxel.data import paths


@pytest.fixture
def three(tmp_path):
    """30 elements in 3 shards of 3, 3 and 2 blocks of 4."""
    values = np.arange(100, 130, dtype=np.int32)
    for i, part in enumerate([values[:12], values[12:24], values[24:]]):
        Roxxel(tmp_path / f"s_{i}.rox").write([part], block_size=16)
    return Roxxel(tmp_path / "s_*.rox")


def naive_rows(flat, ids, seq_len, overlap):
    return [flat[i * seq_len : (i + 1) * seq_len + overlap].tolist() for i in ids]


def test_records_at_both_ends_of_every_shard(three):
    assert len(three) == 8
    assert three[0].tolist() == [100, 101, 102, 103]
    assert three[2].tolist() == [108, 109, 110, 111]
    assert three[3].tolist() == [112, 113, 114, 115]
    assert three[5].tolist() == [120, 121, 122, 123]
    assert three[7].tolist() == three[-1].tolist() == [128, 129]  # padding not seen
    assert three[-8].tolist() == three[np.int32(0)].tolist()
    assert [r.size for r in three[0:8]] == [4] * 7 + [2]
    assert [r[0] for r in three[::-3]] == [128, 116, 104]
    for index in (8, -9, 2**40):
        with pytest.raises(IndexError, match=f"record {index} of 8"):
            three[index]
    with pytest.raises(TypeError):
        three[1.0]


def test_elements_run_through_all_shards(three):
    for start in range(31):
        for stop in range(start, 31):
            expected = list(range(100 + start, 100 + stop))
            assert three.elements(start, stop).tolist() == expected
    for start, stop in ((-1, 3), (3, 2), (0, 31)):
        with pytest.raises(IndexError, match="of 30"):
            three.elements(start, stop)


def test_rows_that_are_not_there_are_refused(three):
    assert three.rows([2], 10).tolist() == [list(range(120, 130))]
    for ids in ([3], [-1], [0, 99]):
        with pytest.raises(IndexError, match="there are 3"):
            three.rows(ids, 10)
    with pytest.raises(IndexError, match="there are 2"):
        three.rows([2], 10, overlap=1)
    assert three.rows([], 10).shape == (0, 10)
    with pytest.raises(TypeError):
        three.rows([0.5], 10)


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    seq_len=st.integers(1, 40),
    overlap=st.integers(0, 50),
    dtype=st.sampled_from([None, "int32", "int64", "float32", "uint8"]),
    data=st.data(),
)
def test_rows_are_windows_of_the_sequence(
    tmp_path_factory, lengths, seq_len, overlap, dtype, data
):
    folder = tmp_path_factory.mktemp("rows")
    flat = np.random.default_rng(0).integers(0, 256, sum(lengths)).astype(np.uint16)
    for i, end in enumerate(np.cumsum(lengths)):
        part = flat[end - lengths[i] : end]
        Roxxel(folder / f"s_{i}.rox").write([part], block_size=8)
    rox = Roxxel(folder / "s_*.rox")
    count = max(0, flat.size - overlap) // seq_len
    ids = st.lists(st.integers(0, count - 1), max_size=30) if count else st.just([])
    ids = data.draw(ids)
    rows = rox.rows(np.array(ids, np.int64), seq_len, overlap, dtype)
    assert rows.shape == (len(ids), seq_len + overlap)
    assert rows.dtype == np.dtype(dtype or "uint16")
    assert rows.tolist() == naive_rows(flat, ids, seq_len, overlap)
    assert rows.flags.writeable
    assert rows.flags.c_contiguous


@pytest.mark.parametrize("stored", ["uint8", "int32"])
def test_large_batches_lie_where_jax_can_adopt_them(tmp_path, stored):
    values = (np.arange(300_000) % 251).astype(stored)
    data = Roxxel(tmp_path / "one.rox").write([values])
    ids = np.arange(299)[::-1]
    rows = data.rows(ids, 1000, dtype="int32")
    assert rows.__array_interface__["data"][0] % 64 == 0
    np.testing.assert_array_equal(rows, values[:299_000].reshape(299, 1000)[::-1])


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        (np.array([2**32 + 5, 2**31]), "int32", "4294967301 of dtype int64"),
        (np.array([149_999], np.uint32), "uint16", "149999 of dtype uint32"),
        (np.array([-1], np.int32), "uint32", "-1 of dtype int32"),
        (np.array([0.1]), "float32", "0.1 of dtype float64"),
        (np.array([2**24 + 1], np.int32), "float32", "16777217"),
        (np.array([0.5], np.float32), "int32", "float32 cannot be read as int32"),
        (np.array([1], np.int32), "bool", "int32 cannot be read as bool"),
    ],
)
def test_a_cast_that_changes_a_value_is_refused(tmp_path, values, dtype, words):
    data = Roxxel(tmp_path / "a.rox").write([values])
    with pytest.raises(ValueError, match=words):
        data.rows([0], values.size, dtype=dtype)


def test_the_stored_dtype_is_found_and_wider_reads_are_exact(tmp_path):
    Roxxel(tmp_path / "a.rox").write([np.array([7, 149_999], np.uint32)])
    data = Roxxel(tmp_path / "a.rox")
    assert data.dtype == np.uint32
    assert data.rows([0], 2, dtype="int64").tolist() == [[7, 149_999]]
    assert data.rows([0], 2, dtype="float32").tolist() == [[7, 149_999]]


@pytest.mark.parametrize("ids", [[[0, 1]], 1, [[]], np.zeros((1, 1), int)])
def test_row_ids_are_one_list(three, ids):
    with pytest.raises(ValueError, match="row_ids must be 1-D, got shape"):
        three.rows(ids, 4)
    with pytest.raises(ValueError, match="row_ids must be 1-D, got shape"):
        three.locate(ids, 4)


# where shards are found


def test_shards_are_ordered_by_number(tmp_path):
    for i in range(1, 13):
        Roxxel(tmp_path / f"part{i}.rox").write([[i]])
    for location in (tmp_path / "part*.rox", tmp_path):
        assert Roxxel(location).elements(0, 12).tolist() == list(range(1, 13))
    picked = [tmp_path / "part3.rox", tmp_path / "part1.rox"]
    assert Roxxel(picked).elements(0, 2).tolist() == [3, 1]


def test_numbers_beyond_four_digits_sort_last():
    names = ["d_10000.rox", "d_9999.rox", "d_0010.rox", "d_9.rox"]
    ordered = ["d_9.rox", "d_0010.rox", "d_9999.rox", "d_10000.rox"]
    assert sorted(names, key=paths.natural_key) == ordered


@pytest.mark.parametrize("name", ["none_*.rox", "none.rox", "."])
def test_no_shards_is_a_clear_error(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"no shards at .*Roxxel\.write"):
        Roxxel(tmp_path / name).open()
    with pytest.raises(ConfigError):
        len(Roxxel(tmp_path / name))


def test_the_same_object_reads_what_it_wrote(tmp_path):
    data = Roxxel(filepath=str(tmp_path / "w_*.rox"))
    data.write([[1]])
    assert len(data) == 1
    data.write([[2]], mode="append")
    assert len(data) == 2


def test_closing_keeps_what_was_read(three):
    with three as data:
        rows, record = data.rows([0], 10), data[0]
    assert rows.tolist() == [list(range(100, 110))]
    assert record.tolist() == [100, 101, 102, 103]
    assert len(three) == 8  # opens again


def test_a_pickled_data_set_reads_the_same(three):
    three.open()
    other = pickle.loads(pickle.dumps(three))
    assert other.elements(0, 30).tolist() == three.elements(0, 30).tolist()
    assert repr(other) == repr(three)


def test_a_file_that_changed_since_it_was_opened_is_refused(three):
    three.open()
    Roxxel(three.shards[1]).write([[1]], mode="overwrite")
    with pytest.raises(ShardFormatError, match=r"s_1\.rox changed since it was open"):
        three.elements(0, 30)


@pytest.mark.parametrize("verify", [None, "lazy"])
@pytest.mark.parametrize("how", ["overwrite", "copy", "in place"])
def test_old_and_new_data_of_equal_size_are_not_mixed(tmp_path, verify, how):
    def write(value):
        content = [np.full(1000, value, np.int32)]
        sizes = {"block_size": 256, "max_shard_bytes": 1400}
        return Roxxel(tmp_path / "x_*.rox").write(content, mode="overwrite", **sizes)

    def write_again(files):
        for path, raw in files.items():
            if how == "copy":
                os.unlink(path)
            pathlib.Path(path).write_bytes(raw)
            os.utime(path, ns=(0, 0))

    shards = write(2).shards
    files = {path: pathlib.Path(path).read_bytes() for path in shards}
    write(1)
    opened = Roxxel(tmp_path / "x_*.rox", verify=verify).open()
    assert opened[0].tolist() == [1] * 64  # its file is mapped, and stays that
    if how == "overwrite":
        write(2)
    else:
        write_again(dict(list(files.items())[how == "in place" :]))
    assert opened[1].tolist() == [1] * 64
    stop = opened.num_elements
    for read in (
        lambda: opened.elements(0, stop),
        lambda: opened[-1],
        lambda: opened.rows(range(10), 100),
        lambda: next(iter(opened.stream(10, 100))),
    ):
        with pytest.raises(ShardFormatError, match="changed since it was opened"):
            read()
    new = pickle.loads(pickle.dumps(opened))
    opened.close()
    for data in (new, opened):
        assert np.unique(data.elements(500, stop)).tolist() == [2]


def test_fingerprints_name_the_data_not_the_place(tmp_path):
    items = [[1, 2, 3]]
    one = Roxxel(tmp_path / "a_*.rox").write(items, metadata={"k": 1})
    same = Roxxel(tmp_path / "x/b.rox").write(items, metadata={"k": 1})
    assert one.fingerprint() == same.fingerprint()
    others = [
        Roxxel(tmp_path / "c.rox").write(items, metadata={"k": 2}),
        Roxxel(tmp_path / "d.rox").write([[1, 2, 3, 4]], metadata={"k": 1}),
        Roxxel(tmp_path / "e.rox").write(items, dtype="uint8", metadata={"k": 1}),
    ]
    assert len({d.fingerprint() for d in [one, *others]}) == 4


def test_fingerprints_tell_equal_sizes_apart(tmp_path):
    values = np.zeros(100_000, np.int32)
    seen = set()
    for i, place in enumerate([None, 0, 54_321, 99_999]):
        if place is not None:
            values[:] = 0
            values[place] = 1
        data = Roxxel(tmp_path / f"d{i}_*.rox")
        seen.add(data.write([values], max_shard_bytes=200_000).fingerprint())
        data.close()
        assert data.fingerprint() in seen
    assert len(seen) == 4
    data.write([[5]], mode="append")
    assert data.fingerprint() not in seen


def test_fingerprints_of_old_files_sample_their_bytes(tmp_path):
    seen = set()
    for i, at in enumerate([0, (1 << 20) - 4, None]):
        path = tmp_path / f"{i}.rox"
        raw = b"" if at is None else b"\1\2\3\4"
        sparse_shard(path, payload=1 << 20, dtype=b"int32", at=at, raw=raw)
        seen.add(Roxxel(path).fingerprint())
        seen.add(Roxxel([path] * 100).fingerprint())
    assert len(seen) == 6


# resources


def test_many_threads_read_one_data_set(three):
    def read(i):
        return three.rows([i % 3], 10).tolist(), three[i % 8].tolist()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(read, range(400)))
    assert answers == [read(i) for i in range(400)]


def test_more_shards_than_open_files_are_allowed(tmp_path, monkeypatch, run_python):
    """Field report 16."""
    monkeypatch.setattr("os.fsync", lambda fd: None)  # 2000 waits for the disk
    values = np.arange(2000 * 16, dtype=np.int32)
    Roxxel(tmp_path / "s_*.rox").write([values], block_size=64, max_shard_bytes=1)
    done = run_python(
        "-c",
        """
import os, resource
import numpy as np
from roxxel import Roxxel
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
with Roxxel("s_*.rox") as data:
    batches = np.concatenate(list(data.stream(seq_len=10, batch_size=32, seed=1)))
    firsts = batches[:, 0] // 10
    assert len(data.shards) == 2000 and len(set(firsts.tolist())) == 3200
    assert (batches == firsts[:, None] * 10 + np.arange(10)).all()
    assert len(os.listdir("/proc/self/fd")) < 20  # no shard stays open
""",
    )
    assert done.stderr == ""


@pytest.mark.parametrize("options", ["", "drop_behind=True"])
def test_memory_stays_flat_while_everything_is_read(tmp_path, run_python, options):
    """Field report 17: file pages come and go, anonymous memory has a hard limit."""
    sparse_shard(tmp_path / "a.rox", payload=512 << 20, dtype=b"int32")
    done = run_python(
        "-c",
        f"""
import resource
from roxxel import Roxxel
def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1])
data = Roxxel("a.rox", {options})
limit = (status("VmData") << 10) + (64 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = status("RssAnon")
for batch in data.stream(seq_len=1024, batch_size=32):
    pass
print(status("RssAnon") - before)
""",
    )
    assert int(done.stdout) < 20_000, done.stderr  # KiB, of 512 MiB read


def sparse_shard(path, *, payload, dtype, at=None, raw=b"", record=1 << 20):
    """An old-style shard of zeros that takes no room on the disk."""
    ends = np.arange(1, payload // record + 1, dtype="<i8") * record
    with open(path, "wb") as file:
        if at is not None:
            file.seek(at)
            file.write(raw)
        file.seek(payload)
        file.write(ends.tobytes())
        file.write(struct.pack("<qq8s8s", len(ends), payload, dtype, b"ROXXEL02"))


def test_offsets_beyond_32_bits_are_exact(tmp_path):
    size = 4608 << 20  # 4.5 GiB
    path = tmp_path / "far.rox"
    raw = np.arange(1, 9, dtype=np.int32).tobytes()
    sparse_shard(path, payload=size, dtype=b"int32", at=size - 32, raw=raw)
    data = Roxxel(path)
    count = size // 4
    assert data.num_elements == count
    assert data.elements(count - 8, count).tolist() == list(range(1, 9))
    assert data[-1][-8:].tolist() == list(range(1, 9))
    assert data[np.int32(len(data) - 1)][-1] == 8
    last = np.array([count // 4096 - 1], np.int32)  # times 4096 is beyond int32
    with np.errstate(all="raise"):
        rows = data.rows(last, np.int32(4096))
        overlapped = data.rows(last - 1, 4096, overlap=4096)
        cast = data.rows(last, 4096, dtype="int64")
    for tail in (rows, overlapped, cast):
        assert tail[0, -8:].tolist() == list(range(1, 9))
    stream = data.stream(seq_len=4096, batch_size=1, seed=3)
    permuted = [s for s in range(4) if stream.batch(s).any()]
    assert permuted == []  # rows of zeros, read without a wrap


def test_a_shard_limit_beyond_32_bits_is_accepted(tmp_path):
    data = Roxxel(tmp_path / "a_*.rox")
    data.write([[1, 2]], max_shard_bytes=5 * 1024**3)
    assert data.elements(0, 2).tolist() == [1, 2]


def test_opening_reads_neither_index_nor_payload(tmp_path, monkeypatch):
    """10**8 records: the index alone is 800 MB (sparse: it reads as zeros)."""
    path = tmp_path / "many.rox"
    records, payload = 10**8, 16 * 10**8
    with open(path, "wb") as file:
        file.seek(payload + 8 * (records - 1))
        file.write(struct.pack("<q", payload))
        file.write(struct.pack("<qq8s8s", records, payload, b"int32", b"ROXXEL02"))
    data = Roxxel(path)
    assert len(data) == records
    stream = data.stream(seq_len=4, batch_size=32, start_step=2_500_000)
    assert next(stream).shape == (32, 4)
    assert len(stream) == 3_125_000 - 2_500_001
    stream.close()


def test_old_records_of_any_length(tmp_path):
    parts = [b"a", b"", b"hello", b"\0" * 9]
    ends = np.cumsum([len(p) for p in parts]).astype("<i8")
    footer = struct.pack("<qq8s", 4, 15, b"ROXXEL01")
    path = pathlib.Path(tmp_path / "a.rox")
    path.write_bytes(b"".join(parts) + ends.tobytes() + footer)
    data = Roxxel(path)
    assert [record.tobytes() for record in data[:]] == parts
    assert data.elements(0, 15).tobytes() == b"".join(parts)


def test_an_old_record_that_cuts_an_element_is_named(tmp_path):
    path = tmp_path / "a.rox"
    footer = struct.pack("<qq8s8s", 2, 12, b"int32", b"ROXXEL02")
    path.write_bytes(bytes(12) + struct.pack("<2q", 6, 12) + footer)
    data = Roxxel(path)
    assert data.num_elements == 3
    with pytest.raises(ShardFormatError, match="record 0 is bytes 0 to 6"):
        data[0]
