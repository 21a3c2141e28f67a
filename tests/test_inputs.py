"""Any input through the trainer: real grain and datasets, resume bit for bit."""

import contextlib
import functools
import json
import os
import pathlib
import random
import socket
import subprocess
import sys

import datasets
import grain
import grain.python
import jax
import numpy as np
import pytest

from roxxel import optim
from roxxel.checkpoint import Checkpointer
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.train import input_states
from roxxel.train.inputs import Input, as_source
from roxxel.train.trainer import Trainer
from tests.test_trainer import assert_same_run, rows
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")

CHILD = pathlib.Path(__file__).with_name("inputs_child.py")
ROWS, WIDTH, BATCH_SIZE, STEPS = 200, 9, 8, 20
READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
IDS = np.random.default_rng(0).integers(0, 16, (ROWS, WIDTH)).astype(np.uint8)


def trainer(stream, **kw):
    schedule = optim.warmup_cosine(peak=0.05, total_steps=STEPS)
    options = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "schedule": schedule,
        "stream": stream,
        "total_steps": STEPS,
        "save_every": 5,
    }
    return Trainer(**(options | kw))


class Pure:
    """`batch(step)`: a pure function of the step."""

    def __init__(self, wrap=lambda ids: ids):
        self._wrap = wrap

    def batch(self, step):
        rows = np.random.default_rng(step).integers(0, ROWS, BATCH_SIZE)
        return self._wrap(IDS[rows])


def grain_map():
    return grain.MapDataset.source(IDS).seed(1).shuffle().repeat().batch(BATCH_SIZE)


def grain_dicts():
    return grain_map().map(lambda ids: {"tokens": ids}).to_iter_dataset(READ)


class Rows:
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return IDS[index]

    def __repr__(self):
        return "Rows"


def grain_loader():
    return grain.python.DataLoader(
        data_source=Rows(),
        sampler=grain.python.IndexSampler(
            ROWS, grain.python.NoSharding(), shuffle=True, seed=1, num_epochs=None
        ),
        operations=[grain.python.Batch(BATCH_SIZE, drop_remainder=True)],
    )


def hugging_face(*, buffer_size=None, batched=True):
    data = datasets.Dataset.from_dict({"input_ids": IDS.tolist()})
    data = data.to_iterable_dataset(num_shards=4)
    if buffer_size:
        data = data.shuffle(seed=0, buffer_size=buffer_size)
    return data.batch(BATCH_SIZE, drop_last_batch=True) if batched else data


def plain_lists():
    return [IDS[i : i + BATCH_SIZE].tolist() for i in range(0, ROWS, BATCH_SIZE)]


def generator():
    yield from plain_lists()


INPUTS = {
    "batch(step) of numpy": Pure,
    "batch(step) of jax": functools.partial(
        Pure, lambda ids: jax.numpy.asarray(ids, jax.numpy.int32)
    ),
    "batch(step) of dicts": functools.partial(Pure, lambda ids: {"tokens": ids}),
    "grain MapDataset": grain_map,
    "grain IterDataset of dicts": grain_dicts,
    "grain DatasetIterator": lambda: iter(grain_dicts()),
    "grain DataLoader": grain_loader,
    "grain DataLoaderIterator": lambda: iter(grain_loader()),
    "datasets": hugging_face,
    "datasets, rows": lambda: Input(
        hugging_face(batched=False), batch_size=BATCH_SIZE, seq_len=WIDTH - 1
    ),
    "datasets, two shuffled epochs of 12 batches": lambda: Input(
        hugging_face(buffer_size=1).take(100), batch_size=BATCH_SIZE, epochs=2
    ),
    # The rows in a shuffle buffer are in no state: the input is read again.
    "datasets, shuffle buffer": lambda: hugging_face(buffer_size=64),
    "lists": plain_lists,
    "lists in two epochs": lambda: Input(plain_lists()[:12], epochs=None),
    "generator": generator,
}


def read(stream, start, stop):
    with contextlib.closing(stream.steps(start, stop)) as batches:
        return [np.asarray(batch) for batch in batches]


