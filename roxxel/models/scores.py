"""Loss and correctness of next-token predictions, as sums for an evaluation.

Legend: B batch, T = L + 1 tokens of a row, L length, Q steps of a piece, D d_model,
V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp

from roxxel.models import head_loss, losses, pieces


def next_token_scores(
    model: Any, tokens_BT: jax.Array, loss_mask_BT: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean loss, counted targets and how many of them the largest logit names.

    Arguments as of `losses.next_token_loss`, whose mean it is; the logits are computed
    once for all three. Of a large vocabulary they never exist whole.

    Returns:
      Three float32 scalars; all 0 where nothing counts.
    """
    inputs_BL, targets_BL = tokens_BT[:, :-1], tokens_BT[:, 1:]
    weight_BL = loss_mask_BT[:, 1:].astype(jnp.float32)
    size = head_loss.piece_size(model, inputs_BL)
    if size is None:
        logits_BLV, _ = model(inputs_BL)
        mean, total = losses.mean_cross_entropy(logits_BLV, targets_BL, weight_BL)
        return mean, total, _num_correct(logits_BLV, targets_BL, weight_BL)
    hidden_BLD, _ = model.hidden(inputs_BL)

    def body(sums, piece):
        hidden_BQD, targets_BQ, weight_BQ = piece
        logits_BQV = model.logits(hidden_BQD)
        mean, total = losses.mean_cross_entropy(logits_BQV, targets_BQ, weight_BQ)
        correct = _num_correct(logits_BQV, targets_BQ, weight_BQ)
        new = (mean * total, total, correct)
        return jax.tree.map(jnp.add, sums, new), None

    zeros = (jnp.float32(0),) * 3
    parts = (hidden_BLD, targets_BL, weight_BL)
    (loss, total, correct), _ = pieces.scan_pieces(body, zeros, parts, size)
    return loss / jnp.where(total == 0, 1.0, total), total, correct


def _num_correct(logits_BLV, targets_BL, weight_BL):
    is_right_BL = jnp.argmax(logits_BLV, axis=-1).astype(targets_BL.dtype) == targets_BL
    return jnp.sum(jnp.where(is_right_BL, weight_BL, 0.0))
