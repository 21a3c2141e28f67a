"""Loops over pieces of a sequence.

Legend: B batch, L length, K pieces, Q steps of a piece.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def scan_pieces(
    body: Callable, carry: Any, inputs: Any, piece_size: int
) -> tuple[Any, Any]:
    """`lax.scan` of `carry, out = body(carry, piece)` over pieces of axis 1.

    `inputs` and the outputs are trees of `[B, L, ...]`. A shorter last piece runs by
    itself, so nothing is padded.
    """
    length = jax.tree.leaves(inputs)[0].shape[1]
    size = min(piece_size, length)
    whole = length - length % size
    if whole == size:
        carry, outputs = body(carry, jax.tree.map(lambda v: v[:, :whole], inputs))
    else:
        pieces = jax.tree.map(lambda v: to_pieces(v[:, :whole], size), inputs)
        carry, outputs = jax.lax.scan(body, carry, pieces)
        outputs = jax.tree.map(from_pieces, outputs)
    if whole == length:
        return carry, outputs
    carry, tail = body(carry, jax.tree.map(lambda v: v[:, whole:], inputs))
    join = lambda *parts: jnp.concatenate(parts, axis=1)  # noqa: E731
    return carry, jax.tree.map(join, outputs, tail)


def to_pieces(array: jax.Array, size: int) -> jax.Array:
    """`[B, K * Q, ...]` as `[K, B, Q, ...]`."""
    split = array.reshape(array.shape[0], -1, size, *array.shape[2:])
    return jnp.moveaxis(split, 1, 0)


def from_pieces(array: jax.Array) -> jax.Array:
    """`[K, B, Q, ...]` as `[B, K * Q, ...]`."""
    array = jnp.moveaxis(array, 0, 1)
    return array.reshape(array.shape[0], -1, *array.shape[3:])
