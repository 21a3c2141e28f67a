"""A small data set with one row that makes any loss not finite; and two processes.

`poisoned.py FOLDER INDEX PORT` is one of two processes for test_divergence.py.
"""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from roxxel import optim
from roxxel.dataset import Roxxel
from roxxel.logger import Logger
from roxxel.models.losses import next_token_loss
from roxxel.train.divergence import Divergence
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram

SEQ_LEN, BATCH_SIZE, STEPS = 8, 8, 12
POISON = 15  # a row that begins with it is not finite
BAD_ROW = 26  # in batch 4 of 12


def poisoned(model, tokens, mask=None):
    """NaN as soon as one row begins with `POISON`, in its loss and in gradients."""
    mean, weight = next_token_loss(model, tokens, mask)
    return jnp.where(jnp.any(tokens[:, 0] == POISON), jnp.nan, mean), weight


def write(folder):
    """100 rows in three shards, of which `BAD_ROW` is poisoned."""
    tokens = np.random.default_rng(0).integers(0, 14, 100 * SEQ_LEN + 1)
    tokens[BAD_ROW * SEQ_LEN] = POISON
    rox = Roxxel(folder / "train_*.rox")
    rox.write([tokens.astype(np.uint8)], block_size=8, max_shard_bytes=1200)
    assert len(rox.shards) == 3
    return rox


def bad_step(dataset):
    """The step whose batch holds the bad row, and the row's place in it."""
    stream = dataset.stream(SEQ_LEN, BATCH_SIZE, seed=3, overlap=1)
    for batch in range(STEPS):
        rows = [origin.row for origin in stream.origins(batch)]
        if BAD_ROW in rows:
            return batch + 1, rows.index(BAD_ROW)
    raise AssertionError("the bad row is in no batch")


def trainer(dataset, **options):
    schedule = optim.constant(peak=0.05, total_steps=STEPS)
    defaults = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "schedule": schedule,
        "stream": dataset.stream(SEQ_LEN, BATCH_SIZE, seed=3, overlap=1),
        "total_steps": STEPS,
        "save_every": 3,
        "loss": poisoned,
        "logger": functools.partial(Logger, console=False),
    }
    return Trainer(**(defaults | options))


class Failing:
    """A stream whose batch `at` cannot be read."""

    def __init__(self, stream, at):
        self._stream, self._at = stream, at

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def place(self, *args, **kwargs):
        return Failing(self._stream.place(*args, **kwargs), self._at)

    def steps(self, start, stop):
        for step, batch in enumerate(self._stream.steps(start, stop), start):
            if step == self._at:
                raise OSError("the disk is gone")
            yield batch


def two_processes(folder, index, port):
    """Skips, is cut off behind the refused step, and goes on; also rewinds."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, index)
    dataset = Roxxel(folder / "train_*.rox")
    step, _ = bad_step(dataset)
    skip = Divergence(policy="skip")
    stream = dataset.stream(SEQ_LEN, BATCH_SIZE, seed=3, overlap=1)
    failing = Failing(stream, step + 3)
    cut = trainer(dataset, divergence=skip, stream=failing, save_every=10)
    try:
        cut.run(folder / "skip")
    except OSError:
        sys.stdout.write("cut off\n")
    again = trainer(dataset, divergence=skip, save_every=10)
    assert again.run(folder / "skip") == 0
    rewind = Divergence(policy="rewind")
    options = {"divergence": rewind, "accumulate": 2, "ema_decay": 0.5}
    assert trainer(dataset, **options).run(folder / "rewind") == 0


if __name__ == "__main__":
    two_processes(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
