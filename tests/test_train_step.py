"""The step over flat leaves, and the evaluation over a whole set."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from roxxel import optim, sharding
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.models.losses import next_token_loss
from roxxel.train.evaluation import Evaluation, evaluate, make_eval_step
from roxxel.train.step import make_train_step
from tests.tiny import Bigram

SCHEDULE = optax.constant_schedule(1e-2)


def make(mesh=None):
    def create():
        model = Bigram(rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(
            model, optim.adamw(schedule=SCHEDULE), wrt=nnx.Param
        )

    return sharding.create_on(mesh, create)


def batches(count, shape=(8, 9)):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.integers(0, 16, shape), jnp.int32) for _ in range(count)]


def poisoned(model, tokens, mask=None):
    """A loss that is NaN for a batch that begins with token 15."""
    mean, weight = next_token_loss(model, tokens, mask)
    return jnp.where(tokens[0, 0] == 15, jnp.nan, mean), weight


def test_step_over_leaves_equals_the_plain_nnx_step():
    model, optimizer = make()
    step = make_train_step(model, optimizer, next_token_loss, schedule=SCHEDULE)
    leaves = step.leaves(model, optimizer)
    plain_model, plain_optimizer = make()
    for batch in batches(5):
        leaves, metrics = step.run(leaves, batch)
        loss, grads = nnx.value_and_grad(lambda m, b=batch: next_token_loss(m, b)[0])(
            plain_model
        )
        plain_optimizer.update(plain_model, grads)
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
        assert metrics["tokens"] == 64
    step.write_back(leaves, model, optimizer)
    assert optimizer.step[...] == 5
    np.testing.assert_allclose(
        model.table.embedding[...], plain_model.table.embedding[...], rtol=1e-5
    )


def test_leaves_are_donated():
    model, optimizer = make()
    step = make_train_step(model, optimizer, next_token_loss)
    leaves = step.leaves(model, optimizer)
    step.run(leaves, batches(1)[0])
    assert all(leaf.is_deleted() for leaf in leaves[:-1])


def test_state_stays_as_before_the_first_step_that_is_not_finite():
    model, optimizer = make()
    step = make_train_step(model, optimizer, poisoned)
    leaves = step.leaves(model, optimizer)
    good = [batch.at[0, 0].set(1) for batch in batches(6)]
    for batch in good[:3]:
        leaves, metrics = step.run(leaves, batch)
    kept = [np.array(leaf) for leaf in leaves[:-1]]
    leaves, metrics = step.run(leaves, good[3].at[0, 0].set(15))
    assert not metrics["finite"]
    for batch in good[4:]:
        leaves, metrics = step.run(leaves, batch)
        assert not metrics["finite"]
    for before, after in zip(kept, leaves[:-1], strict=True):
        np.testing.assert_array_equal(before, after)


def test_an_update_that_is_not_finite_is_not_taken():
    """The gradients are fine, the schedule is not."""

    def create():
        model = Bigram(rngs=nnx.Rngs(0))
        schedule = optax.constant_schedule(float("nan"))
        return model, nnx.Optimizer(
            model, optim.adamw(schedule=schedule), wrt=nnx.Param
        )

    model, optimizer = create()
    step = make_train_step(model, optimizer, next_token_loss)
    leaves = step.leaves(model, optimizer)
    before = [np.array(leaf) for leaf in leaves[:-1]]
    leaves, metrics = step.run(leaves, batches(1)[0])
    assert np.isfinite(metrics["loss"])
    assert not metrics["finite"]
    for kept, leaf in zip(before, leaves[:-1], strict=True):
        np.testing.assert_array_equal(kept, leaf)


def test_equal_on_one_device_and_on_a_mesh_of_eight():
    single, mesh = make(), sharding.make_mesh({"data": -1})
    sharded = make(mesh)
    results = []
    for (model, optimizer), place in (
        (single, lambda b: b),
        (sharded, lambda b: jax.device_put(b, sharding.batch_sharding(mesh))),
    ):
        step = make_train_step(model, optimizer, next_token_loss)
        leaves = step.leaves(model, optimizer)
        for batch in batches(3):
            leaves, metrics = step.run(leaves, place(batch))
        results.append((leaves[:-1], metrics["loss"]))
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-6)
    for one, eight in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_allclose(one, eight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "axes", [{"data": 3}, {"data": -1, "model": -1}, {"data": -1, "model": 3}]
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(axes):
    with pytest.raises(ConfigError, match="do not fit 8 devices"):
        sharding.make_mesh(axes)


@pytest.fixture
def dataset(tmp_path):
    rox = Roxxel(tmp_path / "heldout_*.rox")
    tokens = np.random.default_rng(1).integers(0, 16, 1003).astype(np.uint8)
    rox.write([tokens[:500], tokens[500:]])
    with rox:
        yield rox


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("seq_len", [10, 64, 2000])  # 2000: one padded window
def test_evaluation_predicts_every_element_once(dataset, batch_size, seq_len):
    model, _ = make()
    evaluation = Evaluation(dataset=dataset, seq_len=seq_len, batch_size=batch_size)
    step = make_eval_step(model, next_token_loss)
    metrics = evaluate(evaluation, step, jax.tree.leaves(nnx.state(model)))
    # A bigram table needs no context, so windows do not change the exact answer.
    tokens = jnp.asarray(dataset.elements(0, 1003), jnp.int32)[None]
    exact, weight = next_token_loss(model, tokens)
    assert weight == 1002 == evaluation.num_targets
    assert metrics["eval_loss"] == pytest.approx(float(exact), rel=1e-6)
    assert metrics["eval_bits_per_byte"] == pytest.approx(
        float(exact) / math.log(2), rel=1e-6
    )


def test_evaluation_on_a_mesh_is_the_same_number(dataset):
    mesh = sharding.make_mesh({"data": -1})
    losses = []
    for placed in (None, mesh):
        model, _ = make(placed)
        evaluation = Evaluation(dataset=dataset, seq_len=64, batch_size=8)
        step = make_eval_step(model, next_token_loss)
        leaves = jax.tree.leaves(nnx.state(model))
        losses.append(evaluate(evaluation, step, leaves, placed)["eval_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("values", [[0.5, 1.5], [1, 2**32 + 5]])
def test_evaluation_never_cuts_or_wraps_ids(tmp_path, values):
    rox = Roxxel(tmp_path / "ids.rox")
    rox.write([np.array(values)])
    model, _ = make()
    with pytest.raises(ConfigError, match=r"whole numbers|do not fit int32"):
        evaluate(
            Evaluation(dataset=rox, seq_len=4),
            make_eval_step(model, next_token_loss),
            jax.tree.leaves(nnx.state(model)),
        )


def test_dropout_is_off_in_evaluation(dataset):
    class Dropping(Bigram):
        def __init__(self, *, rngs):
            super().__init__(rngs=rngs)
            self.dropout = nnx.Dropout(0.9, rngs=rngs)

        def __call__(self, tokens, *, segment_ids_BL=None, state=None):
            logits, state = super().__call__(tokens)
            return self.dropout(logits), state

    losses = []
    for model in (Dropping(rngs=nnx.Rngs(0)), Bigram(rngs=nnx.Rngs(0))):
        evaluation = Evaluation(dataset=dataset, seq_len=64)
        step = make_eval_step(model, next_token_loss)
        leaves = jax.tree.leaves(nnx.state(model))
        losses.append(evaluate(evaluation, step, leaves)["eval_loss"])
    assert losses[0] == losses[1]


def test_evaluation_of_an_empty_set_is_nan_not_an_exception(tmp_path):
    rox = Roxxel(tmp_path / "one.rox")
    rox.write([np.array([3], np.uint8)])
    model, _ = make()
    evaluation = Evaluation(dataset=rox, seq_len=4)
    step = make_eval_step(model, next_token_loss)
    metrics = evaluate(evaluation, step, jax.tree.leaves(nnx.state(model)))
    assert math.isnan(metrics["eval_loss"])