def saved(stream, step):
    return json.loads(json.dumps(stream.position(step)))


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("name", INPUTS)
def test_a_saved_position_continues_with_the_next_batch(name, prefetch):
    def make():
        stream = as_source(INPUTS[name]())
        stream._prefetch = prefetch  # read ahead of what is saved
        return stream

    undisturbed = read(make(), 0, STEPS)
    assert len(undisturbed) == STEPS
    assert all(b.dtype == np.int32 and b.shape == (8, 9) for b in undisturbed)
    continued, position = [], None
    for start, stop in ((0, 3), (3, 12), (12, 13), (13, STEPS)):
        stream = make()
        if position is not None:
            assert stream.step_of(position) == start
            stream.restore(position)
        with contextlib.closing(stream.steps(start, STEPS)) as batches:
            continued += [np.asarray(next(batches)) for _ in range(start, stop)]
            position = saved(stream, stop)
    np.testing.assert_array_equal(continued, undisturbed)


@pytest.mark.parametrize("name", ["batch(step) of jax", "grain DataLoader", "datasets"])
def test_a_stopped_run_is_the_undisturbed_one_bit_for_bit(name, tmp_path):
    make = INPUTS[name]
    assert trainer(make()).run(tmp_path / "undisturbed") == 0
    for stop in (3, None):  # between saves
        assert trainer(make(), stop_after=stop).run(tmp_path / "cut") == 0
    assert_same_run(tmp_path / "undisturbed", tmp_path / "cut")
    assert len(rows(tmp_path / "cut")) == STEPS


def test_one_object_serves_a_second_start_in_the_same_process(tmp_path):
    source = iter(grain_dicts())
    stream = as_source(source)
    first = read(stream, 0, 5)
    np.testing.assert_array_equal(read(stream, 0, 5), first)
    np.testing.assert_array_equal(read(stream, 3, 5), first[3:])


def test_the_end_of_the_data_saves_and_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"epochs=1: 12 steps are done and saved, 20"):
        trainer(plain_lists()[:12]).run(tmp_path / "run")
    with Checkpointer(tmp_path / "run" / "checkpoints") as checkpointer:
        assert checkpointer.latest_step() == 12
    more = Input(plain_lists()[:12], epochs=2)
    assert trainer(more).run(tmp_path / "run") == 0


def batch_of(dtype, rows=BATCH_SIZE, value=1):
    return np.full((rows, WIDTH), value, dtype)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([batch_of(np.float32)], r"float32\[8, 9\]; expected whole numbers"),
        ([batch_of(np.int64, value=2**31)], "ids from 2147483648 to 2147483648"),
        ([batch_of(np.uint32, value=2**32 - 1)], "which int32 does not hold"),
        ([batch_of(np.uint8), batch_of(np.uint8, 5)], r"batch 1 .* is \[5, 9\], the"),
        ([batch_of(np.uint8)[:, :, None]], "expected whole numbers"),
        ([[[1, 2, 3], [1, 2]]], "rows of different lengths"),
        ([{"text": ["a"]}], "is a dict of text; expected tokens or input_ids"),
        ([batch_of(np.uint8)[0]], "rows of 9 elements; say how many"),
        ([], "has no items"),
        (Input([batch_of(np.uint8)], batch_size=16), r"is \[8, 9\]; expected \[16, 9"),
        (Input([batch_of(np.uint8)], seq_len=9), r"is \[8, 9\]; expected \[8, 10"),
        (
            Input([batch_of(np.uint8)[0]] * 8, batch_size=4, seq_len=7),
            "expected .4, 8.",
        ),
    ],
)
def test_what_is_no_batch_is_refused(source, words):
    with pytest.raises(ConfigError, match=words):
        read(as_source(source), 0, 4)


@pytest.mark.parametrize("what", ["here", b"", {"tokens": IDS}, IDS, 3, None])
def test_what_yields_no_batches_is_no_stream(what):
    with pytest.raises(ConfigError, match="not a stream, an iterable"):
        trainer(what)


def test_a_data_set_is_told_from_its_stream(tmp_path):
    rox = Roxxel(tmp_path / "train_*.rox")
    rox.write([IDS.ravel()])
    with pytest.raises(ConfigError, match=r"give dataset\.stream"):
        trainer(rox)


