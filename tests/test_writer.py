"""What `write` accepts, what it refuses, and what a failed write leaves behind."""

import errno
import os
import pathlib
import signal

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roxxel import ConfigError, Roxxel, ShardFormatError
from roxxel.data import publish, rox_format, writer, writer_lock


@pytest.fixture
def data(tmp_path):
    return Roxxel(tmp_path / "wiki_*.rox")


def all_of(data):
    return data.elements(0, data.num_elements)


def visible(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def test_the_published_call_takes_jax_arrays_and_a_pattern(data, tmp_path):
    items = (jnp.arange(128, dtype=jnp.int32) for _ in range(10))
    data.write(items, block_size=4096, max_shard_bytes=1024**3, separator=None)
    assert visible(tmp_path) == ["wiki_0000.rox"]
    assert all_of(data).tolist() == list(range(128)) * 10
    assert data.dtype == np.int32


# dtype: the first item fixes it, later ones fit exactly or are refused


@pytest.mark.parametrize(
    ("first", "dtype"),
    [
        ("text", "uint8"),
        (b"bytes", "uint8"),
        (bytearray(b"bytes"), "uint8"),
        ([1, 2], "int32"),
        ([-(2**31), 2**31 - 1], "int32"),
        ([1, 2**31], "int64"),
        ([2**63, 1], "uint64"),
        ((1, 2), "int32"),
        (np.array([1], np.int64), "int64"),
        (np.array([1], ">i4"), "int32"),
        (np.array([1.5], ">f8"), "float64"),
        (np.array([True]), "bool"),
        (np.array([1], ml_dtypes.bfloat16), "bfloat16"),
        (jnp.array([1], jnp.bfloat16), "bfloat16"),
    ],
)
def test_first_item_fixes_the_dtype(data, first, dtype):
    data.write([first])
    assert data.dtype.name == dtype
    assert data.dtype.isnative


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        # field report: half of a vocabulary wrapped in 16 bits
        (np.array([1, 2], np.uint16), np.array([65535, 65536], np.int32), "65536"),
        (np.array([1], np.int32), np.array([2**31], np.int64), "2147483648"),
        (np.array([1], np.uint8), np.array([-1], np.int8), "-1"),
        (np.array([1], np.uint64), [-1], "-1"),
        (np.array([1], np.int64), [2**63], str(2**63)),
        ([1], [2**31], "2147483648"),
        ([1], [2**64], str(2**64)),
        ([1], np.array([1.0]), "1.0"),
        ([1], np.array([True]), "True"),
        (np.array([1], np.float32), np.array([0.1]), "0.1"),
        (np.array([1], np.float32), [2**24 + 1], "16777217"),
        (np.array([1], np.float32), np.array([2**31 - 1], np.int32), "2147483647"),
        (np.array([1], ml_dtypes.bfloat16), [257], "257"),
        ([1], "text", "text or bytes"),
    ],
)
def test_a_later_item_that_does_not_fit_is_refused(
    data, tmp_path, first, second, words
):
    with pytest.raises(ValueError, match=f"item 1 .*{words}"):
        data.write([first, second])
    assert visible(tmp_path) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.array([1, 2], np.uint16), np.array([65535, 0], np.int64)),
        (np.array([1], ">i4"), np.array([3], "<i2")),
        (np.array([0.5], np.float64), np.array([np.nan, np.inf], np.float32)),
        (np.array([0.5], np.float32), np.array([np.nan, -np.inf, 0.25])),
        (np.array([1.0], np.float32), [3, 2**24]),
        (np.array([1], ml_dtypes.bfloat16), np.array([0.5], np.float32)),
        ("text", np.array([0, 255], np.int32)),
    ],
)
def test_a_later_item_that_fits_is_stored_exactly(data, first, second):
    data.write([first, second])
    size = np.asarray(second).size
    expected = np.asarray(second).astype(data.dtype)
    np.testing.assert_array_equal(all_of(data)[-size:], expected)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (5, "item 0 is 5 of type int"),
        (np.int32(5), "one document"),
        (None, "NoneType"),
        ({1: 2}, "dict"),
        ([1.5], "holds 1.5"),
        (["a"], "holds 'a'"),
        ([True], "holds True"),
        ([[1], [2, 3]], r"holds \[1\]"),
        (np.array(["a"]), "dtype <U1"),
        (np.array([1j]), "complex128"),
        (np.array([None]), "object"),
    ],
)
def test_an_item_of_another_kind_is_refused(data, item, words):
    with pytest.raises(TypeError, match=words):
        data.write([item])


