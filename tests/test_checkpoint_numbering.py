"""The step a save is stored under, against the loops that people write."""

import logging

import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from roxxel.checkpoint import Checkpointer
from roxxel.checkpointing.record import completed_steps


@pytest.mark.parametrize(
    ("step", "updates", "last", "stored"),
    [
        (100, 100, None, 100),  # completed steps, as documented
        (100, 101, None, 101),  # the index of the step just done
        (0, 1, None, 1),
        (0, 0, None, 0),  # before any step
        (100, None, (50, None), 100),  # no optimizer: no opinion
        (0, 151, (101, 101), 151),  # labels start again in the second epoch
        (100, 251, (151, 151), 251),
        (100, 301, (251, 251), 301),  # and in the third
        (20, 200, (10, 100), 20),  # updates counted otherwise, e.g. ten a step
        (3, 3000, None, 3),  # epochs as labels
        (4, 4000, (3, 3000), 4),
        (5, 12, (5, 5), 5),  # the same step again: replaces it
        (5, 9, (10, 9), 5),  # no progress since: the caller's choice
        (5, 9, (10, 8), 5),  # the count would be below the last one: no help
        (5, 99, (10, None), 5),  # nothing to compare with
    ],
)
def test_completed_steps(step, updates, last, stored):
    number, why = completed_steps(step, updates, last)
    assert number == stored
    assert (why is None) == (number == step)


STEPS_PER_EPOCH, EPOCHS, SAVE_EVERY = 7, 3, 3


class Killed(BaseException):
    pass


def counter():
    model = nnx.Dict(w=nnx.Param(jnp.zeros(())))
    return model, nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)


def update(model, optimizer):
    optimizer.update(model, nnx.grad(lambda m: m.w[...])(model))


def published_loop(path, done, kill_after_saves=99):
    """The loop of the published example, with its labels, over numbered batches.

    `done` collects (epoch, batch) of every update that the final state contains.
    """
    model, optimizer = counter()
    checkpointer = Checkpointer(path, model, optimizer)
    start = checkpointer.restore()
    steps, saves, pending = start, 0, []
    for epoch in range(start // STEPS_PER_EPOCH, EPOCHS):
        offset = start % STEPS_PER_EPOCH
        for index in range(offset, STEPS_PER_EPOCH):
            if saves >= kill_after_saves and pending:
                checkpointer.wait()
                raise Killed  # one update after the save: lost, and done again
            update(model, optimizer)
            pending.append((epoch, index))
            steps += 1
            if index % SAVE_EVERY == 0:  # the label is that of the step just done
                assert checkpointer.save(index) == steps
                done += pending
                saves, pending = saves + 1, []
        start = 0
    checkpointer.close()
    done += pending
    assert float(model.w[...]) == -steps


@pytest.mark.parametrize("kills", [[], [1], [3], [2, 1, 4], [1, 1, 1, 1, 1]])
def test_the_published_labels_train_every_batch_once(tmp_path, kills, caplog):
    done = []
    for saves in kills:
        with pytest.raises(Killed):
            published_loop(tmp_path, done, saves)
    published_loop(tmp_path, done)
    assert done == [(e, b) for e in range(EPOCHS) for b in range(STEPS_PER_EPOCH)]
    assert "save(step=0) after 1 updates is stored as 1 completed steps" in caplog.text


def test_the_log_says_it_once_and_labels_can_be_trusted(tmp_path, caplog):
    model, optimizer = counter()
    update(model, optimizer)
    with caplog.at_level(logging.WARNING, logger="absl"):
        with Checkpointer(tmp_path / "a", model, optimizer) as checkpointer:
            assert checkpointer.save(0) == 1
            update(model, optimizer)
            assert checkpointer.save(1) == 2
        with Checkpointer(
            tmp_path / "b", model, optimizer, trust_labels=True
        ) as checkpointer:
            assert checkpointer.save(1) == 1
    assert len(caplog.records) == 1
