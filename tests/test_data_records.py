"""Items as records: of a fixed shape, streamed whole, or of any length, by index."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from roxxel import ConfigError, MixtureStream, Roxxel, ShardFormatError, rox
from roxxel.data import extension_format, writer

SHAPE = (4, 6, 3)
IMAGES = np.random.default_rng(0).integers(0, 256, (50, *SHAPE)).astype(np.uint8)
CLIPS = [np.random.default_rng(n).normal(size=(n, 5)) for n in (3, 0, 700, 1, 0, 20)]


@pytest.fixture
def images(tmp_path):
    data = Roxxel(tmp_path / "i_*.rox")
    return data.write(IMAGES, item_shape=SHAPE, max_shard_bytes=2000)


@pytest.fixture
def clips(tmp_path):
    data = Roxxel(tmp_path / "c_*.rox")
    return data.write(CLIPS, item_shape=(None, 5), max_shard_bytes=8000)


def test_items_are_records(images):
    assert (len(images), images.item_shape, images.dtype) == (50, SHAPE, np.uint8)
    assert len(images.shards) > 1
    for i in (0, 17, 49, -1):
        np.testing.assert_array_equal(images[i], IMAGES[i])
    np.testing.assert_array_equal(np.stack(images[3:40:5]), IMAGES[3:40:5])


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bool", "int64"])
def test_streams_have_every_item_once_in_its_shape_and_dtype(tmp_path, dtype):
    items = np.ones_like(IMAGES, bool) if dtype == "bool" else IMAGES.astype(dtype)
    data = Roxxel(tmp_path / "a.rox").write(iter(items), item_shape=SHAPE)
    stream = data.stream(batch_size=7, seed=3)
    assert data.estimate_steps(batch_size=7) == len(stream) == 7
    batches = list(stream)
    assert {b.shape for b in batches} == {(7, *SHAPE)}
    assert {b.dtype.name for b in batches} == {dtype}
    seen = {x.tobytes() for batch in batches for x in batch}
    assert len(seen & {x.tobytes() for x in items}) == (1 if dtype == "bool" else 49)


def test_items_come_in_the_order_of_rows(images, tmp_path):
    flat = Roxxel(tmp_path / "flat.rox").write(IMAGES, dtype="uint8")
    rows = flat.stream(72, batch_size=8, seed=1, epochs=2, dtype="uint8")
    for got, expected in zip(
        images.stream(batch_size=8, seed=1, epochs=2, prefetch=2), rows, strict=True
    ):
        np.testing.assert_array_equal(got.reshape(8, 72), expected)
    position = images.stream(batch_size=8).position(5)
    assert images.stream(batch_size=4).step_of(position) == 10


@pytest.mark.parametrize(
    "spec",
    [P("data"), P(None, None, "model"), P("data", "model"), P(("data", "model"))],
)
def test_items_are_placed_on_a_mesh(images, spec):
    mesh = jax.make_mesh(
        (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    sharding = NamedSharding(mesh, spec)
    stream = images.stream(batch_size=8, data_sharding=sharding)
    host = images.stream(batch_size=8)
    for got, expected in zip(stream, host, strict=True):
        assert got.sharding == sharding
        np.testing.assert_array_equal(got, expected)
    by_mesh = images.stream(batch_size=8, mesh=mesh)
    np.testing.assert_array_equal(next(by_mesh), next(images.stream(batch_size=8)))
    assert next(images.stream(batch_size=8).place()).shape == (8, *SHAPE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seq_len": 16}, r"items of shape \(4, 6, 3\), streamed whole; leave seq_len"),
        ({"overlap": 1}, "leave seq_len and overlap out, got None and 1"),
        ({"batch_size": 51}, "50 windows < batch 51"),
        ({"dtype": "bool"}, "cannot be read as bool"),
    ],
)
def test_streams_that_cannot_be_are_refused(images, options, words):
    with pytest.raises(ConfigError, match=words):
        images.stream(**{"batch_size": 8} | options)


def test_an_item_dimension_that_does_not_divide_is_named(images):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    words = "item dimension of 6 not divisible by 8 devices on axis x"
    with pytest.raises(ConfigError, match=words):
        images.stream(batch_size=8, mesh=mesh, data_sharding=P(None, None, "x"))


def test_sequences_need_a_seq_len(tmp_path):
    data = Roxxel(tmp_path / "a.rox").write([[1, 2, 3]])
    assert data.item_shape == ()
    for call in (data.stream, data.estimate_steps):
        with pytest.raises(ConfigError, match="seq_len is needed"):
            call(batch_size=1)


@pytest.mark.parametrize(
    ("items", "options", "words"),
    [
        (
            [IMAGES[0], IMAGES[0].T],
            {},
            r"item 1 has shape \(3, 6, 4\), expected \(4",
        ),
        ([IMAGES[0].reshape(-1)], {}, r"item 0 has shape \(72,\), expected"),
        ([b"x" * 72], {}, r"item 0 has shape \(72,\)"),
        ([np.empty((0, 6, 3), np.uint8)], {}, r"item 0 has shape \(0, 6, 3\)"),
        ([IMAGES[0], IMAGES[0] + 0.5], {}, "item 1 holds .* does not fit"),
        ([IMAGES[0]], {"separator": 0}, "separator 0 is for sequences"),
        ([IMAGES[0]], {"item_shape": ()}, "item_shape must be a tuple of positive"),
        ([IMAGES[0]], {"item_shape": 5}, "item_shape must be a tuple of positive"),
        ([IMAGES[0]], {"item_shape": (4, None)}, r"any length, got \(4, None\)"),
        ([IMAGES[0]], {"item_shape": (4, 0)}, r"got \(4, 0\)"),
        ([IMAGES[0]], {"item_shape": (None, 6)}, r"expected \(None, 6\)"),
    ],
)
def test_other_items_are_refused(tmp_path, items, options, words):
    data = Roxxel(tmp_path / "a_*.rox")
    with pytest.raises(ValueError, match=words):
        data.write(items, **{"item_shape": SHAPE} | options)
    assert list(tmp_path.iterdir()) == []


def test_records_of_any_length(clips):
    assert (len(clips), clips.item_shape) == (6, (None, 5))
    assert len(clips.shards) == 3
    for i, clip in enumerate(CLIPS):
        np.testing.assert_array_equal(clips[i], clip)
        assert clips[i].shape == clip.shape
    flat = np.concatenate([clip.reshape(-1) for clip in CLIPS])
    np.testing.assert_array_equal(clips.elements(0, flat.size), flat)


def test_files_as_bytes(tmp_path):
    files = [b"JFIF" * 9, b"", b"\0", b"text"]
    data = Roxxel(tmp_path / "a.rox").write(files, item_shape=(None,))
    assert [record.tobytes() for record in data] == files
    assert data.stream(4, batch_size=2, dtype="uint8").batch(0).shape == (2, 4)


@pytest.mark.parametrize("files", [[], [b""], [b"", b""]])
def test_data_sets_of_empty_records(tmp_path, files):
    data = Roxxel(tmp_path / "a_*.rox").write(files, item_shape=(None,))
    assert [record.tobytes() for record in data[:]] == files
    assert rox.main(["verify", str(tmp_path / "a_*.rox")]) == 0


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 3000), max_size=30),
    limit=st.none() | st.integers(1, 20_000),
    more=st.lists(st.integers(0, 50), max_size=3),
    name=st.sampled_from(["a_*.rox", "a.rox"]),
)
def test_any_records_round_trip(tmp_path_factory, lengths, limit, more, name):
    folder = tmp_path_factory.mktemp("r")
    records = [np.arange(n, dtype=np.int16) for n in lengths]
    data = Roxxel(folder / name, verify="lazy")
    data.write(records, item_shape=(None,), max_shard_bytes=limit)
    for path in data.shards:
        assert limit is None or len(Roxxel(path)) <= 1 or size(path) <= limit
    if more:
        added = [np.arange(n, dtype=np.int16) for n in more]
        data.write(added, mode="append", max_shard_bytes=limit, item_shape=(None,))
        records += added
    assert [r.tolist() for r in data[:]] == [r.tolist() for r in records]
    assert rox.main(["verify", str(folder / name)]) == 0


def size(path):
    with open(path, "rb") as file:
        return file.seek(0, 2)


def test_append_keeps_the_shape(images, clips):
    images.write(IMAGES[:3], mode="append", item_shape=SHAPE)
    images.write(IMAGES[:1], mode="append")  # the shape is that of the data
    assert len(images) == 54
    np.testing.assert_array_equal(images[53], IMAGES[0])
    with pytest.raises(ConfigError, match=r"shape \(3,\) to .* holds \(4, 6, 3\)"):
        images.write([[1, 2, 3]], mode="append", item_shape=(3,))
    with pytest.raises(ValueError, match=r"item 0 has shape \(3,\)"):
        clips.write([[1, 2, 3]], mode="append")


def test_appending_items_to_sequences_is_refused(tmp_path):
    data = Roxxel(tmp_path / "a_*.rox").write([[1, 2, 3]])
    with pytest.raises(ConfigError, match="which holds sequences"):
        data.write([[1, 2, 3]], mode="append", item_shape=(3,))


def test_shards_of_two_shapes_are_refused(tmp_path):
    Roxxel(tmp_path / "s_0.rox").write([[1, 2]], item_shape=(2,))
    Roxxel(tmp_path / "s_1.rox").write([[1, 2]])
    with pytest.raises(ShardFormatError, match=r"s_1\.rox: items of shape \(\), exp"):
        Roxxel(tmp_path / "s_*.rox").open()


@pytest.mark.parametrize("change", [lambda x: x, lambda x: [*x[1:2], *x[:1], *x[2:]]])
def test_records_are_resumed_exactly_or_refused(tmp_path, monkeypatch, change):
    monkeypatch.setattr(writer, "_BUFFER_BYTES", 100)
    clips = [np.arange(n % 7, dtype=np.int32) for n in range(99)]

    def failing():
        yield from clips[:60]
        raise OSError("broke")

    data = Roxxel(tmp_path / "a_*.rox")
    options = {"item_shape": (None,), "max_shard_bytes": 900, "resume": True}
    with pytest.raises(OSError, match="broke"):
        data.write(failing(), **options)
    assert data.open().shards
    again = change(clips)
    if again is clips:
        data.write(again, **options)
        assert [x.tolist() for x in data[:]] == [x.tolist() for x in clips]
    else:  # the same elements in other records
        with pytest.raises(ConfigError, match="index_digest of"):
            data.write(again, **options)


def test_damaged_records_are_named(clips, capsys, tmp_path):
    path = tmp_path / "c_0001.rox"
    good = path.read_bytes()
    records = len(Roxxel(path))
    content = bytearray(good)
    content[5000] ^= 1
    path.write_bytes(content)
    assert rox.main(["verify", str(path)]) == 1
    assert "c_0001.rox: record 0, bytes 4096 to 8192" in capsys.readouterr().out
    with pytest.raises(ShardFormatError, match="record 0, bytes 4096"):
        Roxxel(path, verify="lazy")[0]
    at = int.from_bytes(good[-24:-16], "little")
    content = bytearray(good)
    content[at] ^= 8  # where the first record ends
    path.write_bytes(content)
    if records > 1:
        assert rox.main(["verify", str(path)]) == 1
        assert "its index, bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        {"item_shape": [2, 3]},
        {"item_shape": [None, 4]},
        {"item_shape": [4, None]},
        {"item_shape": "x"},
        {"item_shape": [True]},
        {"item_shape": [-4]},
        {"block_bytes": 0},
    ],
)
def test_an_impossible_item_shape_is_refused(tmp_path, change):
    body = {"dtype": "int32", "elements": 4, "block_bytes": 16, "item_shape": [4]}
    extension_format.check(body, {}, 1, 16, np.dtype(np.int32))
    with pytest.raises(ValueError, match="item"):
        extension_format.check(body | change, {}, 1, 16, np.dtype(np.int32))


def test_an_index_that_cuts_a_row_of_an_item_is_named(tmp_path):
    path = tmp_path / "c.rox"
    frames = [np.ones((n, 5), np.int32) for n in (3, 4, 2)]
    Roxxel(path).write(frames, item_shape=(None, 5))
    good = path.read_bytes()
    at = int.from_bytes(good[-24:-16], "little")
    for bit in (2, 3):  # the first record ends an element or two later or earlier
        content = bytearray(good)
        content[at] ^= 1 << bit
        path.write_bytes(content)
        for read in (
            lambda data: data[0],
            lambda data: data[1],
            lambda data: data[:],
            lambda data: data.__getitems__([2, 0]),
        ):
            with pytest.raises(ShardFormatError, match=r"c\.rox: .*record \d .*of 5"):
                read(Roxxel(path))
        assert Roxxel(path)[2].tolist() == frames[2].tolist()


def test_items_of_any_length_are_read_by_index_and_say_so(clips, tmp_path):
    data = Roxxel(tmp_path / "c_*.rox")
    for make in (data.stream, lambda: MixtureStream({"a": data})):
        with pytest.raises(ConfigError, match=r"items of any length .* data\[i\]"):
            make()
