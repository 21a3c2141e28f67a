"""Optimizers with decay masks; run lengths and schedules under the same name.

Optax does the arithmetic; this module fixes what is decayed and what gets which update.
"""

import fnmatch
import math
from collections.abc import Mapping
from typing import Any

from roxxel import extras
from roxxel.budget import total_steps as total_steps
from roxxel.errors import ConfigError

try:
    import jax
    import optax
    from optax import contrib
except ImportError as err:
    raise extras.missing("roxxel.optim", "train", err) from err

from roxxel.schedules import Schedule as Schedule
from roxxel.schedules import constant as constant
from roxxel.schedules import warmup_cosine as warmup_cosine
from roxxel.schedules import warmup_linear as warmup_linear
from roxxel.schedules import warmup_rsqrt as warmup_rsqrt
from roxxel.schedules import warmup_stable_decay as warmup_stable_decay

RateScales = Mapping[str, float] | None

# Names of parameters that are never decayed, as they appear in a parameter's path.
# Decay would move the time scales of a state space model (A_log, dt_bias) and the
# gains that its norms and skips rely on.
NO_DECAY_NAMES = ("A_log", "D", "dt_bias", "bias", "scale", "norm", "conv")


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
    rate_scales: RateScales = None,
) -> optax.GradientTransformation:
    """AdamW (arXiv:1711.05101) with global-norm clipping and the mask of `decay_mask`.

    `clip_norm=None` does not clip. `rate_scales` multiplies the learning rate, and with
    it the decay, of the parameters whose dotted names match a pattern of `*` and `?`:
    `{"embed*": 0.1}`; the first pattern that matches counts, and one that matches
    nothing is refused.
    """
    update = optax.adamw(
        schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=decay_mask
    )
    return _finished(update, clip_norm, rate_scales)


def lion(
    *,
    schedule: optax.ScalarOrSchedule,
    weight_decay: float = 1.0,
    clip_norm: float | None = 1.0,
    b1: float = 0.9,
    b2: float = 0.99,
    rate_scales: RateScales = None,
) -> optax.GradientTransformation:
    """Lion (arXiv:2302.06675): the sign of a momentum, one slot of state.

    Its rate is 3 to 10 times smaller than AdamW's, its decay as many times larger. The
    other arguments are those of `adamw`.
    """
    update = optax.lion(
        schedule, b1=b1, b2=b2, weight_decay=weight_decay, mask=decay_mask
    )
    return _finished(update, clip_norm, rate_scales)


def adafactor(
    *,
    schedule: optax.ScalarOrSchedule,
    weight_decay: float | None = None,
    clip_norm: float | None = 1.0,
    momentum: float | None = None,
    rate_scales: RateScales = None,
) -> optax.GradientTransformation:
    """Adafactor (arXiv:1804.04235): second moments of matrices by row and column.

    Updates are relative to the parameters' scale, as in the paper; `weight_decay` is
    applied to the masked parameters after it. The other arguments are those of `adamw`.
    """
    update = optax.adafactor(
        schedule,
        momentum=momentum,
        weight_decay_rate=weight_decay,
        weight_decay_mask=decay_mask,
    )
    return _finished(update, clip_norm, rate_scales)


def sgd(
    *,
    schedule: optax.ScalarOrSchedule,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    momentum: float | None = 0.9,
    nesterov: bool = False,
    rate_scales: RateScales = None,
) -> optax.GradientTransformation:
    """Gradient descent with momentum, its decay decoupled and masked as in `adamw`."""
    parts = [
        optax.trace(momentum, nesterov) if momentum else optax.identity(),
        optax.add_decayed_weights(weight_decay, decay_mask),
        optax.scale_by_learning_rate(schedule),
    ]
    return _finished(optax.chain(*parts), clip_norm, rate_scales)


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
    rate_scales: RateScales = None,
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
    update = optax.partition({"muon": matrices, "adam": rest}, _muon_or_adam)
    return _finished(update, clip_norm, rate_scales)


def _muon_or_adam(params: Any) -> Any:
    def label(path: tuple, leaf: Any) -> str:
        name = parameter_name(path)
        lookup = any(part.startswith(("embed", "head")) for part in name.split("."))
        hidden = leaf.ndim == 2 and _is_decayed(name) and not lookup
        return "muon" if hidden else "adam"

    return jax.tree_util.tree_map_with_path(label, params)


def _finished(
    update: optax.GradientTransformation,
    clip_norm: float | None,
    rate_scales: RateScales,
) -> optax.GradientTransformation:
    """Clipping before the update, scales by name behind it."""
    if clip_norm is not None and not clip_norm > 0:
        raise ConfigError(f"clip_norm must be positive or None, got {clip_norm}.")
    clip = [] if clip_norm is None else [optax.clip_by_global_norm(clip_norm)]
    scale = [_scaled_by_name(dict(rate_scales))] if rate_scales else []
    parts = [*clip, update, *scale]
    return parts[0] if len(parts) == 1 else optax.chain(*parts)


def _scaled_by_name(scales: dict[str, float]) -> optax.GradientTransformation:
    for pattern, scale in scales.items():
        if not (math.isfinite(scale) and scale >= 0):
            raise ConfigError(f"rate_scales[{pattern!r}] must be >= 0, got {scale}.")

    def init(params):
        flat, _ = jax.tree_util.tree_flatten_with_path(params)
        names = [parameter_name(path) for path, _ in flat]
        for pattern in scales:
            if not fnmatch.filter(names, pattern):
                raise ConfigError(
                    f"rate_scales: {pattern!r} matches no parameter; there are "
                    f"{', '.join(names[:8])}, ..."
                )
        return optax.EmptyState()

    def scaled(path: tuple, leaf: Any) -> Any:
        name = parameter_name(path)
        matching = (s for p, s in scales.items() if fnmatch.fnmatchcase(name, p))
        return leaf * next(matching, 1.0)

    def update(updates, state, params=None):
        return jax.tree_util.tree_map_with_path(scaled, updates), state

    return optax.GradientTransformation(init, update)
