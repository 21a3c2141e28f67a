"""Run lengths, schedules and decay masks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from roxxel import optim
from roxxel.errors import ConfigError
from roxxel.models.ssm import Mamba2LM


def test_warmup_cosine_follows_its_formula():
    schedule = optim.warmup_cosine(peak=2.0, total_steps=20, warmup=4)
    counts = np.arange(20)
    cosine = 0.1 + 0.9 * (1 + np.cos(np.pi * (counts - 4) / 16)) / 2
    expected = 2.0 * np.where(counts < 4, (counts + 1) / 4, cosine)
    np.testing.assert_allclose([schedule(c) for c in counts], expected, rtol=1e-6)


@pytest.mark.parametrize("total", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("warmup", [0.05, 0, 1, 10, 20])
@pytest.mark.parametrize(
    "make", [optim.warmup_cosine, optim.warmup_linear, optim.warmup_rsqrt]
)
def test_rates_are_finite_and_positive_whatever_the_warmup(make, total, warmup):
    schedule = make(peak=1.0, total_steps=total, warmup=warmup)
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


@pytest.mark.parametrize("make", [optim.adamw, optim.muon, optim.lion, optim.sgd])
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


def test_schedules_say_how_they_are_laid_out():
    schedule = optim.warmup_stable_decay(
        peak=2.0, total_steps=100, warmup=10, decay="20%"
    )
    layout = (schedule.total_steps, schedule.warmup_steps, schedule.decay_start)
    assert layout == (100, 10, 80)
    rates = [float(schedule(count)) for count in (0, 9, 10, 79, 80, 90, 99)]
    np.testing.assert_allclose(rates, [0.2, 2, 2, 2, 2, 1, 0.1], rtol=1e-6)


def test_a_longer_run_has_the_same_rates_up_to_the_decay():
    short = optim.warmup_stable_decay(peak=1.0, total_steps=100, warmup=10)
    long = optim.warmup_stable_decay(peak=1.0, total_steps=300, warmup=10)
    same = jnp.arange(short.decay_start)
    np.testing.assert_array_equal(short(same), long(same))


def test_linear_and_inverse_root_and_constant():
    linear = optim.warmup_linear(peak=1.0, total_steps=10, warmup=0)
    np.testing.assert_allclose([linear(c) for c in (0, 5)], [1, 0.5], rtol=1e-6)
    rsqrt = optim.warmup_rsqrt(peak=1.0, total_steps=400, warmup=100)
    np.testing.assert_allclose([rsqrt(c) for c in (99, 100, 400)], [1, 1, 0.5])
    flat = optim.constant(peak=3.0, total_steps=10)
    assert [float(flat(c)) for c in (0, 9)] == [3, 3]


def test_rates_by_name_scale_updates_and_decay(model):
    params = nnx.as_pure(nnx.state(model, nnx.Param))
    grads = jax.tree.map(jnp.ones_like, params)

    def updates(scales):
        tx = optim.adamw(
            schedule=optax.constant_schedule(1e-2), rate_scales=scales, clip_norm=None
        )
        return names_of(tx.update(grads, tx.init(params), params)[0])

    plain, scaled = updates(None), updates({"embed*": 0.5, "*.A_log": 0.0})
    for name, update in scaled.items():
        factor = 0.5 if name.startswith("embed") else 0.0 if "A_log" in name else 1.0
        np.testing.assert_allclose(update, factor * plain[name], rtol=1e-6)


def test_a_pattern_that_matches_nothing_is_refused(model):
    tx = optim.sgd(schedule=0.1, rate_scales={"emebd*": 0.5})
    with pytest.raises(ConfigError, match=r"'emebd\*' matches no parameter; there are"):
        tx.init(nnx.as_pure(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("make", [optim.adafactor, optim.lion, optim.sgd, optim.muon])
def test_every_optimizer_lowers_a_quadratic(make):
    params = {"layers": {"w": jnp.full((8, 8), 2.0)}, "norm": jnp.full(8, 2.0)}
    tx = make(schedule=optax.constant_schedule(0.05), weight_decay=0.0)
    state = tx.init(params)

    def loss(p):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))

    before = loss(params)
    for _ in range(20):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    assert loss(params) < 0.9 * before


# -- against the papers' formulas on a fixed problem -----------------------------------


DECAY, STEPS = 0.1, 4
RATES = [0.1 / (1 + t) for t in range(STEPS)]


def _clipped(grads):
    """Gradients of a step, cut to a global norm of 1."""
    norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
    return {name: g / max(1.0, norm) for name, g in grads.items()}


def _adamw(p, g, state, rate, t, decay):
    m, v = state.setdefault("m", 0 * g), state.setdefault("v", 0 * g)
    state["m"], state["v"] = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
    mean, square = state["m"] / (1 - 0.9**t), state["v"] / (1 - 0.95**t)
    return p - rate * (mean / (np.sqrt(square) + 1e-8) + decay * p)


def _lion(p, g, state, rate, t, decay):
    m = state.setdefault("m", 0 * g)
    state["m"] = 0.99 * m + 0.01 * g
    return p - rate * (np.sign(0.9 * m + 0.1 * g) + decay * p)


def _sgd(p, g, state, rate, t, decay):
    state["m"] = 0.9 * state.setdefault("m", 0 * g) + g
    return p - rate * (state["m"] + decay * p)


def _adafactor(p, g, state, rate, t, decay):
    """Algorithms 4 and 5 of arXiv:1804.04235; the decay is not times the rate."""
    beta, square = 1 - t**-0.8, g**2 + 1e-30
    if p.ndim == 2:
        for name, axis in (("rows", 1), ("columns", 0)):
            old = state.setdefault(name, 0.0)
            state[name] = beta * old + (1 - beta) * square.mean(axis)
        rows, columns = state["rows"], state["columns"]
        v = np.outer(rows, columns) / rows.mean()
    else:
        v = state["v"] = beta * state.setdefault("v", 0.0) + (1 - beta) * square
    update = g / np.sqrt(v)
    update /= max(1.0, np.sqrt(np.mean(update**2)))
    scale = max(1e-3, np.sqrt(np.mean(p**2)))
    return p - rate * scale * update - decay * p


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (optim.adamw, _adamw),
        (optim.lion, _lion),
        (optim.sgd, _sgd),
        (optim.adafactor, _adafactor),
    ],
)
def test_updates_follow_the_papers(make, formula):
    rng = np.random.default_rng(0)
    # 128 and more: below, Adafactor does not factor.
    params = {"w": rng.normal(size=(128, 130)), "norm": rng.normal(size=130)}
    grads = [
        {name: rng.normal(size=p.shape) for name, p in params.items()}
        for _ in range(STEPS)
    ]
    tx = make(
        schedule=lambda count: 0.1 / (1 + count), weight_decay=DECAY, clip_norm=1.0
    )
    ours = jax.tree.map(jnp.float32, params)
    state, states = tx.init(ours), {name: {} for name in params}
    update = jax.jit(tx.update)
    for t, rate in enumerate(RATES, 1):
        updates, state = update(jax.tree.map(jnp.float32, grads[t - 1]), state, ours)
        ours = optax.apply_updates(ours, updates)
        for name, g in _clipped(grads[t - 1]).items():
            decay = DECAY if name == "w" else 0.0
            params[name] = formula(params[name], g, states[name], rate, t, decay)
    for name, expected in params.items():
        np.testing.assert_allclose(ours[name], expected, rtol=2e-4, atol=2e-5)


def test_muon_orthogonalises_matrices_and_leaves_the_rest_to_adamw():
    """K. Jordan et al., 2024: five Newton-Schulz steps of the gradient's direction."""
    rng = np.random.default_rng(0)
    shapes = {"w": (6, 4), "embedding": (5, 4), "head": (4, 5), "norm": (4,)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    grads = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    tx = optim.muon(
        schedule=lambda count: 0.1, adam_scale=2.0, weight_decay=DECAY, clip_norm=1.0
    )
    ours = jax.tree.map(jnp.float32, params)
    given = jax.tree.map(jnp.float32, grads)
    updates, _ = jax.jit(tx.update)(given, tx.init(ours), ours)
    cut = _clipped(grads)
    x = cut["w"].T / np.linalg.norm(cut["w"])
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    expected = -0.1 * (0.2 * np.sqrt(6) * x.T + DECAY * params["w"])
    np.testing.assert_allclose(updates["w"], expected, rtol=1e-3, atol=1e-5)
    for name in ("embedding", "head", "norm"):
        decay = 0.0 if name == "norm" else DECAY
        new = _adamw(params[name], cut[name], {}, 0.2, 1, decay)
        np.testing.assert_allclose(
            updates[name], new - params[name], rtol=1e-3, atol=1e-5
        )
