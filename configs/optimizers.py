"""Schedules and optimizers: one schedule node serves the optimizer and the metrics.

On a command line a whole optimizer is replaced by a fiddler, which keeps the schedule:
`--fiddler=adamw` or `--fiddler=muon`.
"""

import fiddle as fdl
import optax

from configs import tags
from roxxel import optim
from roxxel.budget import Length
from roxxel.schedules import Schedule


def warmup_cosine(
    total_steps: fdl.Buildable | int, peak: float = 1e-3, warmup: Length = 0.05
) -> fdl.Config[Schedule]:
    """Linear warm-up, then a cosine to a tenth; the peak is tagged LearningRate."""
    return _tagged(
        fdl.Config(
            optim.warmup_cosine,
            peak=peak,
            total_steps=total_steps,
            warmup=warmup,
        )
    )


def warmup_stable_decay(
    total_steps: fdl.Buildable | int, peak: float = 1e-3, decay: Length = 0.3
) -> fdl.Config[Schedule]:
    """Linear warm-up, a plateau, a linear decay; the peak is tagged LearningRate."""
    return _tagged(
        fdl.Config(
            optim.warmup_stable_decay,
            peak=peak,
            total_steps=total_steps,
            decay=decay,
        )
    )


def adamw(
    schedule: fdl.Buildable, weight_decay: float = 0.1
) -> fdl.Config[optax.GradientTransformation]:
    """AdamW as language models use it: betas 0.9 and 0.95, gradients clipped at 1."""
    return fdl.Config(optim.adamw, schedule=schedule, weight_decay=weight_decay)


def muon(
    schedule: fdl.Buildable, adam_scale: float = 2.0, weight_decay: float = 0.1
) -> fdl.Config[optax.GradientTransformation]:
    """Muon for matrices with AdamW for the rest, as `ssm_small` uses it."""
    return fdl.Config(
        optim.muon,
        schedule=schedule,
        adam_scale=adam_scale,
        weight_decay=weight_decay,
    )


def _tagged(schedule: fdl.Config) -> fdl.Config:
    fdl.add_tag(schedule, "peak", tags.LearningRate)
    return schedule
