"""Optimizers with decay masks; run lengths and schedules under the same name.

Optax does the arithmetic; this module fixes what is decayed and what gets which update.
"""

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
