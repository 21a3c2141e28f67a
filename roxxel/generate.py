"""Sampling with the recurrent form: a token costs the same at every position.

An attention model's cache holds prompt and continuation, or its window.

Legend: B batch, L prompt length, V vocabulary.
"""

import functools
from typing import Any

from roxxel import extras

try:
    import jax
    import jax.numpy as jnp
    from flax import nnx
except ImportError as err:
    raise extras.missing("roxxel.generate", "checkpoint", err) from err


def generate(
    model: Any,
    prompt_BL: jax.Array,
    num_tokens: int,
    *,
    rng: jax.Array,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> jax.Array:
    """Continues each prompt by `num_tokens` tokens, `[B, num_tokens]` int32.

    The prompt is read by the model's parallel form; then one compiled loop takes one
    recurrent step a token.

    Args:
      model: a `models.language_model.LanguageModel`.
      prompt_BL: int token ids, at least one a row.
      num_tokens: how many to generate.
      rng: a jax random key.
      temperature: divides the logits; 0 takes the most likely token.
      top_k: sample among the k most likely tokens only; None: among all.

    Raises:
      ValueError: an argument is out of its range; names it.
    """
    if prompt_BL.ndim != 2 or prompt_BL.shape[1] == 0:
        raise ValueError(
            f"prompt must be [batch, length >= 1], got shape {prompt_BL.shape}."
        )
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1, got {num_tokens}.")
    if not temperature >= 0:
        raise ValueError(f"temperature must not be negative, got {temperature}.")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1 or None, got {top_k}.")
    graphdef, state = nnx.split(model)
    return _generate(
        state,
        prompt_BL.astype(jnp.int32),
        rng,
        jnp.float32(temperature),
        graphdef=graphdef,
        num_tokens=num_tokens,
        greedy=temperature == 0,
        top_k=top_k,
    )


@functools.partial(
    jax.jit, static_argnames=("graphdef", "num_tokens", "greedy", "top_k")
)
def _generate(
    state, prompt_BL, rng, temperature, *, graphdef, num_tokens, greedy, top_k
):
    model = nnx.merge(graphdef, state)
    model.eval()

    def choose(logits_BV, key):
        if greedy:
            return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
        if top_k is not None and top_k < logits_BV.shape[-1]:
            least = jax.lax.top_k(logits_BV, top_k)[0][:, -1:]
            logits_BV = jnp.where(logits_BV < least, -jnp.inf, logits_BV)
        drawn = jax.random.categorical(key, logits_BV / temperature, axis=-1)
        return drawn.astype(jnp.int32)

    def step(carry, key):
        token_B, recurrent = carry
        logits_BV, recurrent = model.step(token_B, recurrent)
        token_B = choose(logits_BV, key)
        return (token_B, recurrent), token_B

    batch, length = prompt_BL.shape
    empty = model.init_state(batch, max_length=length + num_tokens)
    hidden_BLD, recurrent = model.hidden(prompt_BL, state=empty)
    keys = jax.random.split(rng, num_tokens)
    first_B = choose(model.logits(hidden_BLD[:, -1:])[:, 0], keys[0])
    _, rest_SB = jax.lax.scan(step, (first_B, recurrent), keys[1:])
    return jnp.concatenate([first_B[:, None], rest_SB.T], axis=1)
