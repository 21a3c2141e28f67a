"""Recurrent sampling against the full forward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from roxxel.generate import generate
from roxxel.generation import decoding, sampling
from roxxel.models.hybrid import HybridLM
from roxxel.models.ssm import Mamba2LM
from roxxel.models.transformer import TransformerLM
from tests import quick
from tests.quick import compile_quickly  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_quickly")

SIZES = {"vocab_size": 32, "d_model": 16, "n_layers": 2}
SSM = {"state_dim": 8}
MODELS = {
    "mamba2": (Mamba2LM, SSM | {"head_dim": 8}),
    "transformer": (TransformerLM, {"n_heads": 2}),
    # The continuation goes round the cache more than once.
    "window": (TransformerLM, {"n_heads": 2, "window": 5}),
    "hybrid": (HybridLM, SSM | {"n_heads": 2, "n_kv_heads": 1, "ssm_head_dim": 8}),
}
SLOW = pytest.mark.slow
# What the hybrid model has both of.
ALONE = [pytest.param(name, marks=SLOW) for name in ("mamba2", "transformer")]


def make(name, **more):
    model_class, options = MODELS[name]
    # An untrained tied head only repeats the last token.
    options = SIZES | options | more
    model = model_class(**options, tie_embeddings=False, rngs=nnx.Rngs(0))
    model.embedding[...] = jax.random.normal(jax.random.key(3), (32, 16))
    return model


@pytest.fixture(scope="module")
def model():
    return make("mamba2", n_layers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("hybrid", 1),
        ("mamba2", 70),  # more than a chunk
        ("transformer", 7),
        ("window", 9),  # the prompt alone exceeds the window
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
    prompt = jnp.arange(10).reshape(2, 5)
    greedy = generate(model, prompt, 10, rng=jax.random.key(0), temperature=0)
    top = generate(model, prompt, 10, rng=jax.random.key(5), top_k=1)
    np.testing.assert_array_equal(greedy, top)


@pytest.mark.parametrize("name", ["hybrid", "window", *ALONE])
def test_rows_of_any_length_are_as_by_themselves(name, monkeypatch):
    # Prompts in several pieces; a chunk after which caches grow; one past the window.
    monkeypatch.setattr(decoding, "PIECE", 16)
    monkeypatch.setattr(decoding, "CHUNK", 8)
    decoding._programs.cache_clear()
    model = make(name)
    lengths = [1, 16, 17, 37]
    prompts = [
        np.asarray(jax.random.randint(jax.random.key(n), (n,), 1, 32)) for n in lengths
    ]
    tokens = generate(model, prompts, 40, rng=jax.random.key(0), temperature=0)
    forward = quick.jit(lambda m, t: m(t)[0])
    width = max(lengths) + 40
    for prompt, row in zip(prompts, np.asarray(tokens), strict=True):
        whole = np.concatenate([prompt, row])
        padded = np.pad(whole, (0, width - len(whole)))  # what follows is not seen
        logits = forward(model, padded[None])[0]
        expected = jnp.argmax(logits[len(prompt) - 1 : len(whole) - 1], axis=-1)
        np.testing.assert_array_equal(row, expected)
    decoding._programs.cache_clear()


def test_documents_in_prompts_of_different_lengths():
    model = make("mamba2", n_layers=1, separator_id=0)
    alone = [3, 4, 5]
    prompts = [[9, 0, *alone], [7, 8, 6, 2, 1, 0, *alone], alone]
    prompts += [[5, 9, 7, 0], [1, 1, 0]]  # the separator comes last
    tokens = generate(model, prompts, 6, rng=jax.random.key(0), temperature=0)
    np.testing.assert_array_equal(tokens[0], tokens[2])
    np.testing.assert_array_equal(tokens[1], tokens[2])
    # It belongs to the document that it ends: the next token begins one by itself.
    rng, rest = jax.random.key(0), np.asarray(tokens)[:, 1:]
    again = generate(model, np.asarray(tokens)[:, :1], 6, rng=rng, temperature=0)
    np.testing.assert_array_equal(again[3:, :5], rest[3:])
    assert (again[2, :5] != rest[2]).any()


# Two likely tokens (0, 1), one half as likely (2), and a tail.
LOGITS = np.log(np.array([0.35, 0.35, 0.2, 0.06, 0.04], np.float32))


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.71}, {0, 1, 2}),  # the token that crosses the border counts
        ({"top_p": 1e-6}, {0, 1}),  # of equals, all
        ({"min_p": 0.5}, {0, 1, 2}),
        ({"min_p": 1.0}, {0, 1}),
        ({"top_k": 3, "min_p": 0.6}, {0, 1}),
        ({"temperature": 1e-3}, {0, 1}),
        ({"temperature": 0.0}, {0}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"temperature": 1e300}, {0, 1, 2, 3, 4}),  # more than a float32 holds
    ],
)
def test_filters_leave_the_tokens_they_name(options, possible):
    rows = [sampling.Sampling(**options, seed=seed) for seed in range(200)]
    knobs = sampling.knobs(rows, 5)
    logits = np.broadcast_to(LOGITS, (200, 5))
    choose = jax.jit(sampling.choose, static_argnames="kinds")
    drawn_B, kinds = np.zeros(200, np.int32), sampling.Kinds.of(rows)
    drawn = choose(logits, knobs, drawn_B, None, kinds=kinds)
    assert set(np.asarray(drawn).tolist()) == possible


def test_repetition_penalty_lowers_what_was_seen(model):
    rows = [sampling.Sampling(temperature=0, repetition_penalty=p) for p in (1.0, 3.0)]
    knobs = sampling.knobs(rows, 3)
    logits = np.array([[2.0, 1.0, -1.0]] * 2, np.float32)
    seen = np.array([[True, False, True]] * 2)
    kinds = sampling.Kinds.of(rows)
    chosen = sampling.choose(logits, knobs, np.zeros(2, np.int32), seen, kinds)
    np.testing.assert_array_equal(chosen, [0, 1])
    varies = generate(
        model,
        [[5, 5, 5]],
        12,
        rng=jax.random.key(0),
        temperature=0,
        repetition_penalty=1e300,  # more than a float32 holds
    )
    assert len(np.unique(varies)) == 12


def test_a_row_draws_the_same_whatever_the_others_are(model):
    rows = [sampling.Sampling(seed=7), sampling.Sampling(seed=8, top_p=0.9)]
    decoder = decoding.Decoder(model)

    def drawn(rows, prompts):
        knobs = sampling.knobs(rows, 32)
        prompts = [np.array(prompt) for prompt in prompts]
        kinds = sampling.Kinds.of(rows)
        parts = decoder.continued(prompts, knobs, kinds, 20, pace_secs=0.01)
        return np.concatenate([part for _, part in parts]).T

    alone = drawn(rows[:1], [[1, 2]])
    both = drawn(rows[::-1], [[3] * 9, [1, 2]])
    np.testing.assert_array_equal(both[1], alone[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_tokens": 0}, "num_tokens must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be 0 or more, got -1.0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k must be at least 1, or none for all, got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"min_p": 2.0}, "min_p must be from 0 to 1, got 2.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0, got 0.0"),
        ({"prompt_BL": [[1], []]}, "prompt 1 must be"),
        ({"prompt_BL": jnp.zeros((1, 0), jnp.int32)}, r"got shape \(1, 0\)"),
    ],
)
def test_arguments_out_of_range_are_refused(model, change, words):
    options = {"prompt_BL": jnp.zeros((1, 2), jnp.int32), "num_tokens": 3} | change
    with pytest.raises(ValueError, match=words):
        generate(model, rng=jax.random.key(0), **options)
