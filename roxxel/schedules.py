"""Learning-rate schedules that know the run's length; Optax does the arithmetic.

Each maps the number of completed updates, from 0, to a learning rate, finite for every
run of at least one step. Warm-up of W steps is `peak * (count + 1) / W`: the first
update already learns, the last of the warm-up is at the peak.
"""

import dataclasses
import math
from typing import Any

from absl import logging

from roxxel import budget, extras
from roxxel.budget import Length
from roxxel.errors import ConfigError

try:
    import optax
except ImportError as err:
    raise extras.missing("roxxel.schedules", "train", err) from err


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A learning rate by the number of completed updates, and how it is laid out.

    Attributes:
      rate: count -> learning rate.
      total_steps: length of the run that it was laid out for.
      warmup_steps: steps until the peak.
      decay_start: the first step of the decay, where a plateau comes before it: a run
        that is lengthened later goes on from there. None otherwise.
    """

    rate: optax.Schedule
    total_steps: int
    warmup_steps: int
    decay_start: int | None = None

    def __call__(self, count: Any) -> Any:
        """The learning rate of the update after `count` updates."""
        return self.rate(count)


def warmup_cosine(
    *,
    peak: float,
    total_steps: int,
    warmup: Length = 0.05,
    final_fraction: float = 0.1,
    stream: Any = None,
) -> Schedule:
    """Linear warm-up to `peak`, then a cosine down to `final_fraction * peak`.

        after warm-up:  peak * (f + (1 - f) * (1 + cos(pi * t)) / 2),
                        t = (count - W) / (total_steps - W)

    `warmup` is in steps, a fraction of the run, or text with a unit (see
    `roxxel.budget.Length`); tokens and epochs need `stream`. It never exceeds the run.
    """
    _check(total_steps, peak, final=final_fraction)
    steps = _warmup(warmup, total_steps, stream)
    after = optax.cosine_decay_schedule(
        peak, max(1, total_steps - steps), alpha=final_fraction
    )
    return Schedule(_warmed(peak, steps, after), total_steps, steps)


def warmup_linear(
    *,
    peak: float,
    total_steps: int,
    warmup: Length = 0.05,
    final_fraction: float = 0.0,
    stream: Any = None,
) -> Schedule:
    """Linear warm-up to `peak`, then a line down to `final_fraction * peak`.

    Arguments are those of `warmup_cosine`.
    """
    _check(total_steps, peak, final=final_fraction)
    steps = _warmup(warmup, total_steps, stream)
    after = optax.linear_schedule(
        peak, final_fraction * peak, max(1, total_steps - steps)
    )
    return Schedule(_warmed(peak, steps, after), total_steps, steps)


def warmup_stable_decay(
    *,
    peak: float,
    total_steps: int,
    warmup: Length = 0.02,
    decay: Length = 0.3,
    final_fraction: float = 0.0,
    stream: Any = None,
) -> Schedule:
    """Linear warm-up, a plateau at `peak`, then a line to `final_fraction * peak`.

    The decay takes the last `decay` of the run (in steps, a fraction, or text with a
    unit), at least one step and at most what the warm-up leaves. A finished run can be
    lengthened: only its decay is planned anew.
    """
    _check(total_steps, peak, final=final_fraction)
    steps = _warmup(warmup, total_steps, stream)
    wanted = budget.length(decay, name="decay", total_steps=total_steps, stream=stream)
    last = max(1, min(wanted, total_steps - steps))
    start = max(steps, total_steps - last)
    after = optax.join_schedules(
        [
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, final_fraction * peak, last),
        ],
        [start - steps],
    )
    return Schedule(_warmed(peak, steps, after), total_steps, steps, start)


def warmup_rsqrt(
    *,
    peak: float,
    total_steps: int,
    warmup: Length = 0.05,
    stream: Any = None,
) -> Schedule:
    """Linear warm-up to `peak`, then `peak * sqrt(W / count)` (arXiv:1706.03762).

    Its rates do not depend on the run's length once `warmup` is given in steps.
    """
    _check(total_steps, peak)
    steps = _warmup(warmup, total_steps, stream)
    width = max(1, steps)

    def after(count):
        return peak * (width / (abs(count) + width)) ** 0.5  # below 0 unused

    return Schedule(_warmed(peak, steps, after), total_steps, steps)


def constant(
    *, peak: float, total_steps: int, warmup: Length = 0, stream: Any = None
) -> Schedule:
    """Linear warm-up to `peak`, which then stays."""
    _check(total_steps, peak)
    steps = _warmup(warmup, total_steps, stream)
    rate = _warmed(peak, steps, optax.constant_schedule(peak))
    return Schedule(rate, total_steps, steps)


def _warmed(peak: float, steps: int, after: optax.Schedule) -> optax.Schedule:
    if steps == 0:
        return after
    ramp = optax.linear_schedule(peak / steps, peak, max(1, steps - 1))
    return optax.join_schedules([ramp, after], [steps])


def _warmup(warmup: Length, total: int, stream: Any) -> int:
    wanted = budget.length(warmup, name="warmup", total_steps=total, stream=stream)
    if wanted > total:
        logging.warning(
            "warm-up of %d steps is longer than the run of %d; it ends with the run.",
            wanted,
            total,
        )
    return min(wanted, total)


def _check(total: int, peak: float, **fractions: float) -> None:
    if total < 1:
        raise ConfigError(f"total_steps must be at least 1, got {total}.")
    if not (math.isfinite(peak) and peak > 0):
        raise ConfigError(f"schedule: peak must be positive and finite, got {peak}.")
    for name, value in fractions.items():
        if not 0 <= value <= 1:
            raise ConfigError(
                f"schedule: {name}_fraction must be between 0 and 1, got {value}."
            )
