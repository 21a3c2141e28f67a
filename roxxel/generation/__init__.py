"""Sampling in parts: which token, the decode loop, and text as it grows."""

from roxxel import extras

try:
    import flax as flax
    import jax as jax
except ImportError as err:
    raise extras.missing("roxxel.generation", "checkpoint", err) from err
