"""The Transformer against its golden: values, gradients, documents, caches."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx
from test_ssm import assert_close, assert_leaves_close, jit_value_and_grad, load

from roxxel.models import losses
from roxxel.models.transformer import TransformerLM

GOLDENS = pathlib.Path(__file__).parent / "goldens"
SEPARATOR = 31


@functools.cache
def golden():
    with np.load(GOLDENS / "llama_lm.npz") as file:
        return {key: file[key] for key in file.files}


def golden_leaves(weights, prefix):
    """The golden's tensors as `{path in our model: array in our layout}`."""
    leaves = {
        ("embedding",): weights[f"{prefix}model.embed_tokens.weight"],
        ("norm", "scale"): weights[f"{prefix}model.norm.weight"],
        ("head",): weights[f"{prefix}lm_head.weight"],
    }
    for layer in range(2):
        former, path = f"{prefix}model.layers.{layer}.", ("blocks", layer)
        norms = (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm"))
        for ours, theirs in norms:
            leaves[(*path, ours, "scale")] = weights[f"{former}{theirs}.weight"]
        for part, theirs, names in (
            ("attention", "self_attn", "qkvo"),
            ("mlp", "mlp", ("gate", "up", "down")),
        ):
            for name in names:
                weight = weights[f"{former}{theirs}.{name}_proj.weight"]
                leaves[(*path, part, f"{name}_proj", "weight")] = weight.T
    return leaves


def golden_lm(**options):
    config = json.loads(str(golden()["config_json"]))
    model = TransformerLM(
        vocab_size=config["vocab"],
        d_model=config["d_model"],
        n_layers=config["layers"],
        n_heads=config["heads"],
        n_kv_heads=config["kv_heads"],
        d_ff=config["ff"],
        rope_theta=config["rope_theta"],
        norm_eps=config["eps"],
        **options,
        rngs=nnx.Rngs(0),
    )
    return load(model, golden_leaves(golden(), "w."))


@quick.jit
def forward(model, tokens, segment_ids=None, state=None):
    return model(tokens, segment_ids_BL=segment_ids, state=state)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"remat": "full"}, marks=pytest.mark.slow),
        pytest.param({"remat": "dots", "scan_layers": True}, marks=pytest.mark.slow),
    ],
)
def test_language_model_matches_the_golden(options):
    data, model = golden(), golden_lm(**options)
    assert_close(forward(model, data["tokens"])[0], data["ref_logits"])
    loss, grads = jit_value_and_grad(
        model, lambda m: losses.next_token_loss(m, data["tokens"])[0]
    )
    assert_close(loss, data["ref_loss"])
    assert_leaves_close(grads, golden_leaves(data, "ref_grad."))


def test_packed_documents_and_loss_mask_match_the_golden():
    data, model = golden(), golden_lm()
    logits, _ = forward(model, data["tokens"], data["packed_segment_ids"])
    assert_close(logits, data["ref_packed_logits"])
    loss_fn = quick.jit(losses.next_token_loss)
    mean, _ = loss_fn(model, data["tokens"], data["loss_mask"])
    assert_close(mean, data["ref_loss_masked"])


def make(**options):
    sizes = {"vocab_size": 32, "d_model": 16, "n_layers": 1, "n_heads": 2}
    return TransformerLM(**sizes | options, rngs=nnx.Rngs(0))


def by_steps(model, tokens, cuts, max_length):
    """Logits of `tokens` read in pieces through the caches."""
    state, logits = model.init_state(tokens.shape[0], max_length), []
    for piece in np.split(np.arange(tokens.shape[1]), cuts):
        out, state = forward(model, tokens[:, piece], None, state)
        logits.append(out)
    return jnp.concatenate(logits, axis=1), state


