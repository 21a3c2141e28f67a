"""The hybrid model, and what all models share: layers in a loop, operations, sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx

from roxxel.models import hybrid, losses, mixer
from roxxel.models.attention import KVCache
from roxxel.models.language_model import num_params
from roxxel.models.ssm import Mamba2LM
from roxxel.models.transformer import TransformerLM

SEPARATOR = 31
SSM = {"ssm_head_dim": 8, "state_dim": 8, "chunk_size": 8}


def make(**options):
    sizes = {"vocab_size": 32, "d_model": 16, "n_layers": 2, "n_heads": 2}
    options = sizes | SSM | {"tie_embeddings": False} | options
    return hybrid.HybridLM(**options, rngs=nnx.Rngs(0))


@quick.jit
def forward(model, tokens, state=None):
    return model(tokens, state=state)


def random_tokens(*shape):
    return jax.random.randint(jax.random.key(1), shape, 0, 31)


@pytest.mark.parametrize(
    ("pattern", "n_layers", "kinds"),
    [
        ("MMMA", 8, "MMMAMMMA"),
        ("MMMA", 6, "MAMMMA"),
        ("MMMA", 2, "MA"),
        ("A", 3, "AAA"),
    ],
)
def test_the_pattern_ends_where_the_stack_ends(pattern, n_layers, kinds):
    assert hybrid.block_kinds(pattern, n_layers) == kinds


def test_a_pattern_of_other_letters_is_refused():
    with pytest.raises(ValueError, match=r"pattern must be letters M .* got 'MX'"):
        make(pattern="MX")


def test_states_of_both_kinds_carry_a_sequence():
    model, tokens = make(separator_id=SEPARATOR, window=4), random_tokens(2, 12)
    tokens = tokens.at[0, 4].set(SEPARATOR).at[1, 7].set(SEPARATOR)
    whole, _ = forward(model, tokens)
    state, logits = model.init_state(2), []
    for piece in np.split(np.arange(12), [5, 6, 7, 8, 9]):
        out, state = forward(model, tokens[:, piece], state)
        logits.append(out)
    np.testing.assert_allclose(jnp.concatenate(logits, 1), whole, atol=1e-5)
    kinds = [type(layer) for layer in state.layers]
    assert kinds == [mixer.MixerState, KVCache]


def loss_and_grads(model, tokens):
    loss_fn = nnx.value_and_grad(lambda m: losses.next_token_loss(m, tokens)[0])
    return quick.jit(loss_fn)(model)


@pytest.mark.parametrize(
    "options",
    [
        # One block before the loop, then two groups.
        {"scan_layers": True, "remat": "full"},
        pytest.param({"scan_layers": True}, marks=pytest.mark.slow),
        pytest.param({"remat": "dots"}, marks=pytest.mark.slow),
    ],
)
def test_loop_and_remat_change_no_result(options):
    tokens = random_tokens(2, 12)
    plain, changed = (
        loss_and_grads(make(n_layers=5, pattern="MA", **more), tokens)
        for more in ({}, options)
    )
    for one, other in zip(*map(jax.tree.leaves, (plain, changed)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_loop_keeps_names_values_and_states():
    tokens = random_tokens(2, 6)
    one, other = (make(n_layers=4, pattern="MA", scan_layers=s) for s in (False, True))
    jax.tree.map(np.testing.assert_array_equal, nnx.state(one), nnx.state(other))
    states = [forward(m, tokens, m.init_state(2, 6))[1] for m in (one, other)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *states)


def temporary_bytes(family, remat, **options):
    model = abstract(family, d_model=64, remat=remat, **options)
    graphdef, state = nnx.split(model)
    loss_fn = nnx.value_and_grad(lambda m, t: losses.next_token_loss(m, t)[0])
    run = jax.jit(
        lambda s, t: loss_fn(nnx.merge(graphdef, s), t), compiler_options=quick.OPTIONS
    )
    compiled = run.lower(state, jax.ShapeDtypeStruct((4, 129), jnp.int32)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


# Written out, XLA must not merge the second computation with the first.
WRITTEN_OUT, SCANNED = {"n_layers": 4}, {"n_layers": 8, "scan_layers": True}


def test_remat_saves_memory_of_layers_that_are_written_out():
    none, scan = (
        temporary_bytes("transformer", remat, **WRITTEN_OUT)
        for remat in ("none", "scan")
    )
    assert scan <= 0.5 * none


@pytest.mark.slow
@pytest.mark.parametrize("options", [WRITTEN_OUT | {"n_layers": 6}, SCANNED], ids=str)
@pytest.mark.parametrize("family", ["mamba2", "transformer"])
def test_every_policy_saves_memory(family, options):
    remats = ("none", "dots", "scan", "full")
    none, dots, scan, full = (
        temporary_bytes(family, remat, **options) for remat in remats
    )
    assert scan <= 0.5 * none
    assert full < dots < 0.9 * none


MODELS = {
    "mamba2": (Mamba2LM, {"head_dim": 64, "state_dim": 64}),
    "transformer": (TransformerLM, {"n_heads": 4, "n_kv_heads": 2}),
    "window": (TransformerLM, {"n_heads": 4, "window": 64}),
    "hybrid": (hybrid.HybridLM, {"n_heads": 4, "pattern": "MA"}),
}


def abstract(name, **options):
    model_class, more = MODELS[name]
    sizes = {"vocab_size": 512, "d_model": 256, "n_layers": 2} | more | options
    return nnx.eval_shape(lambda: model_class(**sizes, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_that_jax_counts(name):
    model, length = abstract(name), 256
    graphdef, state = nnx.split(model)
    run = jax.jit(lambda s, t: nnx.merge(graphdef, s)(t)[0])
    lowered = run.lower(state, jax.ShapeDtypeStruct((1, length), jnp.int32))
    counted = lowered.cost_analysis()["flops"] / length
    assert model.flops_per_token(length) / 3 == pytest.approx(counted, rel=0.15)


def test_operations_of_attention_count_the_causal_half():
    # 4 * heads * head width of each of the two layers, forward and backward.
    per_key = 3 * 2 * 4 * 256
    costs = {
        (name, length): abstract(name).flops_per_token(length)
        for name in ("transformer", "window")
        for length in (1, 64, 128)
    }
    full = costs["transformer", 128] - costs["transformer", 1]
    assert full == pytest.approx(per_key * ((128 + 1) / 2 - 1))
    keys = (sum(range(1, 65)) + 64 * 64) / 128
    window = costs["window", 128] - costs["window", 1]
    assert window == pytest.approx(per_key * (keys - 1))


def test_large_models_are_built_abstractly():
    before = len(jax.live_arrays())
    sizes = {"vocab_size": 50277, "d_model": 2048, "n_layers": 48, "pad_vocab_to": 128}
    model = abstract("mamba2", **sizes, state_dim=128)
    assert num_params(model) == 1_343_734_784
    sizes = {"vocab_size": 50432, "d_model": 6144, "n_layers": 40, "d_ff": 16384}
    model = abstract("transformer", **sizes, n_heads=48, n_kv_heads=None)
    assert num_params(model) == 18_739_599_360
    assert model.flops_per_token(2048) == pytest.approx(
        6.06 * num_params(model), rel=1e-2
    )
    assert len(jax.live_arrays()) == before


def test_bfloat16_keeps_float32_where_it_matters():
    tokens = random_tokens(2, 24)
    exact, _ = forward(make(), tokens)
    model = make(compute_dtype=jnp.bfloat16)
    rounded, state = forward(model, tokens, model.init_state(2, 24))
    assert rounded.dtype == jnp.float32
    assert (rounded != exact).any()
    scale = float(jnp.abs(exact).max())
    assert float(jnp.abs(rounded - exact).max()) < 2e-2 * scale
    params = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert {leaf.dtype for leaf in params} == {jnp.dtype(jnp.float32)}
    recurrent, cache = state.layers
    assert recurrent.ssm.dtype == jnp.float32
    assert cache.keys.dtype == jnp.bfloat16


def test_no_branch_is_left_for_other_devices():
    model = abstract("transformer", d_model=64, remat="scan", n_layers=2)
    graphdef, state = nnx.split(model)
    grad = nnx.grad(lambda m, t: losses.next_token_loss(m, t)[0])
    run = jax.jit(lambda s, t: nnx.state(grad(nnx.merge(graphdef, s), t)))
    traced = run.trace(state, jax.ShapeDtypeStruct((1, 65), jnp.int32))
    bits = {
        platform: "popcnt" in traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "tpu")
    }
    assert bits == {"cpu": True, "tpu": False}
