"""Recurrent sampling against the full forward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from roxxel.generate import generate
from roxxel.models.hybrid import HybridLM
from roxxel.models.ssm import Mamba2LM
from roxxel.models.transformer import TransformerLM

SIZES = {"vocab_size": 32, "d_model": 16, "n_layers": 2}
SSM = {"state_dim": 8}
MODELS = {
    "mamba2": (Mamba2LM, SSM | {"head_dim": 8}),
    "transformer": (TransformerLM, {"n_heads": 2}),
    # The continuation goes round the cache more than once.
    "window": (TransformerLM, {"n_heads": 2, "window": 5}),
    "hybrid": (HybridLM, SSM | {"n_heads": 2, "n_kv_heads": 1, "ssm_head_dim": 8}),
}


def make(name):
    model_class, options = MODELS[name]
    # An untrained tied head only repeats the last token.
    model = model_class(**SIZES, **options, tie_embeddings=False, rngs=nnx.Rngs(0))
    model.embedding[...] = jax.random.normal(jax.random.key(3), (32, 16))
    return model


@pytest.fixture(scope="module")
def model():
    return make("mamba2")


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("mamba2", 1),
        ("mamba2", 70),  # more than a chunk
        ("transformer", 7),
        ("window", 9),  # the prompt alone exceeds the window
        ("hybrid", 7),
    ],
)
def test_greedy_equals_argmax_of_the_full_forward(name, length):
    model = make(name)
    prompt = jax.random.randint(jax.random.key(length), (3, length), 0, 32)
    tokens = generate(model, prompt, 12, rng=jax.random.key(0), temperature=0)
    assert tokens.shape == (3, 12)
    row = jnp.concatenate([prompt, tokens], axis=1)
    logits, _ = nnx.jit(lambda m, t: m(t))(model, row)
    expected = jnp.argmax(logits[:, length - 1 : -1], axis=-1)
    np.testing.assert_array_equal(tokens, expected)
    assert len(np.unique(tokens)) > 3


def test_samples_depend_on_the_key_alone(model):
    prompt = jnp.ones((2, 3), jnp.int32)
    draws = [
        np.asarray(generate(model, prompt, 40, rng=jax.random.key(seed)))
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any()
    assert (draws[0][0] != draws[0][1]).any()  # rows draw for themselves


def test_top_k_of_one_is_greedy(model):
    prompt = jnp.arange(5)[None]
    greedy = generate(model, prompt, 10, rng=jax.random.key(0), temperature=0)
    top = generate(model, prompt, 10, rng=jax.random.key(5), top_k=1)
    np.testing.assert_array_equal(greedy, top)


def test_separator_starts_an_empty_document_while_generating():
    model = Mamba2LM(
        vocab_size=32,
        d_model=16,
        n_layers=1,
        head_dim=8,
        state_dim=8,
        separator_id=0,
        rngs=nnx.Rngs(0),
    )
    rng = jax.random.key(0)
    after_a, after_b = (
        generate(model, jnp.asarray([[*before, 0]]), 8, rng=rng)
        for before in ([5, 9, 7], [1, 1])
    )
    np.testing.assert_array_equal(after_a, after_b)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_tokens": 0}, "num_tokens must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must not be negative, got -1.0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k must be at least 1 or None, got 0"),
        ({"prompt_BL": jnp.zeros((1, 0), jnp.int32)}, r"got shape \(1, 0\)"),
    ],
)
def test_arguments_out_of_range_are_refused(model, change, words):
    options = {"prompt_BL": jnp.zeros((1, 2), jnp.int32), "num_tokens": 3} | change
    with pytest.raises(ValueError, match=words):
        generate(model, rng=jax.random.key(0), **options)
