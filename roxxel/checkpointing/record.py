"""What a checkpoint is called and what is recorded with it: plain values, no jax."""

import json
import math
import numbers
import operator
from typing import Any

import numpy as np

from roxxel.errors import ConfigError


def checked_step(step: Any) -> int:
    """`step` as an int; bools, floats and negative numbers are refused."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool | np.bool_) or number < 0:
        raise ConfigError(
            f"step must be a number of completed steps (an int >= 0), got {step!r}."
        )
    return number


def completed_steps(
    step: int, updates: int | None, last: tuple[int, int | None] | None
) -> tuple[int, str | None]:
    """Number of completed steps to store a save under, and why if it is not `step`.

    `updates` is the optimizer's own count. It decides in the two cases where a training
    loop's label is known to be something else than the number of completed steps:

    * `updates == step + 1`: the loop labels a save with the index of the step just
      done. Stored under that name it would be trained again after a restart.
    * the label is below the last stored number, while updates have gone beyond it: the
      loop counts from 0 again in every epoch.

    Args:
      step: the label given to `save`.
      updates: optimizer updates so far; None without an optimizer.
      last: (number, updates) of the checkpoint this run saved or restored last.
    """
    if updates is None or updates == step:
        return step, None
    if updates == step + 1:
        return updates, f"save(step={step}) after {updates} updates"
    number, updates_then = last or (0, None)
    restarted = step < number < updates
    if restarted and updates_then is not None and updates > updates_then:
        return updates, (
            f"save(step={step}) after step {number} (labels that start again in each "
            f"epoch?) and {updates} updates"
        )
    return step, None


def plain_metrics(metrics: dict | None) -> dict[str, int | float | str]:
    """Metrics as JSON numbers (`nan` and infinities as text); waits for the device.

    Raises:
      ConfigError: a value is not a scalar number; names its key.
    """
    return {str(key): _plain(key, value) for key, value in (metrics or {}).items()}


def _plain(key: Any, value: Any) -> int | float | str:
    # Python's own complex and str are refused below, after np.asarray has seen them.
    array = np.asarray(value) if _is_scalar(value) else None
    if array is None or array.shape != ():
        shape = getattr(value, "shape", None)
        what = f"an array of shape {tuple(shape)}" if shape else repr(value)
        raise ConfigError(
            f"metrics_dict[{key!r}] is {what}; expected one number "
            "(Python, numpy or jax scalar)."
        )
    if array.dtype.kind in "bui":
        return int(array)
    number = float(array)
    return number if math.isfinite(number) else str(number)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, numbers.Real):
        return True
    dtype = getattr(value, "dtype", None)
    if getattr(value, "shape", None) != () or dtype is None:
        return False
    try:
        return np.can_cast(np.dtype(dtype), np.float64) or np.dtype(dtype).kind in "ui"
    except TypeError:  # a dtype that numpy does not know, such as jax's keys
        return False


def checked_position(position: dict | None) -> dict | None:
    """`position` as it will come back from the record.

    Raises:
      ConfigError: not a dict of JSON values.
    """
    if position is None:
        return None
    if not isinstance(position, dict):
        raise ConfigError(f"position must be a dict of JSON values, got {position!r}.")
    try:
        return json.loads(json.dumps(position))
    except TypeError as err:
        raise ConfigError(
            f"position must be a dict of JSON values: {err}; got {position!r}."
        ) from err
