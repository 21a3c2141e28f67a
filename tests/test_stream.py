"""Streams: order, length, resuming, threads, dtypes. Placement: test_stream_sharded."""

import gc
import struct
import threading

import numpy as np
import pytest

from roxxel import ConfigError, Roxxel, RoxxelStream


def dataset(path, elements, dtype="int32", **options):
    values = np.arange(elements).astype(dtype)
    return Roxxel(path).write([values], block_size=64, **options)


@pytest.fixture
def data(tmp_path):
    """1030 elements in several shards: 103 rows of 10."""
    return dataset(tmp_path / "d_*.rox", 1030, max_shard_bytes=1500)


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name == "roxxel-prefetch"]


def rows_seen(batches):
    return [int(row[0]) // 10 for batch in batches for row in batch]


# order and epochs


def test_golden_batches(data):
    """The order is part of a checkpoint's meaning; see test_order."""
    stream = data.stream(seq_len=10, batch_size=4, seed=42)
    assert rows_seen([stream.batch(0), stream.batch(1), stream.batch(25)]) == [
        55,
        3,
        32,
        90,
        50,
        72,
        34,
        68,
        63,
        4,
        18,
        67,
    ]


@pytest.mark.parametrize("prefetch", [None, 0, 1, 2, 5])
def test_a_batch_is_a_function_of_its_step(data, prefetch):
    stream = data.stream(seq_len=10, batch_size=4, seed=3, overlap=1, prefetch=prefetch)
    steps = stream.steps_per_epoch
    assert steps == len(stream) == 25
    batches = list(stream)
    assert len(batches) == 25
    for step, batch in enumerate(batches):
        assert batch.shape == (4, 11)
        assert batch.dtype == np.int32
        np.testing.assert_array_equal(batch, stream.batch(step))
        np.testing.assert_array_equal(batch - batch[:, :1], [np.arange(11)] * 4)


def test_every_row_comes_at_most_once_an_epoch_and_epochs_differ(data):
    stream = data.stream(seq_len=10, batch_size=4, epochs=3)
    assert len(stream) == 75
    seen = rows_seen(stream)
    epochs = [seen[i : i + 100] for i in (0, 100, 200)]
    for rows in epochs:
        assert len(set(rows)) == 100
    assert len({tuple(rows) for rows in epochs}) == 3
    assert set(epochs[0]) != set(epochs[1])  # other rows are left over
    # by hand, epoch after epoch, as the published example does
    for number, rows in enumerate(epochs):
        assert rows_seen(data.stream(10, 4, epoch=number)) == rows
    assert rows_seen([stream.batch(60)]) == epochs[2][40:44]


def test_the_first_batch_mixes_all_shards(tmp_path):
    for i in range(10):
        values = np.full(10_000, i, np.int32)
        Roxxel(tmp_path / f"s_{i}.rox").write([values])
    stream = Roxxel(tmp_path / "s_*.rox").stream(seq_len=100, batch_size=50, seed=0)
    assert len(set(next(stream)[:, 0].tolist())) >= 8
    stream.close()


def test_equal_seeds_of_any_int_type_give_equal_batches(data):
    first = data.stream(10, 4, seed=7).batch(0)
    np.testing.assert_array_equal(first, data.stream(10, 4, seed=np.int64(7)).batch(0))
    for seed in (2**32 + 7, 2**63, -1):
        assert not np.array_equal(first, data.stream(10, 4, seed=seed).batch(0))
    for seed in (None, True, 1.5):
        with pytest.raises(TypeError, match=f"seed must be an int, got {seed}"):
            data.stream(10, 4, seed=seed)


# length, start and end


@pytest.mark.parametrize(
    ("elements", "batch_size", "overlap", "steps"),
    [
        (1030, 10, 0, 10),  # 103 windows
        (1000, 10, 0, 10),
        (1000, 10, 1, 9),  # the last window has no successor: 99
        (1001, 10, 1, 10),
        (109, 10, 0, 1),
        (90, 9, 0, 1),
        (10, 1, 0, 1),
    ],
)
def test_len_is_the_batches_that_come(tmp_path, elements, batch_size, overlap, steps):
    data = dataset(tmp_path / "a.rox", elements)
    assert data.estimate_steps(10, batch_size, overlap) == steps
    if not overlap:
        assert steps == elements // (10 * batch_size)
    for start in {0, min(3, steps), steps - 1, steps}:
        stream = data.stream(10, batch_size, start_step=start, overlap=overlap)
        assert len(stream) == steps - start
        batches = list(stream)
        assert len(batches) == steps - start
        assert all(b.shape == (batch_size, 10 + overlap) for b in batches)
        assert len(stream) == 0


def test_too_little_data_is_refused_with_both_numbers(tmp_path):
    data = dataset(tmp_path / "a.rox", 50)
    assert data.estimate_steps(10, 32) == 0
    with pytest.raises(ConfigError, match="5 windows < batch 32"):
        data.stream(10, 32)
    with pytest.raises(ConfigError, match="0 windows < batch 1"):
        data.stream(51, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", v) for v in (0, -4, 8.0, True, None, "8")]
    + [("seq_len", v) for v in (0, -1, 2.5)]
    + [("start_step", v) for v in (-1, 1.0)]
    + [("epoch", -1), ("epochs", 0), ("overlap", -1), ("prefetch", -1)],
)
def test_wrong_sizes_are_refused_by_name(data, name, value):
    arguments = {"seq_len": 10, "batch_size": 4} | {name: value}
    with pytest.raises(ConfigError, match=f"{name} must be .*got {value!r}"):
        data.stream(**arguments)


def test_a_start_behind_the_end_is_refused_with_both_numbers(data):
    assert list(data.stream(10, 4, start_step=50, epochs=2)) == []
    with pytest.raises(ConfigError, match=r"start_step 51 .* step 50"):
        data.stream(10, 4, start_step=51, epochs=2)


def test_after_the_end_nothing_comes_for_ever(data):
    stream = data.stream(10, 50, prefetch=2)
    assert iter(stream) is stream
    assert len(list(stream)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(stream)
    assert list(stream) == []
    assert prefetch_threads() == []


# resuming


@pytest.mark.parametrize("start", [0, 1, 5, 24, 25, 60, 74])
def test_a_resumed_stream_goes_on_bit_for_bit(data, start):
    reference = [b.tobytes() for b in data.stream(10, 4, seed=9, epochs=3)]
    resumed = data.stream(10, 4, seed=9, epochs=3, start_step=start)
    assert len(resumed) == 75 - start
    assert [b.tobytes() for b in resumed] == reference[start:]


def test_epochs_after_a_resumed_one_are_whole(data):
    stream = data.stream(10, 4, epochs=3, start_step=7)
    seen = rows_seen(stream)
    assert len(set(seen[: 18 * 4])) == 18 * 4
    for begin in (18 * 4, 43 * 4):
        assert len(set(seen[begin : begin + 100])) == 100


def test_resuming_many_times_gives_each_step_once(data):
    reference = [b.tobytes() for b in data.stream(10, 4, epochs=3)]
    seen, step = [], 0
    for stop in (25, 45, 60, 75):
        stream = data.stream(10, 4, epochs=3, start_step=step)
        while step < stop:
            seen.append(next(stream).tobytes())
            step += 1
        position = stream.position(step)
        stream.close()
        step = data.stream(10, 4, epochs=3).step_of(position)
    assert seen == reference


def test_steps_cross_epochs_and_can_be_closed(data):
    stream = data.stream(10, 4)
    batches = list(stream.steps(20, 30))
    for i, batch in enumerate(batches):
        np.testing.assert_array_equal(batch, stream.batch(20 + i))
    assert len(batches) == 10
    assert len(stream) == 25  # the stream itself has not moved
    for prefetch in (0, 2):
        some = data.stream(10, 4, prefetch=prefetch).steps(0, 10**12)
        next(some)
        some.close()
        with pytest.raises(StopIteration):
            next(some)
    assert prefetch_threads() == []


def test_position_counts_rows_and_elements(data):
    stream = data.stream(10, 4, seed=5, epoch=2, overlap=1)
    assert stream.position(30) == {
        "step": 30,
        "seed": 5,
        "epoch": 3,
        "rows_in_epoch": 20,
        "batch_size": 4,
        "seq_len": 10,
        "overlap": 1,
        "rows": 120,
        "elements": 1200,
        "fingerprint": data.fingerprint(),
    }


@pytest.mark.parametrize(
    ("old", "step", "new", "expected"),
    [
        (32, 2, 32, 2),
        (32, 2, 16, 4),
        (32, 2, 64, 1),
        (16, 10, 50, 2),  # 6 steps of 16 an epoch: 4 steps into epoch 1, row 64
        (10, 10, 32, 3),  # the whole first epoch: the next one's first step
        (25, 4, 20, 5),
    ],
)
def test_another_batch_size_goes_on_at_the_first_unread_row(
    data, old, step, new, expected
):
    position = data.stream(10, old).position(step)
    stream = data.stream(10, new)
    if position["rows_in_epoch"] % new:
        with pytest.raises(ConfigError, match=f"64 rows.*batch_size {new}"):
            stream.step_of(position)
        return
    assert stream.step_of(position) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2}, "seed was 1 .* 2 now"),
        ({"seq_len": 20}, "seq_len was 10 .* 20 now"),
        ({"overlap": 1}, "overlap was 0 .* 1 now"),
        ({"epoch": 1}, "in epoch 0, before the stream's first, epoch 1"),
    ],
)
def test_another_grid_is_refused_with_both_values(data, change, words):
    before = {"seq_len": 10, "batch_size": 4, "seed": 1}
    position = data.stream(**before).position(3)
    with pytest.raises(ConfigError, match=words):
        data.stream(**before | change).step_of(position)