@pytest.mark.parametrize("items", ["text", b"bytes", {"a": 1}])
def test_one_document_in_place_of_many_is_refused(data, items):
    with pytest.raises(TypeError, match="wrap it in a list"):
        data.write(items)


def test_an_explicit_dtype_holds_for_all_items(data):
    data.write([[1, 2], np.array([3], np.int64)], dtype="uint16")
    assert data.dtype == np.uint16
    with pytest.raises(ValueError, match=r"item 0 holds 70000.*uint16"):
        data.write([[70000]], dtype=np.uint16, mode="overwrite")
    assert all_of(data).tolist() == [1, 2, 3]


def test_a_generator_may_reuse_its_array(data):
    def documents():
        buffer = np.empty(3, np.int32)
        for i in range(1000):
            buffer[:] = i
            yield buffer

    data.write(documents(), block_size=64)
    assert all_of(data).tolist() == [i for i in range(1000) for _ in range(3)]


def test_arrays_of_more_dimensions_are_taken_row_by_row(data):
    data.write([np.arange(6, dtype=np.int32).reshape(2, 3).T])
    assert all_of(data).tolist() == [0, 3, 1, 4, 2, 5]


# content: empty documents, separators, text


@pytest.mark.parametrize(
    "items",
    [[[], [1, 2, 3], [], []], [np.array([]), np.array([1, 2, 3], np.int32), []]],
)
def test_empty_items_store_nothing_and_fix_nothing(data, items):
    data.write(items, separator=9)
    assert data.dtype == np.int32
    assert all_of(data).tolist() == [1, 2, 3, 9]


@pytest.mark.parametrize("items", [[], [[]], [b""], ["", ""], [np.array([])]])
def test_only_empty_items_make_an_empty_data_set(data, items):
    data.write(items)
    assert (len(data), data.num_elements) == (0, 0)
    assert data[:] == []
    assert data.estimate_steps(4, 1) == 0
    with pytest.raises(ConfigError, match="0 windows < batch 2"):
        data.stream(4, 2)
    data.write([[1, 2]], mode="append")  # its dtype was never fixed
    assert all_of(data).tolist() == [1, 2]
    assert data.dtype == np.int32


def test_separators_are_counted_everywhere(data):
    documents = [np.full(128, i, np.int32) for i in range(1000)]
    data.write(documents, separator=-1)
    assert data.num_elements == 1000 * 129
    assert data.estimate_steps(129, 10) == 100
    assert sum(record.size for record in data[:]) == 1000 * 129
    rows = data.rows(np.arange(1000), 129)
    assert (rows[:, 128] == -1).all()
    assert (rows[:, :128] == np.arange(1000)[:, None]).all()


@pytest.mark.parametrize(
    ("item", "separator", "stored"),
    [
        ("ab", "\n", b"ab\n"),
        ("ab", b"\xff\x00", b"ab\xff\x00"),
        ("ab", 0, b"ab\0"),
        (np.array([1], np.uint16), 50256, b"\x01\x00\x50\xc4"),
        (np.array([1], np.uint16), [50256], b"\x01\x00\x50\xc4"),
        (np.array([1], np.uint16), np.int64(50256), b"\x01\x00\x50\xc4"),
        (np.array([0.5], np.float16), 1, b"\x00\x38\x00\x3c"),
    ],
)
def test_separators_are_elements(data, item, separator, stored):
    data.write([item], separator=separator)
    assert all_of(data).tobytes() == stored


@pytest.mark.parametrize(
    ("item", "separator", "words"),
    [
        # published versions shifted every later token by this one byte
        (np.array([1], np.int32), b"\xff", "is text, the data are int32"),
        (np.array([1], np.uint16), 65536, "65536 does not fit .* uint16"),
        (np.array([1], np.int64), 2**64, "does not fit"),
        (np.array([1], np.int32), 0.5, "0.5 does not fit"),
        ("text", "", "is empty"),
        ("text", -1, "-1 does not fit"),
        ("text", object(), "is not a value"),
    ],
)
def test_a_wrong_separator_is_refused(data, item, separator, words):
    with pytest.raises((ValueError, TypeError), match=words):
        data.write([item], separator=separator)