@pytest.mark.parametrize(
    "options",
    [
        {"n_kv_heads": 1, "qk_norm": True, "bias": True, "separator_id": SEPARATOR},
        # Pieces shorter and longer than the window; the cache goes round.
        {"window": 3, "n_layers": 2, "separator_id": SEPARATOR},
    ],
)
def test_pieces_and_steps_through_the_cache_equal_one_call(options):
    model = make(**options)
    tokens = jax.random.randint(jax.random.key(1), (2, 13), 0, 31)
    tokens = tokens.at[0, 4].set(SEPARATOR).at[1, 7].set(SEPARATOR)
    whole, state = forward(model, tokens)
    assert state.layers == (None,) * len(model.blocks)
    got, state = by_steps(model, tokens, [5, 6, 7, 8, 9, 10], 13)
    np.testing.assert_allclose(got, whole, atol=1e-5)
    slots = options.get("window", 13)
    assert state.layers[0].keys.shape == (
        2,
        slots,
        model.blocks[0].attention.n_kv_heads,
        8,
    )


def test_a_window_hides_what_is_older():
    model = make(window=3)
    tokens = jax.random.randint(jax.random.key(1), (1, 9), 0, 31)
    changed = tokens.at[0, 2].set((tokens[0, 2] + 1) % 31)
    one, other = (np.asarray(forward(model, t)[0]) for t in (tokens, changed))
    differs = (one != other).any(axis=-1)[0]
    np.testing.assert_array_equal(differs, np.isin(np.arange(9), (2, 3, 4)))


@pytest.mark.parametrize("given", [True, False])
def test_a_document_sees_nothing_of_the_one_before(given):
    model = make(separator_id=None if given else SEPARATOR)
    tokens = jax.random.randint(jax.random.key(2), (1, 12), 0, 31)
    tokens = tokens.at[0, 5].set(SEPARATOR)
    segments = (jnp.arange(12) > 5)[None].astype(jnp.int32) if given else None
    changed = tokens.at[0, 4].set((tokens[0, 4] + 1) % 31)
    one, other = (np.asarray(forward(model, t, segments)[0]) for t in (tokens, changed))
    np.testing.assert_array_equal(one[:, 6:], other[:, 6:])
    alone = forward(model, tokens[:, 6:])[0]
    np.testing.assert_allclose(one[:, 6:], alone, atol=1e-5)


def test_beyond_max_length_is_never_silent():
    model = make()
    tokens = jnp.ones((1, 4), jnp.int32)
    logits, _ = by_steps(model, tokens, [3], 3)
    assert np.isfinite(logits[:, :3]).all()
    assert np.isnan(logits[:, 3]).all()
    with pytest.raises(ValueError, match="init_state needs max_length"):
        model.init_state(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_heads": 3}, "d_model = 16 does not divide by n_heads = 3"),
        ({"n_kv_heads": 4}, "n_heads = 2 does not divide by n_kv_heads = 4"),
        ({"head_dim": 5}, "head_dim = 5 must be even"),
        ({"window": 0}, "window must be at least 1 or None, got 0"),
        ({"remat": "half"}, "remat must be one of 'none', 'full', 'dots', 'scan', got"),
        ({"n_layers": 0}, "n_layers must be at least 1, got 0"),
        ({"d_ff": 0}, "d_ff must be at least 1, got 0"),
    ],
)
def test_sizes_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_the_activation_is_a_value_of_the_graph():
    from roxxel.config import arguments, resolve

    words = ["--fdl_config=transformer_tiny", "--fdl.model.activation=gelu"]
    config = resolve.experiment(arguments.parse(words)).config
    assert config.model.activation is jax.nn.gelu
    tokens = jnp.arange(8)[None] % 7
    options = {"vocab_size": 7, "d_model": 16, "n_layers": 1, "n_heads": 2}
    silu, gelu, same = (
        TransformerLM(**options, **more, rngs=nnx.Rngs(0))(tokens)[0]
        for more in ({}, {"activation": jax.nn.gelu}, {"activation": jax.nn.silu})
    )
    assert not jnp.array_equal(silu, gelu)
    assert jnp.array_equal(silu, same)
