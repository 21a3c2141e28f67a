"""One of two processes that each bring a part of the batches."""

import pathlib
import sys

import grain
import numpy as np

from roxxel import distributed, errors, optim
from roxxel.train.inputs import Input
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram

STEPS = 20
READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
IDS = np.random.default_rng(0).integers(0, 16, (200, 9)).astype(np.uint8)


def train(folder, stream, **kw):
    schedule = optim.warmup_cosine(peak=0.05, total_steps=STEPS)
    trainer = Trainer(
        model=Bigram,
        optimizer=optim.adamw(schedule=schedule),
        schedule=schedule,
        stream=stream,
        total_steps=STEPS,
        save_every=5,
        **kw,
    )
    return trainer.run(folder)


def part(index, batch_size=4):
    rows = grain.MapDataset.source(IDS[index::2]).seed(1).shuffle().repeat()
    return iter(rows.batch(batch_size).to_iter_dataset(READ))


def whole():
    return grain.MapDataset.source(IDS).seed(1).shuffle().repeat().batch(8)


class Steps:
    def __init__(self, shift):
        self._shift = shift

    def batch(self, step):
        return IDS[8 * step + self._shift :][:8]


def refused(folder, stream, words):
    try:
        train(folder, stream)
    except errors.ConfigError as err:
        if words in str(err):
            return
        raise
    raise AssertionError(f"not refused: {words}")


def main():
    distributed.initialize()
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    root, me = pathlib.Path(sys.argv[1]), jax.process_index()
    refused(root / "no", part(0), "processes 0 and 1 read the same rows")
    refused(root / "no", part(me, 4 - me), "the processes' batches differ: [(4, 9)")
    refused(root / "no", Steps(me), "each should hold the whole batch")
    assert train(root / "pure", Steps(0), stop_after=3) == 0
    same = Input(whole(), per_process=False)
    assert train(root / "whole", same, stop_after=3) == 0
    assert train(root / "undisturbed", part(me)) == 0
    for stop in (7, None):
        assert train(root / "cut", part(me), stop_after=stop) == 0


if __name__ == "__main__":
    main()
