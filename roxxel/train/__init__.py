"""The training loop: step, loop, trainer, evaluation, timing."""

from roxxel import extras

try:
    import flax as flax
    import jax as jax
    import optax as optax
except ImportError as err:
    raise extras.missing("roxxel.train", "train", err) from err
