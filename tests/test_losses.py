"""The loss in pieces of the sequence against the loss of whole logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx

from roxxel.models import head_loss, losses
from roxxel.models.transformer import TransformerLM

VOCAB = 40


def make(**options):
    sizes = {"vocab_size": VOCAB, "d_model": 16, "n_layers": 1, "n_heads": 2}
    return TransformerLM(**sizes | options, rngs=nnx.Rngs(0))


def tokens_and_mask():
    tokens = jax.random.randint(jax.random.key(1), (3, 12), 0, VOCAB)
    mask = jax.random.bernoulli(jax.random.key(2), 0.6, tokens.shape)
    return tokens, mask.astype(jnp.float32)


def value_and_grads(model, *args):
    loss_fn = nnx.value_and_grad(losses.next_token_loss, has_aux=True)
    (mean, weight), grads = quick.jit(loss_fn)(model, *args)
    return mean, weight, jax.tree.leaves(grads)


@pytest.fixture
def in_pieces(monkeypatch):
    """Takes pieces of 4 steps: 11 steps are two of them and a shorter one."""
    monkeypatch.setattr(head_loss, "_PIECE_LOGITS", 4 * 3 * VOCAB)
    monkeypatch.setattr(head_loss, "_MIN_STEPS", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"tie_embeddings": True},
        {"pad_vocab_to": 128},
        {"compute_dtype": jnp.bfloat16},
    ],
)
def test_pieces_give_the_loss_and_gradients_of_whole_logits(options, request):
    model, (tokens, mask) = make(**options), tokens_and_mask()
    assert head_loss.piece_size(model, tokens[:, 1:]) is None
    segments = (jnp.arange(12) // 5)[None].repeat(3, 0)
    cases = [(tokens,), (tokens, mask, segments)]
    whole = [value_and_grads(model, *args) for args in cases]
    request.getfixturevalue("in_pieces")
    assert head_loss.piece_size(model, tokens[:, 1:]) == 4
    tolerance = 2e-2 if "compute_dtype" in options else 1e-5
    for args, (mean, weight, grads) in zip(cases, whole, strict=True):
        got_mean, got_weight, got = value_and_grads(model, *args)
        np.testing.assert_allclose(got_mean, mean, rtol=1e-5)
        assert got_weight == weight
        for one, other in zip(got, grads, strict=True):
            scale = float(jnp.abs(other).max())
            np.testing.assert_allclose(one, other, atol=tolerance * scale)


@pytest.mark.usefixtures("in_pieces")
def test_pieces_keep_the_rules_of_the_loss():
    model, (tokens, mask) = make(pad_vocab_to=64), tokens_and_mask()
    loss_fn = quick.jit(losses.next_token_loss)
    mean, weight = loss_fn(model, tokens, jnp.zeros_like(mask))
    assert (float(mean), float(weight)) == (0.0, 0.0)
    # An id that only the padding of the vocabulary has is none.
    wrong = tokens.at[1, 7].set(VOCAB)
    ones = jnp.ones_like(mask)
    assert np.isnan(loss_fn(model, wrong, ones)[0])
    assert np.isfinite(loss_fn(model, wrong, ones.at[1, 7].set(0.0))[0])


def test_whole_logits_of_a_large_vocabulary_never_exist():
    model = nnx.eval_shape(lambda: make(vocab_size=2**17))
    tokens = jax.ShapeDtypeStruct((2, 2049), jnp.int32)
    graphdef, state = nnx.split(model)
    loss_fn = nnx.value_and_grad(lambda m, t: losses.next_token_loss(m, t)[0])
    run = jax.jit(lambda s, t: loss_fn(nnx.merge(graphdef, s), t))
    text = run.lower(state, tokens).as_text()
    assert "2x128x131072x" in text  # a piece
    assert "2x2048x131072x" not in text


def test_padding_of_the_vocabulary_changes_nothing():
    tokens, _ = tokens_and_mask()
    plain, padded = make(), make(pad_vocab_to=128)
    assert padded.embedding.shape == (128, 16)
    results = [quick.jit(lambda m: m(tokens)[0])(m) for m in (plain, padded)]
    assert results[1].shape == (3, 12, VOCAB)
    np.testing.assert_allclose(*results, atol=1e-6)
    means = [
        float(quick.jit(losses.next_token_loss)(m, tokens)[0]) for m in (plain, padded)
    ]
    np.testing.assert_allclose(*means, rtol=1e-6)
