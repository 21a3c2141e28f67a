"""Sampling with the recurrent form: a token costs the same at every position.

An attention model's cache holds prompt and continuation, or its window; it grows with
them.

Legend: B batch, L prompt length.
"""

from collections.abc import Sequence
from typing import Any

from roxxel import extras

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as err:
    raise extras.missing("roxxel.generate", "checkpoint", err) from err

from roxxel.errors import ConfigError
from roxxel.generation import decoding, sampling


def generate(
    model: Any,
    prompt_BL: jax.Array | Sequence[Any],
    num_tokens: int,
    *,
    rng: jax.Array,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    num_ids: int | None = None,
) -> jax.Array:
    """Continues each prompt by `num_tokens` tokens, `[B, num_tokens]` int32.

    Prompts are read by the model's parallel form; then compiled loops take one
    recurrent step a token. A row's tokens do not depend on the other rows.

    Args:
      model: a `models.language_model.LanguageModel`.
      prompt_BL: int token ids, at least one a row; or one array a row, of any lengths.
      num_tokens: how many to generate.
      rng: a jax random key.
      temperature: divides the logits; 0 takes the most likely token.
      top_k, top_p, min_p, repetition_penalty: see `generation.sampling.Sampling`.
      num_ids: tokens from here on are never chosen; None: all may be.

    Raises:
      ConfigError: an argument is out of its range; names it.
    """
    prompts = _prompts(prompt_BL)
    if num_tokens < 1:
        raise ConfigError(f"num_tokens must be at least 1, got {num_tokens}.")
    row = sampling.Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    rows = [row] * len(prompts)
    knobs = sampling.knobs(rows, model.vocab_size)
    keys = jax.random.split(rng, len(prompts))
    words = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys)
    decoder = decoding.Decoder(model, num_ids)
    parts = decoder.continued(
        prompts, knobs._replace(keys=words), sampling.Kinds.of(rows), num_tokens
    )
    return jnp.concatenate([part for _, part in parts]).T


def _prompts(given):
    if hasattr(given, "ndim"):
        if given.ndim != 2 or given.shape[1] == 0:
            raise ConfigError(
                f"prompt must be [batch, length >= 1], got shape {given.shape}."
            )
        given = np.asarray(given)
    prompts = [np.asarray(prompt) for prompt in given]
    for row, prompt in enumerate(prompts):
        if prompt.ndim != 1 or not prompt.size:
            raise ConfigError(
                f"prompt {row} must be [length >= 1], got {prompt.shape}."
            )
    return prompts