def test_a_lone_surrogate_is_named_and_good_text_round_trips(data):
    good = "\u65e5\u672c\u8a9e \U0001f680"
    with pytest.raises(ValueError, match=r"item 1: character 4 is .*'\\ud800'"):
        data.write(["ok", "bad \ud800 tail", good])
    # the emoji lies across the border of two blocks
    data.write(["ok", good], block_size=13)
    assert all_of(data).tobytes().decode() == "ok" + good


# sizes


def test_a_document_larger_than_shards_runs_on_through_them(data):
    big = np.arange(1_000_000, dtype=np.int32)
    small = np.arange(5, dtype=np.int32)
    data.write([small, big, small], block_size=4096, max_shard_bytes=8192)
    np.testing.assert_array_equal(all_of(data), np.concatenate([small, big, small]))
    assert max(os.path.getsize(path) for path in data.shards) <= 8192
    assert [int(path[-9:-4].strip("_")) for path in data.shards] == list(
        range(len(data.shards))
    )


def test_a_shard_holds_one_block_whatever_the_limit(data):
    data.write([np.arange(100, dtype=np.int32)], block_size=64, max_shard_bytes=1)
    assert [len(Roxxel(path)) for path in data.shards] == [1] * 7
    assert all_of(data).tolist() == list(range(100))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"block_size": 1001}, "1001 bytes, expected a multiple of the 4 bytes"),
        ({"block_size": 0}, "block_size must be a positive number of bytes, got 0"),
        ({"block_size": 4096.0}, "got 4096.0"),
        ({"max_shard_bytes": -1}, "max_shard_bytes must be .* got -1"),
        ({"mode": "replace"}, "mode must be one of new, skip, append, overwrite"),
        ({"metadata": {"a": object()}}, "metadata must be plain JSON"),
        ({"dtype": "int33"}, "'int33' is unknown"),
        ({"dtype": "complex64"}, "not an integer"),
    ],
)
def test_wrong_arguments_are_refused_before_a_file_is_made(
    data, tmp_path, arguments, words
):
    with pytest.raises(ConfigError, match=words):
        data.write([[1, 2, 3]], **arguments)
    assert visible(tmp_path) == []


@settings(max_examples=100, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=90)),
    block=st.integers(1, 40),
    limit=st.none() | st.integers(1, 2000),
    separator=st.none() | st.integers(-5, 5),
    buffer=st.sampled_from([1, 64, 1 << 20]),
)
def test_what_is_written_is_read(
    tmp_path_factory, documents, block, limit, separator, buffer
):
    data = Roxxel(tmp_path_factory.mktemp("w") / "a_*.rox")
    tail = [] if separator is None else [separator]
    flat = [x for d in documents if d for x in d + tail]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_BUFFER_BYTES", buffer)
        arrays = [np.array(d, np.int32) for d in documents]
        data.write(arrays, block * 4, limit, separator)
    assert all_of(data).tolist() == flat
    assert [x for record in data[:] for x in record.tolist()] == flat
    assert data.is_complete


# modes


def shard_names(data):
    return [os.path.basename(path) for path in data.shards]


def test_new_refuses_what_is_there(data):
    data.write([[1]])
    with pytest.raises(FileExistsError, match=r"wiki_0000\.rox .*mode='overwrite'"):
        data.write([[2]])
    with pytest.raises(ConfigError):
        data.write([[2]], mode="new")
    assert all_of(data).tolist() == [1]


def test_skip_keeps_what_is_there_and_reads_no_item(data):
    data.write([[1]], mode="skip")
    data.write((pytest.fail("read an item") for _ in range(1)), mode="skip")
    assert all_of(data).tolist() == [1]


def test_append_adds_shards_and_pads_nothing_between(data):
    data.write([[1, 2, 3]], block_size=16, separator=0, metadata={"a": 1})
    data.write([[4, 5]], block_size=32, separator=0, mode="append")
    data.write([], separator=0, mode="append")
    assert all_of(data).tolist() == [1, 2, 3, 0, 4, 5, 0]
    assert shard_names(data) == ["wiki_0000.rox", "wiki_0001.rox", "wiki_0002.rox"]
    assert data.is_complete
    assert data.metadata == {"a": 1}


@pytest.mark.parametrize(
    ("items", "arguments", "words"),
    [
        ([[70000]], {"separator": 1}, "70000"),
        ([[1]], {"separator": 1, "dtype": "int32"}, "cannot append int32 .* uint16"),
        ([[1]], {}, r"separator None to .*, written with separator \[1\]"),
        ([[1]], {"separator": 2}, "separator 2 to"),
        ([np.array([1.0])], {"separator": 1}, "1.0"),
        (["text"], {"separator": 1}, "text or bytes"),
    ],
)
def test_append_of_other_data_is_refused(data, items, arguments, words):
    data.write([[1, 2]], dtype="uint16", separator=1)
    with pytest.raises((ConfigError, ValueError), match=words):
        data.write(items, mode="append", **arguments)
    assert all_of(data).tolist() == [1, 2, 1]


