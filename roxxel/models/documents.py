"""Where the documents of packed rows begin, as all blocks of a model see it.

Legend: B batch, L length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Documents(NamedTuple):
    """The documents of the tokens of one call.

    Attributes:
      runs_BL: number of the document of each token, 0 going on with the one that the
        state ends in; None: all are of that document.
      positions_BL: int32 place of each token in its document; one row where all rows
        have the same.
      length: int32 scalar, tokens read before this call.
    """

    runs_BL: jax.Array | None
    positions_BL: jax.Array
    length: jax.Array


def locate(
    runs_BL: jax.Array | None, length: int, before: tuple[jax.Array, jax.Array] | None
) -> Documents:
    """The documents of `length` tokens.

    Args:
      runs_BL: as in `Documents`.
      length: L.
      before: tokens read before, and `[B]` the index of the first token of the
        document that goes on; None: nothing was read.
    """
    steps_L = jnp.arange(length, dtype=jnp.int32)[None]
    read, first_B = (jnp.int32(0), None) if before is None else before
    since_BL = steps_L if first_B is None else steps_L + (read - first_B)[:, None]
    if runs_BL is None:
        return Documents(None, since_BL, read)
    former_BL = jnp.pad(runs_BL, [(0, 0), (1, 0)])[:, :-1]
    starts_BL = jnp.where(runs_BL != former_BL, steps_L, 0)
    start_BL = jax.lax.cummax(starts_BL, axis=1)
    positions_BL = jnp.where(runs_BL == 0, since_BL, steps_L - start_BL)
    return Documents(runs_BL, positions_BL, read)