def test_a_batch_is_a_copy_that_the_source_may_overwrite():
    buffer = batch_of(np.int32, value=0)

    def reused():
        for step in range(3):
            buffer[:] = step
            yield buffer

    stream = as_source(reused()).place(None, None)
    with contextlib.closing(stream.steps(0, 3)) as batches:
        kept = list(batches)
    assert [int(batch[0, 0]) for batch in kept] == [0, 1, 2]


def test_sizes_and_lengths_come_from_the_first_batch():
    stream = as_source(grain_dicts())
    assert (stream.batch_size, stream.seq_len, stream.overlap) == (8, 8, 1)
    assert optim.total_steps(stream, tokens=1000) == 16  # 64 a step
    assert stream.steps_for(64) == 1
    with pytest.raises(ConfigError, match="epochs need a data set of known length"):
        optim.total_steps(stream, epochs=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 16}, "batch_size was 8 and is now 16"),
        ({"seq_len": 7}, "seq_len was 8 and is now 7"),
    ],
)
def test_resuming_with_other_sizes_is_refused(tmp_path, change, words):
    def make(**options):
        rows = IDS[:, : options.get("seq_len", 8) + 1]
        return Input(iter(list(rows)), **{"batch_size": 8} | options)

    assert trainer(make(), stop_after=4).run(tmp_path / "run") == 0
    with pytest.raises(ConfigError, match=words):
        trainer(make(**change)).run(tmp_path / "run")


def test_other_data_behind_batch_of_step_is_refused(tmp_path):
    assert trainer(Pure(), stop_after=4).run(tmp_path / "run") == 0
    other = Pure(lambda ids: (ids + 1) % 16)
    with pytest.raises(ConfigError, match=r"batch\(3\) of the input gives other ids"):
        trainer(other).run(tmp_path / "run")


def test_a_change_of_the_kind_of_input_is_refused(tmp_path):
    assert trainer(Pure(), stop_after=4).run(tmp_path / "run") == 0
    with pytest.raises(ConfigError, match="no state of an iterator"):
        trainer(grain_dicts()).run(tmp_path / "run")


def test_a_bare_iterator_cannot_go_back():
    stream = as_source(generator())
    read(stream, 0, 5)
    with pytest.raises(ConfigError, match="bare iterator, without a state"):
        read(stream, 0, 5)


STATES = [
    {"a": 1, "b": [1.5, None, True, "x"], "deep": {"c": (1, (2,))}},
    {"bytes": b"\x00\xff", 3: "an int key", (1, 2): "a tuple key"},
    {"!bytes": "looks like a tag"},
    np.random.default_rng(1).bit_generator.state,
    [np.float32(1.5), np.int64(-3), np.arange(6, dtype=np.uint16).reshape(2, 3)],
    2**200,
]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_states_survive_json(state):
    text = json.dumps(input_states.encode(state))
    back = input_states.decode(json.loads(text))
    np.testing.assert_equal(back, state)
    assert type(back) is type(state)


def test_a_state_that_is_no_plain_value_is_named():
    with pytest.raises(ConfigError, match=r"state\.a\[1\] is a _random\.Random|random"):
        input_states.encode({"a": [1, random.Random()]})


def test_two_processes_bring_their_parts_and_resume(tmp_path, repo_root):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for index in range(2):
        environment = os.environ | {
            "PYTHONPATH": str(repo_root),
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "ROXXEL_COORDINATOR": f"127.0.0.1:{port}",
            "ROXXEL_NUM_PROCESSES": "2",
            "ROXXEL_PROCESS_ID": str(index),
        }
        command = [sys.executable, CHILD, tmp_path]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        children.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    for child in children:
        output, _ = child.communicate(timeout=200)
        assert child.returncode == 0, output
    assert_same_run(tmp_path / "undisturbed", tmp_path / "cut")
    with pytest.raises(ConfigError, match="saved by 2 processes and this run has 1"):
        trainer(grain_map(), total_steps=30).run(tmp_path / "cut")
