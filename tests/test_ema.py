"""The running mean of the weights: its numbers, and what is done with it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from roxxel import optim, sharding
from roxxel.checkpoint import Checkpointer
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.logger import Logger
from roxxel.models.losses import next_token_loss
from roxxel.train import ema
from roxxel.train.evaluation import Evaluation, evaluate, make_eval_step
from roxxel.train.optimizer import RunOptimizer
from roxxel.train.step import make_train_step
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture
def dataset(tmp_path):
    rox = Roxxel(tmp_path / "train.rox")
    rox.write([np.random.default_rng(0).integers(0, 16, 600).astype(np.uint8)])
    return rox


def trainer(dataset, **options):
    schedule = optim.constant(peak=0.05, total_steps=8)
    defaults = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "stream": dataset.stream(8, 8, overlap=1),
        "total_steps": 8,
        "save_every": 4,
        "ema_decay": 0.5,
        "evaluation": Evaluation(dataset=dataset, seq_len=8),
        "logger": functools.partial(Logger, console=False),
    }
    return Trainer(**(defaults | options))


def test_mean_follows_its_formula_on_a_mesh_too():
    mesh = sharding.make_mesh({"data": -1})

    def create():
        model = Bigram(rngs=nnx.Rngs(0))
        tx = optim.adamw(schedule=lambda count: 0.1)
        return model, RunOptimizer(model, tx, ema_decay=0.6)

    model, optimizer = sharding.create_on(mesh, create)
    step = make_train_step(model, optimizer, next_token_loss)
    leaves = step.leaves(model, optimizer)
    expected = np.array(leaves[0])
    rng = np.random.default_rng(0)
    for number in range(1, 9):
        batch = jnp.asarray(rng.integers(0, 16, (8, 5)), jnp.int32)
        batch = jax.device_put(batch, sharding.batch_sharding(mesh))
        leaves, _ = step.run(leaves, batch)
        kept = min(0.6, (1 + number) / (10 + number))
        expected = kept * expected + (1 - kept) * np.array(leaves[0])
    (mean,) = step.evaluated(leaves)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    assert not np.allclose(leaves[0], expected, rtol=1e-3)


def test_mean_is_evaluated_saved_and_restored(dataset, tmp_path):
    run = trainer(dataset, stop_after=4)
    assert run.run(tmp_path / "run") == 0
    assert trainer(dataset).run(tmp_path / "run") == 0
    assert trainer(dataset).run(tmp_path / "whole") == 0
    found = {}
    for name in ("run", "whole"):
        model, optimizer = run.create()
        root = tmp_path / name / "checkpoints"
        with Checkpointer(root, model, optimizer) as checkpointer:
            assert checkpointer.restore() == 8
        leaves = jax.tree.leaves(nnx.state(optimizer.ema))
        found[name] = np.array(leaves[0])
        assert ema.restore(root, 8, model)
        np.testing.assert_array_equal(model.table.embedding[...], leaves[0])
        step = make_eval_step(model, next_token_loss)
        evaluated = evaluate(
            run.evaluation, step, jax.tree.leaves(nnx.state(model)), None
        )
        log = (tmp_path / name / "roxxel_system.log").read_text()
        assert f"eval_loss {evaluated['eval_loss']:.4f}" in log
        assert "decay 0.5: it is evaluated and sampled from" in log
    np.testing.assert_array_equal(found["run"], found["whole"])


def test_mean_can_be_turned_on_and_off_between_starts(dataset, tmp_path):
    workdir = tmp_path / "run"
    assert trainer(dataset, ema_decay=None, stop_after=4).run(workdir) == 0
    assert not ema.restore(workdir / "checkpoints", 4, Bigram(rngs=nnx.Rngs(0)))
    assert trainer(dataset, stop_after=8).run(workdir) == 0
    assert "holds no mean: it begins" in (workdir / "roxxel_system.log").read_text()
    assert trainer(dataset, ema_decay=None).run(workdir) == 0


@pytest.mark.parametrize("decay", [0, 1, 1.5, -0.1, "0.9", True])
def test_decay_lies_between_0_and_1(decay):
    with pytest.raises(ConfigError, match="ema_decay must be between 0 and 1"):
        ema.check_decay(decay)
