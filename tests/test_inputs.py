"""Any input through the trainer: real grain and datasets, resume bit for bit."""

import functools

import datasets
import grain
import grain.python
import jax
import numpy as np
import pytest

from roxxel import optim
from roxxel.train.inputs import Input
from roxxel.train.trainer import Trainer
from tests.test_trainer import assert_same_run, rows
from tests.tiny import Bigram

ROWS, WIDTH, BATCH_SIZE, STEPS = 200, 9, 8, 20
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
    return grain_map().map(lambda ids: {"tokens": ids}).to_iter_dataset()


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


@pytest.mark.parametrize("name", INPUTS)
def test_a_stopped_run_continues_bit_for_bit(name, tmp_path):
    make = INPUTS[name]
    assert trainer(make()).run(tmp_path / "undisturbed") == 0
    for stop in (3, 13, None):  # between saves, and across an epoch of some
        assert trainer(make(), stop_after=stop).run(tmp_path / "cut") == 0
    assert_same_run(tmp_path / "undisturbed", tmp_path / "cut")
    assert len(rows(tmp_path / "cut")) == STEPS