def test_append_to_one_file_keeps_one_file(tmp_path):
    data = Roxxel(tmp_path / "one.rox")
    data.write([[1, 2, 3]], block_size=8)
    data.write([[4]], block_size=16, mode="append")
    assert all_of(data).tolist() == [1, 2, 3, 4]
    assert visible(tmp_path) == ["one.rox"]


def test_overwrite_replaces_all_shards(data, tmp_path):
    data.write([list(range(100))], block_size=40, max_shard_bytes=1)
    assert len(data.shards) == 10
    data.write([[7, 8]], mode="overwrite")
    assert all_of(data).tolist() == [7, 8]
    assert visible(tmp_path) == ["wiki_0000.rox"]


def test_overwrite_works_on_shards_that_are_damaged(data, tmp_path):
    (tmp_path / "wiki_0000.rox").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"wiki_0000.* no whole \.rox .*move it"):
        data.write([[1]])
    with pytest.raises(ShardFormatError):
        data.write([[1]], mode="skip")
    data.write([[1]], mode="overwrite")
    assert all_of(data).tolist() == [1]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_files_of_other_names_are_not_touched(data, tmp_path, mode):
    Roxxel(tmp_path / "wiki_held_out.rox").write([[9]])
    with pytest.raises(ConfigError, match=r"wiki_held_out\.rox .* move it"):
        data.write([[1]], mode=mode)
    assert visible(tmp_path) == ["wiki_held_out.rox"]


@pytest.mark.parametrize(
    "location",
    ["notes.txt", "a_*_*.rox", "a_[0-9].rox", "", ["a.rox", "b.rox"]],
)
def test_a_place_that_names_no_shards_is_refused(tmp_path, monkeypatch, location):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("notes.txt").write_text("precious")
    with pytest.raises(ConfigError):
        Roxxel(location).write([[1]], mode="overwrite")
    assert pathlib.Path("notes.txt").read_text() == "precious"
    assert visible(tmp_path) == ["notes.txt"]


def test_shards_are_named_by_the_pattern(tmp_path):
    items = [list(range(30))]
    for name, first in [
        ("a_*.rox", "a_0000.rox"),
        ("b_??????.rox", "b_000000.rox"),
        ("*.rox", "0000.rox"),
        ("new/folder/c-*-v1.rox", "c-0000-v1.rox"),
        ("d [1]/e_*.rox", "e_0000.rox"),  # a folder's name is no pattern
        ("f.rox", "f_0000.rox"),  # several shards at a plain path
    ]:
        data = Roxxel(tmp_path / name)
        data.write(items, block_size=40, max_shard_bytes=1, mode="overwrite")
        assert shard_names(data)[0] == first
        assert all_of(data).tolist() == items[0]
        for path in data.shards:
            os.unlink(path)


# failure


def failing(documents):
    yield from documents
    raise ValueError("doc 500")


@pytest.mark.parametrize("name", ["wiki_*.rox", "wiki.rox"])
def test_an_exception_of_the_items_arrives_unchanged(tmp_path, name):
    data = Roxxel(tmp_path / name)
    documents = [np.arange(100, dtype=np.int32)] * 500
    with pytest.raises(ValueError, match=r"^doc 500$"):
        data.write(failing(documents), max_shard_bytes=20000)
    assert visible(tmp_path) == []
    data.write(documents, max_shard_bytes=20000)
    assert data.num_elements == 50_000


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("name", ["wiki_*.rox", "wiki.rox"])
def test_a_failed_change_leaves_the_data_as_they_were(tmp_path, name, mode):
    data = Roxxel(tmp_path / name)
    data.write([list(range(5000))], block_size=400)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="doc 500"):
        data.write(failing([[1] * 999] * 99), block_size=400, mode=mode)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("mode", ["new", "skip", "append", "overwrite"])
