"""The rate at which a trainer trains on this machine, measured before its run."""

import contextlib
import itertools
import time
from typing import TYPE_CHECKING

import jax
import numpy as np

from roxxel import sharding
from roxxel.train import meshes
from roxxel.train.step import make_train_step

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer

_WARM_STEPS = 2
_LEAST_STEPS = 5
_LEAST_SECS = 3.0
_MOST_STEPS = 200


def tokens_per_second(trainer: "Trainer") -> float:
    """Tokens a second of the training step with its data, compilation left out.

    Trains a throwaway copy of the model for a few seconds; the run begins untouched.
    All processes get the same number, that of the lead.
    """
    mesh = meshes.make(trainer)
    model, optimizer = meshes.create(trainer, mesh)
    step = make_train_step(model, optimizer, trainer.loss, schedule=trainer.schedule)
    leaves = step.leaves(model, optimizer)
    rows = sharding.batch_sharding(mesh, trainer.axis_rules)
    stream = trainer.stream.place(mesh, rows)
    with contextlib.closing(stream.steps(0, _WARM_STEPS + _MOST_STEPS)) as batches:
        for batch in itertools.islice(batches, _WARM_STEPS):
            leaves, _ = step.run(leaves, batch)
        jax.block_until_ready(leaves)
        begin, done = time.perf_counter(), 0
        while not _is_enough(done, time.perf_counter() - begin):
            leaves, _ = step.run(leaves, next(batches))
            jax.block_until_ready(leaves)
            done += 1
        seconds = time.perf_counter() - begin
    trained = stream.tokens(_WARM_STEPS + done) - stream.tokens(_WARM_STEPS)
    return _of_lead(trained / seconds)


def _is_enough(steps: int, seconds: float) -> bool:
    """The same answer in every process: with several, a fixed number of steps."""
    if jax.process_count() > 1:
        return steps >= _LEAST_STEPS
    return steps >= _MOST_STEPS or (steps >= _LEAST_STEPS and seconds >= _LEAST_SECS)


def _of_lead(rate: float) -> float:
    if jax.process_count() == 1:
        return rate
    from jax.experimental import multihost_utils

    shared = multihost_utils.broadcast_one_to_all(np.asarray(rate, np.float32))
    return float(shared)
