"""Language models in Flax NNX."""

from roxxel import extras

try:
    import flax as flax
    import jax as jax
except ImportError as err:
    raise extras.missing("roxxel.models", "checkpoint", err) from err
