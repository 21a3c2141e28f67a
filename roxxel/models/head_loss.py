"""Cross entropy from hidden states, in pieces of the sequence.

The logits `[B, L, V]` of a large vocabulary never exist whole, and neither does their
gradient: each piece is done with, gradients included, before the next begins. So the
forward pass already computes the gradients of the sum of the losses, and the backward
pass scales them; nothing is computed twice.

Legend: B batch, L length, Q steps of a piece, D d_model, V vocabulary with padding.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from roxxel.models import pieces

# Logits of one piece on one device; 128 MiB. Fewer are one piece: the plain loss.
_PIECE_LOGITS = 2**25

# Shorter pieces would make the products with the head too thin.
_MIN_STEPS = 64


def piece_size(model: Any, tokens_BL: jax.Array) -> int | None:
    """Steps of a piece for this model and batch; None: take the plain loss."""
    if not hasattr(model, "head_weight"):
        return None
    batch, length = tokens_BL.shape
    devices = max(1, jax.typeof(tokens_BL).sharding.mesh.size)
    row_logits = -(-batch // devices) * model.vocab_size
    if length * row_logits <= _PIECE_LOGITS:
        return None
    return min(length, max(_MIN_STEPS, _PIECE_LOGITS // row_logits))


def mean_cross_entropy(
    hidden_BLD: jax.Array,
    head_VD: jax.Array,
    targets_BL: jax.Array,
    weight_BL: jax.Array | None,
    *,
    vocab_size: int,
    dtype: jax.typing.DTypeLike,
    piece_size: int,
) -> tuple[jax.Array, jax.Array]:
    """As `losses.mean_cross_entropy` of the logits `hidden @ head.T`.

    Args:
      hidden_BLD: what the head takes.
      head_VD: the head; rows from `vocab_size` on only pad it.
      targets_BL: int ids.
      weight_BL: of each target; None: all count.
      vocab_size: ids that exist; another target makes the loss NaN.
      dtype: in which the products compute; the rest is float32.
      piece_size: steps of a piece.
    """
    if weight_BL is None:
        weight_BL = jnp.ones(targets_BL.shape, jnp.float32)
    weight_BL = weight_BL.astype(jnp.float32)
    total = jnp.sum(weight_BL)
    options = (vocab_size, dtype, piece_size)
    summed = _sum_of_losses(hidden_BLD, head_VD, targets_BL, weight_BL, options)
    return summed / jnp.where(total == 0, 1.0, total), total


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _sum_of_losses(hidden_BLD, head_VD, targets_BL, weight_BL, options):
    vocab_size, dtype, size = options

    def body(total, piece):
        loss, _ = _piece_loss(piece, head_VD, vocab_size, dtype)
        return total + loss, None

    inputs = (hidden_BLD, targets_BL, weight_BL)
    return pieces.scan_pieces(body, jnp.float32(0), inputs, size)[0]


def _sum_forward(hidden_BLD, head_VD, targets_BL, weight_BL, options):
    vocab_size, dtype, size = options

    def body(carry, piece):
        total, dhead_VD = carry
        loss, dlogits_BQV = _piece_loss(piece, head_VD, vocab_size, dtype)
        dlogits_BQV = dlogits_BQV.astype(dtype)
        hidden_BQD = piece[0].astype(dtype)
        dhead_VD += _dot("bqv,bqd->vd", dlogits_BQV, hidden_BQD)
        dhidden_BQD = _dot("bqv,vd->bqd", dlogits_BQV, head_VD.astype(dtype))
        return (total + loss, dhead_VD), dhidden_BQD.astype(hidden_BLD.dtype)

    carry = (jnp.float32(0), jnp.zeros(head_VD.shape, jnp.float32))
    inputs = (hidden_BLD, targets_BL, weight_BL)
    (total, dhead_VD), dhidden_BLD = pieces.scan_pieces(body, carry, inputs, size)
    return total, (dhidden_BLD, dhead_VD.astype(head_VD.dtype))


def _sum_backward(options, residuals, dtotal):
    del options
    dhidden_BLD, dhead_VD = residuals
    return dtotal * dhidden_BLD, dtotal * dhead_VD, None, None


_sum_of_losses.defvjp(_sum_forward, _sum_backward)


def _piece_loss(piece, head_VD, vocab_size, dtype):
    """Weighted sum of the losses of a piece, and its gradient for the logits."""
    hidden_BQD, targets_BQ, weight_BQ = piece
    head_VD = head_VD.astype(dtype)
    logits_BQV = _dot("bqd,vd->bqv", hidden_BQD.astype(dtype), head_VD)
    ids_V = jnp.arange(head_VD.shape[0], dtype=targets_BQ.dtype)
    logits_BQV = jnp.where(ids_V < vocab_size, logits_BQV, -jnp.inf)
    logsum_BQ = jax.nn.logsumexp(logits_BQV, axis=-1)
    is_target = targets_BQ[..., None] == ids_V
    target_BQ = jnp.sum(jnp.where(is_target, logits_BQV, 0.0), axis=-1)
    known_BQ = (targets_BQ >= 0) & (targets_BQ < vocab_size)
    losses_BQ = jnp.where(known_BQ, logsum_BQ - target_BQ, jnp.nan)
    counted_BQ = jnp.where(weight_BQ == 0, 0.0, losses_BQ * weight_BQ)
    scale_BQ = jnp.where(known_BQ, weight_BQ, 0.0)[..., None]
    softmax_BQV = jnp.exp(logits_BQV - logsum_BQ[..., None])
    dlogits_BQV = scale_BQ * (softmax_BQV - is_target)
    return jnp.sum(counted_BQ), dlogits_BQV


def _dot(axes, left, right):
    return jnp.einsum(axes, left, right, preferred_element_type=jnp.float32)
