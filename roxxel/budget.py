"""Lengths of a run in any one unit, turned into optimizer steps.

What is given in tokens or epochs moves with the stream's batch size, row length and
data; what is given in steps stays.
"""

import math
import numbers
import re
from collections.abc import Callable
from typing import Any

from roxxel.errors import ConfigError

# A length within a run: steps (int), a fraction of the run (float between 0 and 1), or
# text with a unit: "500 steps", "1e6 tokens", "0.5 epochs", "10%".
Length = int | float | str

UNITS = ("steps", "tokens", "epochs", "flops", "minutes", "tokens_per_param")
_TEXT = re.compile(r"\s*([-+.\d_eE]+)\s*(%|[A-Za-z]*)\s*")
_EXAMPLES = "500, 0.1, '10%', '1e6 tokens' or '0.5 epochs'"


def total_steps(
    stream: Any,
    *,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    flops: float | None = None,
    minutes: float | None = None,
    tokens_per_param: float | None = None,
    model: Callable[..., Any] | None = None,
) -> int:
    """Optimizer steps of a run, from exactly one unit.

    A stream of phases has a length of its own: then no unit is needed, and one that is
    given must not exceed it.

    Args:
      stream: tells `tokens(step)`, `steps_for(tokens)`, `spans()`, `planned_steps` and
        `steps_per_epoch`.
      steps: optimizer steps.
      tokens: elements predicted; rounded up to whole batches.
      epochs: passes over the data; fractions are allowed, rounded down, at least one
        step.
      flops: floating point operations of forward and backward passes, by the model's
        `flops_per_token(seq_len)`, or 6 per parameter and token (arXiv:2001.08361);
        rounded down, at least one step.
      minutes: of training on this machine. The command line measures the rate before
        the run and puts `steps` in its place.
      tokens_per_param: tokens by trainable parameter (20 is compute-optimal by
        arXiv:2203.15556); rounded up to whole batches.
      model: makes the model when called with `rngs=`; for `flops` and
        `tokens_per_param`. Only its shapes are computed, no parameter is made.

    Raises:
      ConfigError: not exactly one unit is given, it is not positive, it exceeds the
        stream's own length, or it needs what is not given.
    """
    units = (steps, tokens, epochs, flops, minutes, tokens_per_param)
    given = {k: v for k, v in zip(UNITS, units, strict=True) if v is not None}
    planned = getattr(stream, "planned_steps", None)
    if not given and planned is not None:
        return planned
    if len(given) != 1:
        raise ConfigError(
            f"total_steps needs exactly one of {', '.join(UNITS)}, the others None; "
            f"got {given}."
        )
    ((unit, value),) = given.items()
    if not value > 0 or math.isinf(value):
        raise ConfigError(f"total_steps: {unit} must be positive, got {value}.")
    total = _steps_of(stream, unit, value, model)
    if planned is not None and total > planned:
        raise ConfigError(
            f"total_steps: {unit}={value} are {total} steps, the phases of the stream "
            f"have {planned}; leave {unit} out or lengthen a phase."
        )
    return total


def _steps_of(stream: Any, unit: str, value: Any, model) -> int:
    if unit == "steps":
        return value
    if unit == "epochs":
        return max(1, int(value * _steps_per_epoch(stream, "total_steps")))
    if unit == "minutes":
        raise ConfigError(
            "total_steps: minutes become steps when `python -m roxxel.main` has "
            "measured the rate; give steps or another unit here."
        )
    if unit == "tokens":
        return stream.steps_for(math.ceil(value))
    if model is None:
        raise ConfigError(
            f"total_steps: {unit} depends on the model; give total_steps its model too."
        )
    if unit == "tokens_per_param":
        return stream.steps_for(math.ceil(value * _num_params(model)))
    return _steps_of_flops(stream, value, model)


def _steps_of_flops(stream: Any, flops: float, model) -> int:
    """Whole steps that `flops` pay for, span by span."""
    shapes = _abstract(model)
    per_param = 6 * _num_params(model)
    total = 0
    for span in stream.spans():
        cost_fn = getattr(shapes, "flops_per_token", None)
        per_token = cost_fn(span.seq_len) if cost_fn else per_param
        per_step = per_token * span.batch_size * span.seq_len
        affordable = int(flops // per_step)
        if span.stop is None or affordable < span.stop - span.start:
            return max(1, total + affordable)
        total += span.stop - span.start
        flops -= (span.stop - span.start) * per_step
    return total


def _abstract(model: Callable[..., Any]) -> Any:
    from flax import nnx

    return nnx.eval_shape(lambda: model(rngs=nnx.Rngs(0)))


def _num_params(model: Callable[..., Any]) -> int:
    from roxxel.models.language_model import num_params

    return num_params(_abstract(model))


def _steps_per_epoch(stream: Any, where: str) -> int:
    steps = getattr(stream, "steps_per_epoch", None)
    if not steps:
        raise ConfigError(
            f"{where}: epochs need a data set of known length, which "
            f"{type(stream).__name__} does not have; give steps or tokens."
        )
    return steps


def length(value: Length, *, name: str, total_steps: int, stream: Any = None) -> int:
    """A length within a run of `total_steps`, in steps; may be 0 or beyond the run.

    Args:
      value: see `Length`.
      name: of the setting, for errors.
      total_steps: of the whole run.
      stream: for tokens and epochs.

    Raises:
      ConfigError: it is negative, not understood, or its unit needs a stream.
    """
    number, unit = _parsed(value, name)
    if number < 0 or not math.isfinite(number):
        raise ConfigError(f"{name} must not be negative, got {value!r}.")
    if unit == "%" or (unit == "" and 0 < number < 1):
        share = number / 100 if unit == "%" else number
        if share > 1:
            raise ConfigError(f"{name}={value!r} is more than the whole run.")
        return round(share * total_steps)
    if unit in ("", "steps"):
        if number != int(number):
            raise ConfigError(
                f"{name}={value!r}: a number of 1 or more counts whole steps."
            )
        return int(number)
    if stream is None:
        raise ConfigError(f"{name}={value!r}: {unit} need a stream; give it one.")
    if unit == "tokens":
        return stream.steps_for(math.ceil(number))
    return round(number * _steps_per_epoch(stream, name))


def _parsed(value: Length, name: str) -> tuple[float, str]:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value), ""
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    unit = match[2].lower() if match else ""
    unit = {"step": "steps", "token": "tokens", "epoch": "epochs"}.get(unit, unit)
    if math.isnan(number) or unit not in ("", "%", "steps", "tokens", "epochs"):
        raise ConfigError(f"{name}={value!r} is no length; expected {_EXAMPLES}.")
    return number, unit


def cadence(
    value: Length | None, *, stream: Any, total_steps: int, name: str = "every"
) -> int | None:
    """How often something happens, in steps: at least 1; None for never.

    Raises:
      ConfigError: as `length`; or it is zero.
    """
    if value is None:
        return None
    number, _ = _parsed(value, name)
    if number == 0:
        raise ConfigError(f"{name} must be positive, got {value!r}.")
    return max(1, length(value, name=name, total_steps=total_steps, stream=stream))
