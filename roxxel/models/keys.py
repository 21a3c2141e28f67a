"""Random keys for many initial values.

`nnx.RngStream` asks its counter, at every key, for a sharding, which under a trace
walks the whole program so far: quadratic, 2 seconds for 48 blocks.
"""

import jax
import jax.numpy as jnp
from flax import nnx


class Keys:
    """The keys that `rngs.params()` gives one after another, counted in Python."""

    def __init__(self, rngs: nnx.Rngs):
        self._stream = rngs.params
        self._key, self._first = self._stream.key[...], self._stream.count[...]
        self._used = 0

    def params(self) -> jax.Array:
        """The next key."""
        key = jax.random.fold_in(self._key, self._first + jnp.uint32(self._used))
        self._used += 1
        return key

    def close(self) -> None:
        """Moves the stream of `rngs` behind the keys that were given."""
        self._stream.count[...] = self._first + jnp.uint32(self._used)


# What modules take as `rngs`.
Source = nnx.Rngs | Keys
