"""An exponential moving mean of the weights, kept with the optimizer's state.

After update t (the first is 1) the mean is `d * mean + (1 - d) * weights` with
`d = min(decay, (1 + t) / (10 + t))`: a mean over the last `1 / (1 - decay)` updates,
and over a part of those there were while they are few, so that the initial weights,
with which it begins, have no lasting share and no correction for a bias is needed. It
is float32 whatever the weights are stored in.

Evaluation, samples at the end and `--checkpoint` use the mean where there is one.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx

from roxxel.checkpointing import files, restoring, state
from roxxel.checkpointing.comparison import Comparison
from roxxel.errors import ConfigError

PREFIX = "optimizer/ema/"


def check_decay(decay: Any) -> None:
    """Raises a ConfigError unless `decay` is None or lies in (0, 1)."""
    if decay is None:
        return
    if isinstance(decay, bool) or not isinstance(decay, int | float):
        decay = repr(decay)
    elif 0 < decay < 1:
        return
    raise ConfigError(
        f"trainer: ema_decay must be between 0 and 1, such as 0.999, got {decay}; None "
        "keeps no mean of the weights."
    )


def start(params: Any) -> Any:
    """The mean before the first update: a float32 copy of the weights."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params)


def step(mean: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """The mean after `updates` updates, the last of which gave `params`."""
    count = updates.astype(jnp.float32)
    kept = jnp.minimum(decay, (1 + count) / (10 + count))

    def moved(mean: jax.Array, value: jax.Array) -> jax.Array:
        return kept * mean + (1 - kept) * value.astype(jnp.float32)

    return jax.tree.map(moved, mean, params)


def begin(
    restored: Comparison | None, model: nnx.Module, optimizer: nnx.Optimizer
) -> list[str]:
    """Lets a mean that was not restored begin at the weights; lines for the log.

    `restored` is what was found in the checkpoint, None where there was none.
    """
    decay = getattr(optimizer, "ema_decay", None)
    if decay is None:
        return []
    lines = [f"Mean of the weights, decay {decay:g}: it is evaluated and sampled from"]
    names = [] if restored is None else restored.taken
    if not any(name.startswith(PREFIX) for name in names):
        _restart(model, optimizer)
        if restored is not None:
            lines.append("The checkpoint holds no mean: it begins at these weights")
    return lines


def _restart(model: nnx.Module, optimizer: Any) -> None:
    where = jax.tree.map(lambda leaf: leaf.sharding, nnx.state(optimizer.ema))
    begun = jax.jit(start, out_shardings=nnx.as_pure(where))(optimizer.weights(model))
    nnx.update(optimizer.ema, begun)


def restore(root: pathlib.Path, number: int, model: nnx.Module) -> bool:
    """Puts the mean that a checkpoint holds, if it does, into the weights of `model`.

    Call it after the checkpoint was restored into the model.

    Args:
      root: the directory of checkpoints.
      number: completed steps of the one restored.
      model: its weights stay as they are where the checkpoint has no mean.

    Returns:
      Whether there was one.

    Raises:
      CheckpointError: it cannot be read.
    """
    found = next((step for step in files.scan(root)[0] if step.number == number), None)
    arrays = {} if found is None else found.record["arrays"]
    targets = state.named_leaves({"model": model})
    names = {PREFIX + name.removeprefix("model/"): name for name in targets}
    wanted = {there: targets[here] for there, here in names.items() if there in arrays}
    if found is None or not wanted:
        return False
    read = {
        name: jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=leaf.sharding)
        for name, leaf in wanted.items()
    }
    values = restoring.read(found, read)
    new = {names[n]: value.astype(wanted[n].dtype) for n, value in values.items()}
    state.assign({"model": model}, new)
    logging.info("the weights are the running mean of step %d", number)
    return True
