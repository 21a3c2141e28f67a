"""`Roxxel(..., verify="lazy")`: what is read is compared with its checksum."""

import pickle

import numpy as np
import pytest

from roxxel import ConfigError, Roxxel, ShardFormatError

ROW = 100  # elements, over the borders of blocks and shards
VALUES = np.arange(20_000, dtype=np.int32)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "v_*.rox"
    Roxxel(path).write([VALUES], block_size=4096, max_shard_bytes=17_000)
    return path


@pytest.fixture
def damaged(path, tmp_path):
    """One bit of element 9000, which is in block 0 of shard 2 and in row 90."""
    assert len(Roxxel(path).shards) == 5
    file = tmp_path / "v_0002.rox"
    content = bytearray(file.read_bytes())
    content[(9000 - 2 * 4096) * 4] ^= 1
    file.write_bytes(content)
    return path


FAULT = r"v_0002\.rox: block 0, bytes 0 to 4096 of the file, do not match"


def read_rows(data, ids, **options):
    return data.rows(np.array(ids), ROW, **options)


def test_undamaged_data_read_the_same(path):
    data = Roxxel(path, verify="lazy")
    for dtype in (None, "int64"):
        rows = read_rows(data, range(200), dtype=dtype)
        np.testing.assert_array_equal(rows, VALUES.reshape(-1, ROW))
    np.testing.assert_array_equal(data.elements(5, 19_000), VALUES[5:19_000])
    assert data[-1].tolist() == VALUES[19 * 1024 :].tolist()
    stream, plain = data.stream(ROW, overlap=1), Roxxel(path).stream(ROW, overlap=1)
    for got, expected in zip(stream, plain, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_damage_is_named_when_it_is_read(damaged):
    data = Roxxel(damaged, verify="lazy")
    # rows of the same block that lie beside the damage
    for ids in ([90], [0, 90, 1], [85]):
        with pytest.raises(ShardFormatError, match=FAULT):
            read_rows(data, ids)
    with pytest.raises(ShardFormatError, match=FAULT):
        read_rows(data, [90], dtype="int64")
    with pytest.raises(ShardFormatError, match=FAULT):
        data[8]
    with pytest.raises(ShardFormatError, match=FAULT):
        data.elements(0, 20_000)
    with pytest.raises(ShardFormatError, match=FAULT):
        read_rows(data, [81])  # begins in the shard before
    for prefetch in (0, 2):
        with pytest.raises(ShardFormatError, match=FAULT):
            list(data.stream(ROW, prefetch=prefetch))


def test_what_is_not_damaged_can_be_read(damaged):
    data = Roxxel(damaged, verify="lazy")
    assert read_rows(data, [80, 93, 199])[:, 0].tolist() == [8000, 9300, 19_900]
    assert data[9][0] == 9 * 1024


def test_it_is_off_by_default(damaged):
    data = Roxxel(damaged)
    assert read_rows(data, [90])[0, 0] == 9001


def test_it_survives_pickling(damaged):
    data = pickle.loads(pickle.dumps(Roxxel(damaged, verify="lazy")))
    with pytest.raises(ShardFormatError, match=FAULT):
        read_rows(data, [90])


@pytest.mark.parametrize("verify", ["eager", True, 0])
def test_other_values_are_refused(path, verify):
    with pytest.raises(ConfigError, match="verify must be None or 'lazy', got"):
        Roxxel(path, verify=verify)


def test_files_without_checksums_are_read_with_a_warning(repo_root, caplog):
    old = sorted((repo_root / "tests" / "data").glob("*int32_base_*.rox"))
    data = Roxxel(old, verify="lazy")
    plain = Roxxel(old)
    count = plain.num_elements
    assert data.elements(0, count).tolist() == plain.elements(0, count).tolist()
    assert caplog.text.count("have no checksums and are read unchecked") == 1


def test_an_index_that_lies_about_a_block_is_found(tmp_path):
    path = tmp_path / "a.rox"
    Roxxel(path).write([VALUES[:100]], block_size=40)
    content = bytearray(path.read_bytes())
    content[400 + 3 * 8] -= 4
    path.write_bytes(content)
    with pytest.raises(ShardFormatError, match="record 3 at bytes 120 to 156"):
        Roxxel(path)[3]
