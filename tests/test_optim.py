"""Run lengths, schedules and decay masks."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from roxxel import optim
from roxxel.errors import ConfigError
from roxxel.models.ssm import Mamba2LM

STREAM = types.SimpleNamespace(batch_size=4, seq_len=10, steps_per_epoch=7)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ({"steps": 5}, 5),
        ({"tokens": 400}, 10),
        ({"tokens": 401}, 11),  # whole batches, rounded up
        ({"epochs": 3}, 21),
        ({"epochs": 0.5}, 3),  # rounded down
        ({"epochs": 0.01}, 1),  # at least one step
    ],
)
def test_total_steps_in_each_unit(units, expected):
    assert optim.total_steps(STREAM, **units) == expected


@pytest.mark.parametrize(
    "units", [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"epochs": float("nan")}]
)
def test_total_steps_refuses_what_is_no_length(units):
    with pytest.raises(ConfigError, match="total_steps"):
        optim.total_steps(STREAM, **units)


def test_warmup_cosine_follows_its_formula():
    schedule = optim.warmup_cosine(peak=2.0, total_steps=20, warmup_steps=4)
    counts = np.arange(20)
    cosine = 0.1 + 0.9 * (1 + np.cos(np.pi * (counts - 4) / 16)) / 2
    expected = 2.0 * np.where(counts < 4, (counts + 1) / 4, cosine)
    np.testing.assert_allclose([schedule(c) for c in counts], expected, rtol=1e-6)


@pytest.mark.parametrize("total", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("warmup", [None, 0, 1, 10, 20])
def test_rates_are_finite_and_positive_whatever_the_warmup(total, warmup):
    schedule = optim.warmup_cosine(peak=1.0, total_steps=total, warmup_steps=warmup)
    rates = np.asarray(schedule(jnp.arange(total)))
    assert np.isfinite(rates).all()
    assert (rates > 0).all()
    assert (rates <= 1.0 + 1e-6).all()


@pytest.mark.parametrize("total", [1, 2, 3, 10, 1000])
def test_stable_decay_rates_are_finite(total):
    schedule = optim.warmup_stable_decay(peak=1.0, total_steps=total)
    rates = np.asarray(schedule(jnp.arange(total)))
    assert np.isfinite(rates).all()
    assert (rates > 0).all()


def test_empty_run_is_refused():
    with pytest.raises(ConfigError, match="total_steps must be at least 1, got 0"):
        optim.warmup_cosine(peak=1.0, total_steps=0)


@pytest.fixture(scope="module")
def model():
    return Mamba2LM(
        vocab_size=256, d_model=32, n_layers=2, head_dim=16, rngs=nnx.Rngs(0)
    )


def names_of(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {optim.parameter_name(path): leaf for path, leaf in flat}


def test_mask_spares_scan_norm_bias_and_conv_by_name_and_count(model):
    params = nnx.state(model, nnx.Param)
    spared = optim.undecayed_names(params)
    # A layer: A_log, D, dt_bias, conv weight and bias, two norm scales; one final norm.
    assert len(spared) == 2 * 7 + 1
    decayed = set(names_of(params)) - set(spared)
    # Embedding, and in- and out-projection of each layer.
    assert len(decayed) == 1 + 2 * 2
    for name in spared:
        assert any(word in name for word in ("A_log", "D", "dt_bias", "norm", "conv"))


@pytest.mark.parametrize("make", [optim.adamw, optim.muon])
def test_zero_gradients_shrink_only_the_matrices(model, make):
    """Weight decay alone, 100 steps: matrices shrink by (1 - lr * decay) ** 100."""
    rate, decay = 1e-2, 0.1
    tx = make(schedule=optax.constant_schedule(rate), weight_decay=decay)
    params = nnx.as_pure(nnx.state(model, nnx.Param))
    state, zeros = tx.init(params), jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def hundred(params, state):
        def body(_, carry):
            params, state = carry
            updates, state = tx.update(zeros, state, params)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, 100, body, (params, state))[0]

    before, after = names_of(params), names_of(hundred(params, state))
    mask = names_of(optim.decay_mask(params))
    for name, decayed in mask.items():
        factor = (1 - rate * decay) ** 100 if decayed else 1.0
        np.testing.assert_allclose(after[name], before[name] * factor, rtol=1e-4)


def test_clip_norm_must_be_positive():
    with pytest.raises(ConfigError, match=r"clip_norm .* got 0"):
        optim.adamw(schedule=optax.constant_schedule(1.0), clip_norm=0)
