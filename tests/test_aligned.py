"""Data sets whose rows belong together: one order, a dict of arrays."""

import json
import pickle

import fiddle as fdl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roxxel import AlignedStream, ConfigError, Roxxel

SHAPE = (4, 3)
IMAGES = np.arange(53 * 12).reshape(53, *SHAPE).astype(np.uint16)
WIDTH = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """53 images, as many texts of 7 elements and labels of one."""
    folder = tmp_path_factory.mktemp("aligned")

    def texts(count):
        return Roxxel(folder / f"t{count}_*.rox").write(
            [np.arange(count, dtype=np.int32)], block_size=64, max_shard_bytes=700
        )

    return {
        "image": Roxxel(folder / "i_*.rox").write(
            IMAGES, item_shape=SHAPE, max_shard_bytes=500
        ),
        "tokens": texts(53 * WIDTH + 1),  # and a successor of the last row
        "label": Roxxel(folder / "l.rox").write(
            np.arange(53, dtype=np.float32)[:, None], item_shape=(1,)
        ),
        "exact": texts(53 * WIDTH),
        "clips": Roxxel(folder / "c.rox").write(
            [np.zeros(n) for n in (3, 5)], item_shape=(None,)
        ),
    }


def stream_of(data, *names, **options):
    names = names or ("image", "tokens", "label")
    options = {"batch_size": 5, "seq_len": WIDTH, "overlap": 1, "seed": 9} | options
    return AlignedStream({name: data[name] for name in names}, **options)


@pytest.mark.parametrize("prefetch", range(5))
def test_rows_that_belong_together_come_together(data, prefetch):
    stream = stream_of(data, epochs=2, prefetch=prefetch)
    assert len(stream) == 20
    seen = []
    for batch in stream:
        assert list(batch) == ["image", "tokens", "label"]
        assert {k: (v.shape, v.dtype.name) for k, v in batch.items()} == {
            "image": ((5, *SHAPE), "uint16"),
            "tokens": ((5, WIDTH + 1), "int32"),
            "label": ((5, 1), "float32"),
        }
        ids = batch["label"][:, 0].astype(int)
        np.testing.assert_array_equal(batch["image"], IMAGES[ids])
        text = ids[:, None] * WIDTH + np.arange(WIDTH + 1)
        np.testing.assert_array_equal(batch["tokens"], text)
        seen += ids.tolist()
    assert len(set(seen[:50])) == len(set(seen[50:])) == 50
    assert seen[:50] != seen[50:]


def test_the_order_is_that_of_each_data_set_alone(data):
    alone = data["tokens"].stream(WIDTH, 5, overlap=1, seed=9, epochs=2)
    images = data["image"].stream(batch_size=5, seed=9, epochs=2)
    for batch, text, image in zip(
        stream_of(data, epochs=2), alone, images, strict=True
    ):
        np.testing.assert_array_equal(batch["tokens"], text)
        np.testing.assert_array_equal(batch["image"], image)


@settings(max_examples=30, deadline=None)
@given(stops=st.lists(st.integers(0, 30), max_size=5), prefetch=st.integers(0, 3))
def test_any_number_of_resumes_gives_each_batch_once(data, stops, prefetch):
    reference = stream_of(data, epochs=3)
    done = 0
    for stop in [*sorted(stops), 30]:
        with stream_of(data, epochs=3, start_step=done, prefetch=prefetch) as stream:
            assert len(stream) == 30 - done
            while done < stop:
                batch, expected = next(stream), reference.batch(done)
                assert all((batch[name] == expected[name]).all() for name in expected)
                done += 1
        position = json.loads(json.dumps(stream.position(done)))
        assert reference.step_of(position) == done


