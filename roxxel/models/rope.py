"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

Channel i of a head's first half and channel i of its second half make a pair, as in
Llama's published code, rotated by `position * theta ** (-2 i / P)`.

Legend: B batch, L length, N heads, P head width.
"""

import jax
import jax.numpy as jnp


def rotate(x_BLNP: jax.Array, positions_BL: jax.Array, *, theta: float) -> jax.Array:
    """`x` rotated by its positions, in float32 inside and the type of `x` outside.

    `positions_BL` may have one row for all.
    """
    half = x_BLNP.shape[-1] // 2
    rates = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (positions_BL.astype(jnp.float32)[..., None] * rates)[:, :, None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x_BLNP.astype(jnp.float32), 2, axis=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(parts, axis=-1).astype(x_BLNP.dtype)