def test_other_data_are_refused(data, tmp_path):
    position = data.stream(10, 4).position(3)
    other = dataset(tmp_path / "other.rox", 1040)
    with pytest.raises(ConfigError, match="fingerprint was"):
        other.stream(10, 4).step_of(position)


# threads


class FailingRoxxel(Roxxel):
    num_reads = 0

    def locate(self, *args):
        self.window = super().locate(*args)
        return self

    def read(self, start, stop):
        if self.num_reads == 3:
            raise OSError("the disk has gone")
        self.num_reads += 1
        return self.window.read(start, stop)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_exceptions_of_the_reading_thread_reach_the_caller(data, prefetch):
    stream = FailingRoxxel(data.shards).stream(10, 4, prefetch=prefetch)
    for _ in range(3):
        next(stream)
    with pytest.raises(OSError, match="the disk has gone"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    assert prefetch_threads() == []


def test_close_joins_and_ends(data):
    with data.stream(10, 4, prefetch=2) as stream:
        kept = next(stream)
        assert len(prefetch_threads()) == 1
    assert prefetch_threads() == []
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    assert kept.shape == (4, 10)


def test_forgotten_streams_leave_no_thread(data):
    for _ in range(5):
        next(data.stream(10, 4, prefetch=2))
        some = data.stream(10, 4, prefetch=2).steps(0, 20)
        next(some)
    del some
    gc.collect()
    assert prefetch_threads() == []


def test_constructing_starts_nothing(data):
    stream = data.stream(10, 4, prefetch=2)
    assert prefetch_threads() == []
    assert isinstance(stream, RoxxelStream)


def test_exit_with_a_running_stream_does_not_hang(data, run_python, tmp_path):
    code = """
from roxxel import Roxxel
stream = Roxxel("d_*.rox").stream(10, 4, epochs=10**6, prefetch=2)
next(stream)
kept = stream.steps(0, 10**9)
next(kept)
"""
    done = run_python("-c", code, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_python("-c", code + "raise RuntimeError('as usual')", timeout=60)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: as usual")


def test_a_data_set_closed_under_a_stream_does_no_harm(data):
    with data:
        stream = data.stream(10, 4, prefetch=2)
        first = next(stream)
    assert len(list(stream)) == 24
    np.testing.assert_array_equal(first, stream.batch(0))


def test_kept_batches_never_change(tmp_path):
    data = dataset(tmp_path / "a.rox", 1000)
    stream = data.stream(10, 4, prefetch=2)
    kept = next(stream)
    copy = kept.copy()
    for _ in range(20):
        next(stream)
    path = data.shards[0]
    with open(path, "r+b") as file:
        file.write(b"\xff" * 4000)
    data.close()
    stream.close()
    np.testing.assert_array_equal(kept, copy)


# dtypes


@pytest.mark.parametrize(
    ("stored", "given", "got"),
    [(d, None, "int32") for d in ("uint8", "int8", "uint16", "int64", "uint64")]
    + [(d, None, d) for d in ("float32", "float64", "float16", "bool")]
    + [("uint8", "uint8", "uint8"), ("uint16", np.int64, "int64")]
    + [("uint8", "float32", "float32"), ("bool", "int32", "int32")],
)
def test_dtype_of_batches(tmp_path, stored, given, got):
    data = dataset(tmp_path / "a.rox", 100, dtype=stored)
    stream = data.stream(10, 2, dtype=given)
    batch = stream.batch(0)
    assert batch.dtype == stream.dtype == got
    native = data.stream(10, 2, dtype=stored).batch(0)
    assert batch.astype(float).tolist() == native.astype(float).tolist()


@pytest.mark.parametrize(
    ("values", "value"),
    [
        (np.array([2**32 + 5, 2**31, 1, 2]), "4294967301"),
        (np.array([2**63, 1, 2, 3], np.uint64), "9223372036854775808"),
        (np.array([1, 2, 3, 2**31], np.uint32), "2147483648"),
        (np.array([1, 2, 3, -(2**31) - 1]), "-2147483649"),
    ],
)
def test_ids_beyond_int32_are_refused_when_the_stream_is_made(tmp_path, values, value):
    data = Roxxel(tmp_path / "a.rox").write([values])
    x64 = ".*enable x64" if values.dtype.itemsize == 8 else ""
    with pytest.raises(ConfigError, match=f"{value} of dtype{x64}.* or store int32"):
        data.stream(seq_len=4, batch_size=1, seed=0)
    stream = data.stream(seq_len=4, batch_size=1, dtype=values.dtype)
    assert stream.batch(0).tolist() == [values.tolist()]


def test_ids_beyond_int32_in_old_files_are_refused_when_read(tmp_path):
    raw = np.array([1, 2, 3, 2**31], "<i8").tobytes()
    footer = struct.pack("<q", 32) + struct.pack(
        "<qq8s8s", 1, 32, b"int64", b"ROXXEL02"
    )
    (tmp_path / "old.rox").write_bytes(raw + footer)
    data = Roxxel(tmp_path / "old.rox")
    assert data.stream(1, 1).dtype == np.int32
    with pytest.raises(
        ValueError, match="2147483648 of dtype int64 does not fit int32"
    ):
        list(data.stream(4, 1))


@pytest.mark.parametrize(
    ("stored", "given", "words"),
    [
        ("float32", "int32", "float32 cannot be read as int32"),
        ("int32", "bool", "int32 cannot be read as bool"),
        ("int32", "nonsense", "'nonsense' is unknown"),
        ("int32", "complex64", "not an integer"),
    ],
)
def test_a_dtype_that_cannot_be_is_refused(tmp_path, stored, given, words):
    data = dataset(tmp_path / "a.rox", 100, dtype=stored)
    with pytest.raises(ConfigError, match=words):
        data.stream(10, 2, dtype=given)


def test_steps_and_tokens_of_a_run(tmp_path):
    data = dataset(tmp_path / "d.rox", 1000)
    stream = data.stream(seq_len=8, batch_size=4)
    assert stream.planned_steps is None
    (span,) = stream.spans()
    assert (span.start, span.stop, span.batch_size, span.seq_len) == (0, None, 4, 8)
    assert [stream.tokens(n) for n in (0, 1, 5)] == [0, 32, 160]
    assert [stream.steps_for(n) for n in (0, 1, 32, 33)] == [0, 1, 1, 2]