def test_a_second_writer_of_the_same_place_is_refused(data, tmp_path, mode):
    """Field report 10: it replaces, removes and adds nothing."""
    second = Roxxel(tmp_path / "wiki_*.rox")

    def documents():
        yield from [[1] * 10] * 5
        before = visible(tmp_path)
        with pytest.raises(FileExistsError, match="being written by another writer"):
            second.write([[2]], mode=mode, block_size=8)
        assert visible(tmp_path) == before
        yield from [[1] * 10] * 5

    data.write(documents(), block_size=8, max_shard_bytes=400)
    assert len(data.shards) > 2
    assert all_of(data).tolist() == [1] * 100
    assert [n for n in visible(tmp_path) if n.startswith(".")] == []


def test_without_locks_a_name_is_given_only_once(data, tmp_path, monkeypatch):
    """On a file system without locks the first to publish stays, whole."""

    def no_locks(fd, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(writer_lock.fcntl, "flock", no_locks)

    def documents(mode):
        yield [1]
        Roxxel(tmp_path / "wiki_*.rox").write([[2]], mode=mode)

    with pytest.raises(FileExistsError, match="appeared while it was being written"):
        data.write(documents("new"))
    with pytest.raises(FileExistsError, match="appeared while it was being written"):
        data.write(documents("append"), mode="append")
    assert all_of(data).tolist() == [2, 2]
    assert visible(tmp_path) == ["wiki_0000.rox", "wiki_0001.rox"]


def test_without_hard_links_nothing_is_replaced(data, tmp_path, monkeypatch):
    def no_links(source, target):
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(publish.os, "link", no_links)
    data.write([[1]])

    def documents():
        yield [1]
        (tmp_path / "b_0000.rox").write_bytes(b"another's")

    with pytest.raises(FileExistsError, match="appeared while it was being written"):
        Roxxel(tmp_path / "b_*.rox").write(documents())
    assert visible(tmp_path) == ["b_0000.rox", "wiki_0000.rox"]
    assert (tmp_path / "b_0000.rox").read_bytes() == b"another's"


TOKENIZER = {"name": "bpe", "fingerprint": "a1", "vocab_size": 300}


def test_tokenizer_and_build_inputs_are_fields_of_their_own(data):
    metadata = {"tokenizer": TOKENIZER, "build": {"files": ["a.txt"]}, "k": 1}
    data.write([[1]], metadata=metadata)
    extension = rox_format.read_shard(data.shards[0]).extension
    assert extension["tokenizer"] == TOKENIZER
    assert extension["build"] == {"files": ["a.txt"]}
    assert extension["metadata"] == {"k": 1}
    assert data.metadata == metadata
    with pytest.raises(ConfigError, match=r"tokenizer is .*'vocab_size': '3'"):
        data.write([[1]], metadata={"tokenizer": TOKENIZER | {"vocab_size": "3"}})


@pytest.mark.parametrize("other", [TOKENIZER | {"fingerprint": "b2"}, "bytes"])
def test_append_of_another_tokenizer_is_refused_naming_both(data, other):
    data.write([[1]], metadata={"tokenizer": TOKENIZER})
    with pytest.raises(
        ConfigError, match=r"tokenizer .* with tokenizer .*'a1'"
    ) as info:
        data.write([[2]], metadata={"tokenizer": other}, mode="append")
    assert ("b2" in str(info.value)) or ("'bytes'" in str(info.value))
    data.write([[2]], metadata={"tokenizer": TOKENIZER}, mode="append")
    data.write([[3]], metadata={"k": 1}, mode="append")
    assert all_of(data).tolist() == [1, 2, 3]
    extension = rox_format.read_shard(data.shards[2]).extension
    assert extension["tokenizer"] == TOKENIZER  # what is not named is the same
    assert extension["metadata"] == {"k": 1}


def test_append_to_data_of_no_named_tokenizer_names_that(data):
    data.write([[1]])
    with pytest.raises(ConfigError, match=r"'bpe'.* written with tokenizer None"):
        data.write([[2]], metadata={"tokenizer": TOKENIZER}, mode="append")


KILLED = """
import os, signal, sys
import numpy as np
from roxxel import Roxxel
from roxxel.data import writer

writer._BUFFER_BYTES = 4000  # so that shards come one by one

def documents():
    for i in range(50):
        if i == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield np.full(1000, i, np.int32)

data = Roxxel(sys.argv[1])
data.write(documents(), block_size=4000, max_shard_bytes=1, mode=sys.argv[3])
"""


def write_killed(run_python, tmp_path, at, mode):
    done = run_python("-c", KILLED, tmp_path / "wiki_*.rox", at, mode)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_write_leaves_whole_shards_and_says_so(
    data, run_python, tmp_path, caplog
):
    write_killed(run_python, tmp_path, 20, "new")
    names = visible(tmp_path)
    assert [n for n in names if n.startswith(".")]  # the unfinished one, hidden
    data.open()
    assert not data.is_complete
    assert "did not finish" in caplog.text
    count = data.num_elements // 1000
    assert 10 < count < 20
    assert all_of(data).tolist() == [i for i in range(count) for _ in range(1000)]
    with pytest.raises(ConfigError, match="an unfinished write left"):
        data.write([[1]])
    with pytest.raises(ConfigError, match="cut off"):
        data.write([[1]], mode="append")
    data.write([[1, 2]], mode="skip")  # what is there is not the data set
    assert all_of(data).tolist() == [1, 2]
    assert visible(tmp_path) == ["wiki_0000.rox"]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_killed_change_leaves_the_data_as_they_were(data, run_python, tmp_path, mode):
    data.write([list(range(5000))], block_size=4000, max_shard_bytes=1)
    before = visible(tmp_path)
    write_killed(run_python, tmp_path, 30, mode)
    assert all_of(data.open()).tolist() == list(range(5000))
    data.write([], mode="append")
    assert visible(tmp_path)[: len(before)] == before
    assert not [name for name in visible(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("moved", [0, 1, 2, 3])
def test_a_publication_cut_off_is_completed(data, tmp_path, monkeypatch, moved):
    """Between the first rename of an overwrite and its end the process may die."""
    data.write([list(range(50))], block_size=40, max_shard_bytes=1)
    calls = []

    def replace(source, target, really=os.replace):
        if not target.endswith(".swap"):
            calls.append(target)
            if len(calls) > moved:
                raise KeyboardInterrupt
        really(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(publish.os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            data.write([[7] * 35], block_size=40, max_shard_bytes=1, mode="overwrite")
    assert all_of(Roxxel(tmp_path / "wiki_*.rox")).tolist() == [7] * 35
    assert visible(tmp_path) == [f"wiki_000{i}.rox" for i in range(4)]


def test_a_write_needs_no_jax_and_touches_no_backend(run_python, tmp_path):
    done = run_python(
        "-c",
        """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "flax", "orbax", "optax", "fiddle"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
from roxxel import Roxxel
data = Roxxel("a_*.rox").write([[1, 2, 3, 4, 5, 6]], separator=0)
stream = data.stream(seq_len=2, batch_size=2, overlap=1)
print(type(next(stream)).__name__, len(stream))
try:
    stream.place()
except ImportError as err:
    print(err)
import roxxel.rox
roxxel.rox.main(["head", "a_*.rox"])
""",
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "ndarray 0"
    assert "pip install 'roxxel[checkpoint]'" in lines[1]
    assert lines[2] == "1 2 3 4 5 6 0"


def test_numbers_of_numpy_are_numbers(tmp_path):
    """They are in the file as those of Python would be, also shapes and metadata."""
    metadata = {"n": np.int64(3), "x": [np.float32(0.5), np.bool_(True)], "t": (1, 2)}
    numpys = Roxxel(tmp_path / "a_*.rox").write(
        [[1, 2, 3]] * 50,
        block_size=np.int64(256),
        max_shard_bytes=np.uint32(1200),
        separator=[np.int64(7), np.uint8(8)],
        metadata=metadata,
    )
    plain = Roxxel(tmp_path / "b_*.rox").write(
        [[1, 2, 3]] * 50,
        block_size=256,
        max_shard_bytes=1200,
        separator=[7, 8],
        metadata={"n": 3, "x": [0.5, True], "t": [1, 2]},
    )
    for one, other in zip(numpys.shards, plain.shards, strict=True):
        assert pathlib.Path(one).read_bytes() == pathlib.Path(other).read_bytes()
    items = Roxxel(tmp_path / "c.rox").write(
        [np.zeros((2, 3), np.int8)], item_shape=np.array([2, 3])
    )
    assert items.item_shape == (2, 3)


@pytest.mark.parametrize(
    "metadata",
    [5, "text", [1], {"a": {1}}, {"a": np.arange(3)}, {(1, 2): 3}, {"a": 1j}],
)
def test_metadata_that_are_no_json_are_one_line(data, tmp_path, metadata):
    with pytest.raises(ConfigError, match=r"^metadata must be") as info:
        data.write([[1]], metadata=metadata)
    assert "\n" not in str(info.value)
    assert visible(tmp_path) == []
