"""What happens at a step whose numbers are not finite, or that is a spike.

The decision is part of the step, so it is the same on every process, and no update that
it refuses ever reaches the state. What it remembers for that (losses and gradient norms
of the last steps, refusals in a row) is saved with the optimizer.
"""

import dataclasses
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from roxxel.errors import ConfigError

Policy = Literal["stop", "skip", "rewind"]

# Of a median absolute deviation, to be a standard deviation of normal numbers.
_NORMAL = 1.4826
# The least deviation, as a share of the median: of numbers that hardly vary.
_LEAST_DEVIATION = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """The policy at steps whose loss, gradient or update is not finite, and at spikes.

    Attributes:
      policy: "stop" ends the run with exit code 3; the newest checkpoint holds the
        state before the step. "skip" leaves the update out: weights, moments and the
        mean of the weights stay, the learning rate's schedule and the data go on.
        "rewind" goes back to the newest checkpoint and takes the steps again without
        the rows that are to blame: those that are not finite by themselves, or else
        the update of that whole batch. In each case the rows are written to
        `divergence/step_N.json`; what is left out is kept in `ledger.jsonl` of the
        work directory, to which every later start of the run holds.
      spike: a step is also refused where its loss, gradient norm or update norm lies
        more than `spike` deviations above the median of the last accepted steps; the
        deviation is 1.4826 times the median absolute deviation, and at least 1 % of
        the median. 6 to 10 is usual; None: only numbers that are not finite.
      window: accepted steps that the median is over.
      warmup: accepted steps before the first spike is seen.
      most_skips: refused steps in a row after which "skip" stops the run.
      most_rewinds: rewinds to the same checkpoint after which "rewind" stops the run.
    """

    policy: Policy = "stop"
    spike: float | None = None
    window: int = 64
    warmup: int = 32
    most_skips: int = 5
    most_rewinds: int = 5

    def __post_init__(self):
        if self.policy not in get_args(Policy):
            raise ConfigError(
                f"divergence: policy must be stop, skip or rewind, got {self.policy!r}."
            )
        if self.spike is not None and not self.spike > 0:
            raise ConfigError(
                f"divergence: spike must be positive or None, got {self.spike}."
            )
        for name in ("window", "warmup", "most_skips", "most_rewinds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"divergence: {name} must be an int of at least 1, got {value!r}."
                )

    @property
    def has_guard(self) -> bool:
        """Whether the decision remembers anything."""
        return self.policy == "skip" or self.spike is not None

    def guard(self) -> dict[str, jax.Array]:
        """What is remembered, before the first step."""
        state = {"refused": jnp.int32(0)}  # steps in a row
        if self.spike is not None:
            # Loss, gradient and update norm of accepted steps, over the oldest ones.
            state["recent"] = jnp.zeros((3, self.window), jnp.float32)
            state["accepted"] = jnp.int32(0)
        return state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the step decides, scalars on the device.

    Attributes:
      good: nothing was wrong with the step.
      alive: the run goes on behind it; once false it stays so.
      guard: what is remembered from now on.
    """

    good: jax.Array
    alive: jax.Array
    guard: dict[str, jax.Array]


def judge(
    rule: Divergence,
    guard: dict[str, jax.Array],
    *,
    loss: jax.Array,
    grad_norm: jax.Array,
    update_norm: jax.Array,
    alive: jax.Array,
    counted: jax.Array,
    refuse: bool = False,
) -> Verdict:
    """Decides about a step; `counted` tells whether its batch has any target.

    With `refuse` the step is refused whatever it is, and the run goes on.
    """
    # The update too: an optimizer or schedule can fail on finite gradients.
    good = jnp.isfinite(loss + grad_norm + update_norm)
    seen = jnp.stack([loss, grad_norm, update_norm]).astype(jnp.float32)
    if rule.spike is not None:
        is_spike = _is_spike(guard, seen, spike=rule.spike, warmup=rule.warmup)
        good &= ~(is_spike & counted)
    if refuse:
        good = jnp.bool_(False)
    new = dict(guard)
    lives = good
    if guard:
        new["refused"] = jnp.where(good, 0, guard["refused"] + 1)
        if rule.policy == "skip":
            lives = new["refused"] <= rule.most_skips
    alive = alive if refuse else alive & lives
    good &= alive
    if rule.spike is not None:
        new |= _remembered(guard, seen, good & counted)
    kept = {name: jnp.where(alive, new[name], guard[name]) for name in guard}
    return Verdict(good=good, alive=alive, guard=kept)


def _is_spike(
    guard: dict[str, jax.Array], seen: jax.Array, *, spike: float, warmup: int
) -> jax.Array:
    recent, accepted = guard["recent"], guard["accepted"]
    window = recent.shape[1]
    count = jnp.minimum(accepted, window)
    there = jnp.arange(window) < count
    median = _median(recent, there, count)
    spread = _median(jnp.abs(recent - median[:, None]), there, count)
    deviation = jnp.maximum(_NORMAL * spread, _LEAST_DEVIATION * jnp.abs(median))
    above = jnp.any(seen > median + spike * deviation)
    return above & (accepted >= warmup)


def _median(values: jax.Array, there: jax.Array, count: jax.Array) -> jax.Array:
    """The lower median of each row's values that are there; 0 of none."""
    ordered = jnp.sort(jnp.where(there, values, jnp.inf), axis=-1)
    middle = ordered[:, jnp.maximum(count - 1, 0) // 2]
    return jnp.where(count > 0, middle, 0.0)


def _remembered(
    guard: dict[str, jax.Array], seen: jax.Array, is_accepted: jax.Array
) -> dict[str, jax.Array]:
    recent, accepted = guard["recent"], guard["accepted"]
    at = jnp.arange(recent.shape[1]) == accepted % recent.shape[1]
    is_new = at & is_accepted
    return {
        "recent": jnp.where(is_new, seen[:, None], recent),
        "accepted": accepted + is_accepted,
    }
