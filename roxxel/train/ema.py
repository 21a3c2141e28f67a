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
from flax import nnx

from roxxel.checkpointing import state
from roxxel.errors import ConfigError

_PREFIX = "optimizer/ema/"


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
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), nnx.as_pure(params))


def step(mean: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """The mean after `updates` updates, the last of which gave `params`."""
    count = updates.astype(jnp.float32)
    kept = jnp.minimum(decay, (1 + count) / (10 + count))

    def moved(mean: jax.Array, value: jax.Array) -> jax.Array:
        return kept * mean + (1 - kept) * value.astype(jnp.float32)

    return jax.tree.map(moved, mean, params)


def restart(model: nnx.Module, optimizer: nnx.Optimizer) -> None:
    """Lets the mean begin at the weights as they are now."""
    params = nnx.as_pure(nnx.state(model, nnx.Param))
    old = nnx.as_pure(nnx.state(optimizer.ema))  # pyrefly: ignore[missing-attribute]
    where = jax.tree.map(lambda leaf: leaf.sharding, old)
    nnx.update(
        optimizer.ema,  # pyrefly: ignore[missing-attribute]
        jax.jit(start, out_shardings=where)(params),
    )


def restore(folder: pathlib.Path, arrays: dict[str, Any], model: nnx.Module) -> bool:
    """Puts the mean that a checkpoint holds, if it does, into the weights of `model`.

    Call it after the checkpoint was restored into the model.

    Args:
      folder: the item `state` of the checkpoint's folder.
      arrays: those of its record, by name.
      model: its weights stay as they are where the checkpoint has no mean.

    Returns:
      Whether there was one.
    """
    targets = state.named_leaves({"model": model})
    wanted = {
        _PREFIX + name.removeprefix("model/"): leaf
        for name, leaf in targets.items()
        if _PREFIX + name.removeprefix("model/") in arrays
    }
    if not wanted:
        return False
    values = state.read(folder, wanted)
    state.assign(
        {"model": model},
        {
            "model/" + name.removeprefix(_PREFIX): value.astype(wanted[name].dtype)
            for name, value in values.items()
        },
    )
    return True
