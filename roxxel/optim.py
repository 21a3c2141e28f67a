"""Length of a run, learning-rate schedules and optimizers with decay masks.

Optax does the arithmetic; this module fixes what is counted and what is decayed.
"""

import math
from typing import Any

from absl import logging

from roxxel import extras
from roxxel.errors import ConfigError

try:
    import jax
    import optax
    from optax import contrib
except ImportError as err:
    raise extras.missing("roxxel.optim", "train", err) from err

# Names of parameters that are never decayed, as they appear in a parameter's path.
# Decay would move the time scales of a state space model (A_log, dt_bias) and the
# gains that its norms and skips rely on.
NO_DECAY_NAMES = ("A_log", "D", "dt_bias", "bias", "scale", "norm", "conv")


def total_steps(
    stream: Any,
    *,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
) -> int:
    """Optimizer steps of a run, from exactly one of `steps`, `tokens`, `epochs`.

    Args:
      stream: has `batch_size`, `seq_len` and `steps_per_epoch`.
      steps: optimizer steps.
      tokens: elements predicted; rounded up to whole batches.
      epochs: passes over the data; fractions are allowed, rounded down, at least one
        step.

    Raises:
      ConfigError: not exactly one unit is given, or it is not positive.
    """
    given = {
        name: value
        for name, value in (("steps", steps), ("tokens", tokens), ("epochs", epochs))
        if value is not None
    }
    if len(given) != 1:
        raise ConfigError(
            f"total_steps needs exactly one of steps, tokens, epochs; got {given}."
        )
    ((unit, value),) = given.items()
    if not value > 0:
        raise ConfigError(f"total_steps: {unit} must be positive, got {value}.")
    if steps is not None:
        return steps
    if tokens is not None:
        return -(-tokens // (stream.batch_size * stream.seq_len))
    return max(1, int(value * stream.steps_per_epoch))


def _checked_total(total: int) -> int:
    if total < 1:
        raise ConfigError(f"total_steps must be at least 1, got {total}.")
    return total


def _check_fractions(*, peak: float, **fractions: float) -> None:
    if not (math.isfinite(peak) and peak > 0):
        raise ConfigError(f"schedule: peak must be positive and finite, got {peak}.")
    for name, value in fractions.items():
        if not 0 <= value <= 1:
            raise ConfigError(
                f"schedule: {name}_fraction must be between 0 and 1, got {value}."
            )


def warmup_cosine(
    *,
    peak: float,
    total_steps: int,
    warmup_fraction: float = 0.05,
    warmup_steps: int | None = None,
    final_fraction: float = 0.1,
) -> optax.Schedule:
    """Linear warm-up to `peak`, then a cosine down to `final_fraction * peak`.

    The schedule maps the number of completed updates, from 0, to a learning rate:

        warm-up  (count < W):  peak * (count + 1) / W
        after:                 peak * (f + (1 - f) * (1 + cos(pi * t)) / 2),
                               t = (count - W) / (total_steps - W)

    W is `warmup_steps`, or `warmup_fraction` of the total; it never exceeds the total,
    so that every rate is finite for every `total_steps >= 1`.
    """
    total = _checked_total(total_steps)
    _check_fractions(peak=peak, warmup=warmup_fraction, final=final_fraction)
    wanted = round(warmup_fraction * total) if warmup_steps is None else warmup_steps
    if wanted < 0:
        raise ConfigError(f"the warm-up must not be negative, got {wanted} steps.")
    warmup = min(wanted, total)
    if wanted > total:
        logging.warning(
            "warm-up of %d steps is longer than the run of %d; it ends with the run.",
            wanted,
            total,
        )
    cosine = optax.cosine_decay_schedule(
        peak, max(1, total - warmup), alpha=final_fraction
    )
    if warmup == 0:
        return cosine
    ramp = optax.linear_schedule(peak / warmup, peak, max(1, warmup - 1))
    return optax.join_schedules([ramp, cosine], [warmup])


def warmup_stable_decay(
    *,
    peak: float,
    total_steps: int,
    warmup_fraction: float = 0.02,
    decay_fraction: float = 0.3,
    final_fraction: float = 0.0,
) -> optax.Schedule:
    """Linear warm-up, a plateau at `peak`, then a linear decay to `final_fraction`.

    Counts completed updates as `warmup_cosine` does. The decay covers the last
    `decay_fraction` of the run.
    """
    total = _checked_total(total_steps)
    _check_fractions(
        peak=peak, warmup=warmup_fraction, decay=decay_fraction, final=final_fraction
    )
    warmup = min(round(warmup_fraction * total), total)
    decay = max(1, min(round(decay_fraction * total), total - warmup))
    parts = [
        optax.constant_schedule(peak),
        optax.linear_schedule(peak, final_fraction * peak, decay),
    ]
    if warmup == 0:
        return optax.join_schedules(parts, [total - decay])
    ramp = optax.linear_schedule(peak / warmup, peak, max(1, warmup - 1))
    return optax.join_schedules([ramp, *parts], [warmup, max(warmup, total - decay)])


def parameter_name(path: tuple) -> str:
    """The dotted name of a leaf from its tree path, e.g. `layers.0.mixer.A_log`."""
    parts = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
    return ".".join(part for part in parts if part != "value")


def _is_decayed(name: str) -> bool:
    parts = name.split(".")
    return not any(
        part in NO_DECAY_NAMES or part.startswith(("norm", "conv")) for part in parts
    )


def decay_mask(params: Any) -> Any:
    """True where weight decay applies: matrices that `NO_DECAY_NAMES` does not name."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf.ndim >= 2 and _is_decayed(parameter_name(path)), params
    )


def undecayed_names(params: Any) -> list[str]:
    """Names of the parameters that weight decay leaves alone, for the log."""
    flat, _ = jax.tree_util.tree_flatten_with_path(decay_mask(params))
    return [parameter_name(path) for path, decayed in flat if not decayed]


def adamw(
    *,
    schedule: optax.ScalarOrSchedule,
    weight_decay: float = 0.1,
    clip_norm: float | None = 1.0,
    b1: float = 0.9,
    b2: float = 0.95,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    """AdamW (arXiv:1711.05101) with global-norm clipping and the mask of `decay_mask`.

    `clip_norm=None` does not clip.
    """
    return _clipped(
        clip_norm,
        optax.adamw(
            schedule,
            b1=b1,
            b2=b2,
            eps=eps,
            weight_decay=weight_decay,
            mask=decay_mask,
        ),
    )


def muon(
    *,
    schedule: optax.Schedule,
    adam_scale: float = 1.0,
    weight_decay: float = 0.1,
    clip_norm: float | None = 1.0,
    momentum: float = 0.95,
    ns_steps: int = 5,
    b1: float = 0.9,
    b2: float = 0.95,
) -> optax.GradientTransformation:
    """Muon for hidden matrices, AdamW for embeddings, heads and all that is not 2-D.

    Muon (K. Jordan et al., 2024) orthogonalises the momentum of each matrix by
    `ns_steps` Newton-Schulz iterations. Updates are scaled to the root mean square of
    Adam's (0.2 * sqrt(max(rows, columns)), arXiv:2502.16982), so one schedule serves
    both; `adam_scale` multiplies it for the Adam part.
    """

    def adam(count):
        return adam_scale * schedule(count)

    matrices = contrib.muon(
        schedule,
        ns_steps=ns_steps,
        beta=momentum,
        weight_decay=weight_decay,
        consistent_rms=0.2,
    )
    rest = optax.adamw(adam, b1=b1, b2=b2, weight_decay=weight_decay, mask=decay_mask)
    return _clipped(
        clip_norm,
        optax.partition({"muon": matrices, "adam": rest}, _muon_or_adam),
    )


def _muon_or_adam(params: Any) -> Any:
    def label(path: tuple, leaf: Any) -> str:
        name = parameter_name(path)
        lookup = any(part.startswith(("embed", "head")) for part in name.split("."))
        hidden = leaf.ndim == 2 and _is_decayed(name) and not lookup
        return "muon" if hidden else "adam"

    return jax.tree_util.tree_map_with_path(label, params)


def _clipped(
    clip_norm: float | None, update: optax.GradientTransformation
) -> optax.GradientTransformation:
    if clip_norm is None:
        return update
    if not clip_norm > 0:
        raise ConfigError(f"clip_norm must be positive or None, got {clip_norm}.")
    return optax.chain(optax.clip_by_global_norm(clip_norm), update)
