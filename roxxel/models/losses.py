"""Losses of language models, in nats, weighted by token.

Legend: B batch, T = L + 1 tokens of a row, L length, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from roxxel.models import head_loss


def next_token_loss(
    model: Any,
    tokens_BT: jax.Array | Mapping[str, jax.Array],
    loss_mask_BT: jax.Array | None = None,
    segment_ids_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Mean loss of predicting each next token, and the number of tokens it is over.

    Inputs are `tokens[:, :-1]`, targets `tokens[:, 1:]`: rows of `seq_len + 1`.

    Args:
      model: `model(tokens_BL)` or `model(tokens_BL, segment_ids_BL=...)` giving
        `(logits_BLV, state)`. Of a `LanguageModel` whose logits would be large, they
        never exist whole: see `head_loss`.
      tokens_BT: int tokens; or a batch with `tokens` and its own `loss_mask`.
      loss_mask_BT: weight of each token *as a target*; None counts all.
      segment_ids_BT: documents; a document's first token is then no target, since
        nothing of the document comes before it.

    Returns:
      `(mean, weight)` float32 scalars; both 0 where nothing counts, never NaN. Sums
      over several batches are `mean * weight`.
    """
    if isinstance(tokens_BT, Mapping):
        tokens_BT, loss_mask_BT = tokens_BT["tokens"], tokens_BT["loss_mask"]
    tokens_BL, targets_BL, documents = tokens_BT[:, :-1], tokens_BT[:, 1:], {}
    weight_BL = None if loss_mask_BT is None else loss_mask_BT[:, 1:]
    if segment_ids_BT is not None:
        documents = {"segment_ids_BL": segment_ids_BT[:, :-1]}
        same = segment_ids_BT[:, 1:] == segment_ids_BT[:, :-1]
        weight_BL = same if weight_BL is None else weight_BL * same
    piece_size = head_loss.piece_size(model, tokens_BL)
    if piece_size is not None:
        hidden_BLD, _ = model.hidden(tokens_BL, **documents)
        return head_loss.mean_cross_entropy(
            hidden_BLD,
            model.head_weight(),
            targets_BL,
            weight_BL,
            vocab_size=model.vocab_size,
            dtype=model.compute_dtype,
            piece_size=piece_size,
            where=model.placement,
        )
    logits_BLV, _ = model(tokens_BL, **documents)
    return mean_cross_entropy(logits_BLV, targets_BL, weight_BL)


def mean_cross_entropy(
    logits_BLV: jax.Array, targets_BL: jax.Array, weight_BL: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Weighted mean of `cross_entropy` and the sum of the weights (0 / 0 is 0)."""
    losses_BL = cross_entropy(logits_BLV, targets_BL)
    if weight_BL is None:
        return jnp.mean(losses_BL), jnp.float32(losses_BL.size)
    weight_BL = weight_BL.astype(jnp.float32)
    total = jnp.sum(weight_BL)
    # A weight of 0 silences its token even where the logits are not finite.
    counted = jnp.where(weight_BL == 0, 0.0, losses_BL * weight_BL)
    return jnp.sum(counted) / jnp.where(total == 0, 1.0, total), total


def cross_entropy(logits_BLV: jax.Array, targets_BL: jax.Array) -> jax.Array:
    """-log softmax(logits)[target] of each position, `[B, L]` float32.

    NaN for a target outside the vocabulary, which would else look like a low loss.
    """
    logits_BLV = logits_BLV.astype(jnp.float32)
    # A comparison instead of a gather: it fuses, and its gradient needs no scatter.
    ids_V = jnp.arange(logits_BLV.shape[-1], dtype=targets_BL.dtype)
    is_target = targets_BL[..., None] == ids_V
    target_BL = jnp.sum(jnp.where(is_target, logits_BLV, 0.0), axis=-1)
    losses_BL = jax.nn.logsumexp(logits_BLV, axis=-1) - target_BL
    known_BL = (targets_BL >= 0) & (targets_BL < logits_BLV.shape[-1])
    return jnp.where(known_BL, losses_BL, jnp.nan)
