"""Cross entropy from hidden states, in pieces of the sequence.

The logits `[B, L, V]` of a large vocabulary never exist whole, and neither does their
gradient: each piece is done with, gradients included, before the next begins. So the
forward pass already computes the gradients of the sum of the losses, and the backward
pass scales them; nothing is computed twice.

On a mesh each device does this for its rows, its part of the sequence and its part of
the vocabulary; of the latter they tell each other maxima and sums, `[B, Q]` each.

Legend: B batch, L length, Q steps of a piece, D d_model, V vocabulary with padding.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from roxxel.models import pieces
from roxxel.models.placement import Axis, Placement

# Logits of one piece on one device; 128 MiB. Fewer are one piece: the plain loss.
_PIECE_LOGITS = 2**25

# Shorter pieces would make the products with the head too thin.
_MIN_STEPS = 64


class _Options(NamedTuple):
    """What `mean_cross_entropy` says of its names, and the axis of the vocabulary."""

    vocab_size: int
    dtype: jax.typing.DTypeLike
    piece_size: int
    axis: Axis = None


def piece_size(model: Any, tokens_BL: jax.Array) -> int | None:
    """Steps of a piece for this model and batch; None: take the plain loss."""
    if not hasattr(model, "head_weight"):
        return None
    batch, length = tokens_BL.shape
    vocab, where = model.vocab_size, model.placement
    if where is not None:
        batch //= _parts(where, "batch", batch)
        length //= _parts(where, "length", length)
        vocab //= where.parts("vocab")
    row_logits = batch * vocab
    if length * row_logits <= _PIECE_LOGITS:
        return None if where is None else length
    return min(length, max(_MIN_STEPS, _PIECE_LOGITS // row_logits))


def _parts(where, name, size):
    return where.parts(name) if where.axis(name, size) else 1


def mean_cross_entropy(
    hidden_BLD: jax.Array,
    head_VD: jax.Array,
    targets_BL: jax.Array,
    weight_BL: jax.Array | None,
    *,
    vocab_size: int,
    dtype: jax.typing.DTypeLike,
    piece_size: int,
    where: Placement | None = None,
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
      where: the mesh, if there is one.
    """
    if weight_BL is None:
        weight_BL = jnp.ones(targets_BL.shape, jnp.float32)
    weight_BL = weight_BL.astype(jnp.float32)
    total = jnp.sum(weight_BL)
    options = _Options(vocab_size, dtype, piece_size)
    arrays = (hidden_BLD, head_VD, targets_BL, weight_BL)
    if where is None:
        summed = _sum_of_losses(*arrays, options)
    else:
        summed = _sum_on_parts(arrays, options, where)
    return summed / jnp.where(total == 0, 1.0, total), total


def _sum_on_parts(arrays, options, where):
    hidden_BLD, head_VD, targets_BL, _ = arrays
    axis = where.axis("vocab", head_VD.shape[0])
    rows = tuple(where.spec(targets_BL.shape, ("batch", "length")))
    rows = PartitionSpec(*rows, *[None] * (2 - len(rows)))

    def part(*arrays):
        return _sum_of_losses(*arrays, options._replace(axis=axis))[None, None]

    run = where.on_parts(part, (rows, PartitionSpec(axis), rows, rows), rows)
    return jnp.sum(run(where.rows(hidden_BLD), *arrays[1:]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _sum_of_losses(hidden_BLD, head_VD, targets_BL, weight_BL, options):
    def body(total, piece):
        loss, _ = _piece_loss(piece, head_VD, options)
        return total + loss, None

    inputs = (hidden_BLD, targets_BL, weight_BL)
    return pieces.scan_pieces(body, jnp.float32(0), inputs, options.piece_size)[0]


def _sum_forward(hidden_BLD, head_VD, targets_BL, weight_BL, options):
    dtype, size = options.dtype, options.piece_size

    def body(carry, piece):
        total, dhead_VD = carry
        loss, dlogits_BQV = _piece_loss(piece, head_VD, options)
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
    dhidden_BLD, dhead_VD = residuals
    if options.axis is not None:
        # The sum is the same on all devices of the axis, and each is told a share.
        dtotal = jax.lax.psum(dtotal, options.axis)
    return dtotal * dhidden_BLD, dtotal * dhead_VD, None, None


_sum_of_losses.defvjp(_sum_forward, _sum_backward)


def _piece_loss(piece, head_VD, options):
    """Weighted sum of the losses of a piece, and its gradient for the logits."""
    hidden_BQD, targets_BQ, weight_BQ = piece
    vocab_size, dtype, _, axis = options
    head_VD = head_VD.astype(dtype)
    logits_BQV = _dot("bqd,vd->bqv", hidden_BQD.astype(dtype), head_VD)
    ids_V = jnp.arange(head_VD.shape[0], dtype=targets_BQ.dtype)
    if axis is not None:
        ids_V += (jax.lax.axis_index(axis) * head_VD.shape[0]).astype(ids_V.dtype)
    logits_BQV = jnp.where(ids_V < vocab_size, logits_BQV, -jnp.inf)
    is_target = targets_BQ[..., None] == ids_V
    target_BQ = jnp.sum(jnp.where(is_target, logits_BQV, 0.0), axis=-1)
    logsum_BQ, target_BQ = _over_vocabulary(logits_BQV, target_BQ, axis)
    known_BQ = (targets_BQ >= 0) & (targets_BQ < vocab_size)
    losses_BQ = jnp.where(known_BQ, logsum_BQ - target_BQ, jnp.nan)
    counted_BQ = jnp.where(weight_BQ == 0, 0.0, losses_BQ * weight_BQ)
    scale_BQ = jnp.where(known_BQ, weight_BQ, 0.0)[..., None]
    softmax_BQV = jnp.exp(logits_BQV - logsum_BQ[..., None])
    dlogits_BQV = scale_BQ * (softmax_BQV - is_target)
    return jnp.sum(counted_BQ), dlogits_BQV


def _over_vocabulary(logits_BQV, target_BQ, axis):
    """Log of the sum of exponentials, and the target's logit, over all parts."""
    if axis is None:
        return jax.nn.logsumexp(logits_BQV, axis=-1), target_BQ
    most_BQ = jax.lax.pmax(jnp.max(logits_BQV, axis=-1), axis)
    part_BQ = jnp.sum(jnp.exp(logits_BQV - most_BQ[..., None]), axis=-1)
    sum_BQ, target_BQ = jax.lax.psum((part_BQ, target_BQ), axis)
    return most_BQ + jnp.log(sum_BQ), target_BQ


def _dot(axes, left, right):
    return jnp.einsum(axes, left, right, preferred_element_type=jnp.float32)
