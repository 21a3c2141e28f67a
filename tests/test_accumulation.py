"""Micro-batches inside the step: the loss and gradients of the whole batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx

from roxxel import optim, sharding
from roxxel.errors import ConfigError
from roxxel.models.hybrid import HybridLM
from roxxel.models.losses import next_token_loss
from roxxel.models.ssm import Mamba2LM
from roxxel.models.transformer import TransformerLM
from roxxel.train import accumulate
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")

ATTENTION = {"n_heads": 2, "d_ff": 16}
MODELS = {
    "ssm": functools.partial(Mamba2LM, n_layers=1, head_dim=8, state_dim=4),
    "transformer": functools.partial(TransformerLM, n_layers=1, **ATTENTION),
    "hybrid": functools.partial(
        HybridLM,
        n_layers=2,
        pattern="MA",
        ssm_head_dim=8,
        state_dim=4,
        **ATTENTION,
    ),
}


def masked_loss(model, batch):
    return next_token_loss(model, batch["tokens"], batch["mask"])


def uneven_batch(rows=8, length=9):
    """Masks from full to empty; of 4 micro-batches (rows i, i + 4) one counts nothing.

    Micro-batch i of n has rows i, i + n and so on.
    """
    rng = np.random.default_rng(0)
    mask = rng.random((rows, length)) < np.linspace(1, 0.2, rows)[:, None]
    mask[[2, 6]] = False
    tokens = rng.integers(0, 16, (rows, length))
    return {"tokens": np.int32(tokens), "mask": np.float32(mask)}


def results(make_model, batch, *, count, axes=None, loss=masked_loss):
    mesh = None
    if axes is not None:
        devices = jax.devices()[: int(np.prod(list(axes.values())))]
        mesh = sharding.make_mesh(axes, devices)

    def create():
        return (make_model(vocab_size=16, d_model=16, rngs=nnx.Rngs(0)),)

    (model,) = sharding.create_on(mesh if axes and "fsdp" in axes else None, create)
    graphdef, state = nnx.split(model)
    if mesh is not None and "fsdp" not in axes:
        state = jax.device_put(state, sharding.replicated(mesh))
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    compute = functools.partial(accumulate.gradients, loss, count=count)
    run = jax.jit(compute, static_argnums=1, compiler_options=quick.OPTIONS)
    mean, weight, grads, _ = run(batch, graphdef, state)
    flat, _ = jax.tree_util.tree_flatten_with_path(grads)
    named = {optim.parameter_name(path): np.asarray(leaf) for path, leaf in flat}
    return {"loss": mean, "weight": weight} | named


def assert_close(one, other, rtol=1e-5):
    assert one.keys() == other.keys()
    for name, value in one.items():
        size = np.abs(value).max()
        np.testing.assert_allclose(
            other[name], value, rtol=rtol, atol=rtol * size, err_msg=name
        )


def test_micro_batches_have_the_gradients_of_the_batch():
    """State space and attention blocks in one; the table below has each alone."""
    batch = uneven_batch()
    whole = results(MODELS["hybrid"], batch, count=1)
    assert whole["weight"] == batch["mask"][:, 1:].sum()
    parts = results(MODELS["hybrid"], batch, count=4, axes={"data": 2})
    assert_close(whole, parts)


def small(vocab_size, d_model, rngs):
    del d_model
    return Bigram(vocab_size, rngs=rngs)


def test_a_batch_in_which_nothing_counts_has_loss_and_gradients_zero():
    batch = uneven_batch() | {"mask": np.zeros((8, 9), np.float32)}
    for count in (1, 2):
        found = results(small, batch, count=count)
        for name, value in found.items():
            np.testing.assert_array_equal(value, 0 * value, err_msg=name)


def test_state_that_is_no_parameter_goes_from_one_micro_batch_to_the_next():
    class Counting(Bigram):
        def __init__(self, *, rngs):
            super().__init__(rngs=rngs)
            self.calls = nnx.Variable(jnp.int32(0))

        def __call__(self, tokens, **options):
            self.calls[...] += 1
            return super().__call__(tokens, **options)

    graphdef, state = nnx.split(Counting(rngs=nnx.Rngs(0)))
    batch = jnp.zeros((8, 3), jnp.int32)
    *_, after = accumulate.gradients(next_token_loss, batch, graphdef, state, count=4)
    assert after["calls"][...] == 4


def test_micro_batches_take_less_memory_and_move_no_rows():
    mesh = sharding.make_mesh({"data": 2}, jax.devices()[:2])
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Bigram(64, rngs=nnx.Rngs(0))))
    rows = sharding.batch_sharding(mesh)
    batch = jax.ShapeDtypeStruct((64, 65), jnp.int32, sharding=rows)
    sizes = {}
    for count in (1, 4):
        compute = functools.partial(accumulate.gradients, next_token_loss, count=count)
        jitted = jax.jit(compute, static_argnums=1)
        program = jitted.lower(batch, graphdef, state).compile()
        sizes[count] = program.memory_analysis().temp_size_in_bytes
        for moved in ("all-gather", "all-to-all", "collective-permute"):
            assert moved not in program.as_text()
    assert sizes[4] < 0.5 * sizes[1], sizes


@pytest.mark.parametrize(
    ("size", "count", "shards", "near"),
    [(8, 3, 1, "6 or 9"), (8, 2, 8, "16"), (24, 2, 8, "16 or 32")],
)
def test_a_batch_that_does_not_divide_is_named(size, count, shards, near):
    from roxxel.data.steps import Span

    (problem,) = accumulate.problems((Span(0, None, size, 4),), count, shards)
    assert f"batch_size {size} does not divide into accumulate={count}" in problem
    assert problem.endswith(f"nearest that do: {near}.")


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_accumulate_is_a_positive_int(count):
    with pytest.raises(ConfigError, match="accumulate must be an int of at least 1"):
        accumulate.check_count(count)