def test_what_a_stream_says_of_itself(data):
    stream = stream_of(data)
    (span,) = stream.spans()
    assert (span.start, span.stop, span.batch_size, span.seq_len) == (0, None, 5, WIDTH)
    assert (stream.tokens(3), stream.steps_for(106)) == (3 * 5 * WIDTH, 4)
    assert (stream.steps_per_epoch, stream.planned_steps) == (10, None)
    assert (stream.batch_size, stream.seq_len, stream.overlap) == (5, WIDTH, 1)
    assert stream_of(data, "image", "label", overlap=0).seq_len == 1
    again = pickle.loads(pickle.dumps(stream))
    np.testing.assert_array_equal(next(again)["image"], next(stream)["image"])
    config = fdl.Config(AlignedStream, {"image": data["image"]}, batch_size=4)
    assert next(fdl.build(config))["image"].shape == (4, *SHAPE)


def test_lengths_and_dtypes_by_name(data):
    stream = stream_of(
        data,
        "image",
        "tokens",
        "exact",
        seq_len={"tokens": WIDTH, "exact": 6},
        dtype={"image": "float32"},
        rows=50,
    )
    batch = stream.batch(0)
    assert batch["image"].dtype == np.float32
    assert batch["exact"].shape == (5, 7)
    assert stream.seq_len == WIDTH + 6
    ids = batch["tokens"][:, 0] // WIDTH
    np.testing.assert_array_equal(batch["exact"][:, 0], ids * 6)
    assert ids.max() < 50


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        # the last window has no successor
        (("image", "exact"), {}, r"equal numbers of rows, got 'image' 53, 'exact' 52 "),
        (("image", "exact"), {"rows": 53}, "rows 53 are more than there are: .* 52"),
        (("image", "exact"), {"rows": "all"}, "rows must be an int"),
        (
            ("image", "clips"),
            {},
            r"'clips' has records of any length, \(None,\), .*index",
        ),
        (("tokens",), {"seq_len": None}, "data set 'tokens': seq_len is needed"),
        (("image",), {"seq_len": {"image": 5}}, "data set 'image': .* streamed whole"),
        (
            ("image",),
            {"seq_len": {"x": 5}},
            "seq_len names 'x', the data sets are image",
        ),
        (("image",), {"dtype": {"x": "int8"}}, "dtype names 'x'"),
        (("image",), {"dtype": "bool"}, "data set 'image': .* cannot be read as bool"),
        (("image",), {"batch_size": 54}, "53 windows < batch 54"),
        (("image",), {"start_step": 11}, "start_step 11 lies behind the end"),
        ((), {"overlap": -1}, "overlap must be .* got -1"),
        ((), {"prefetch": -1}, "prefetch must be .* got -1"),
    ],
)
def test_streams_that_cannot_be_are_refused(data, names, options, words):
    with pytest.raises(ConfigError, match=words):
        stream_of(data, *names, **options)


def test_the_first_rows_on_request(data):
    assert stream_of(data, "image", "exact", rows="min", batch_size=52).batch(0)
    some = stream_of(data, "image", "exact", rows=20)
    assert len(some) == 4
    assert max(batch["exact"][:, 0].max() for batch in some) < 20 * WIDTH


@pytest.mark.parametrize("datasets", [{}, [], {"a": 3}])
def test_what_is_no_dict_of_data_sets_is_refused(datasets):
    with pytest.raises(ConfigError, match=r"dict of name: data set|not a Roxxel"):
        AlignedStream(datasets)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2}, "seed was 9 .* 2 now"),
        ({"rows": 40}, "num_rows was 53 .* 40 now"),
        ({"overlap": 0}, "overlap was 1 .* 0 now"),
        ({"batch_size": 4}, "15 rows into epoch 0, is no multiple of batch_size 4"),
    ],
)
def test_other_rows_are_refused_on_resume(data, change, words):
    position = stream_of(data).position(3)
    with pytest.raises(ConfigError, match=words):
        stream_of(data, **change).step_of(position)
    assert stream_of(data, batch_size=3).step_of(position) == 5
