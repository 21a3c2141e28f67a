"""The smallest language model that the training tests need: a bigram table."""

import jax.numpy as jnp
from flax import nnx


class Bigram(nnx.Module):
    """Logits of the next token from this one alone: `[vocab, vocab]` parameters."""

    def __init__(self, vocab_size: int = 16, *, rngs: nnx.Rngs):
        self.table = nnx.Embed(vocab_size, vocab_size, rngs=rngs)

    def __call__(self, tokens, *, segment_ids_BL=None, state=None):
        return self.table(tokens).astype(jnp.float32), state
