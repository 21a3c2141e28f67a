"""Can a model use its context? A task of copying or recall, trained from nothing.

What: the shape of `ssm_small`, or of `transformer_small` (`model="transformer"`), on a
  task of `roxxel.tasks`: induction, copying, selective_copying or associative_recall.
Hardware: two CPU cores, two minutes, 1 GB of memory.
Expected: after 250 steps with length=32 and vocab_size=32 (one core, a minute each):

  | accuracy of answers | chance | ssm  | transformer |
  |---------------------|--------|------|-------------|
  | induction           | 0.03   | 0.08 | 0.99        |
  | copying             | 0.03   | 0.06 | 1.00        |
  | selective_copying   | 0.03   | 0.08 | 0.94        |
  | associative_recall  | 0.06   | 0.36 | 0.48        |

Command: python -m roxxel.main --fdl_config='in_context(task="copying")'
"""

from typing import Literal

import fiddle as fdl

import roxxel
from configs import tags, tasks
from roxxel import optim
from roxxel.checkpoint import Checkpointer
from roxxel.models.ssm import Mamba2LM
from roxxel.models.transformer import TransformerLM
from roxxel.train.trainer import Trainer


@roxxel.experiment
def in_context(
    task: str = "associative_recall",
    model: Literal["ssm", "transformer"] = "ssm",
    length: int = 64,
    vocab_size: int = 64,
    batch_size: int = 32,
    steps: int = 1000,
    learning_rate: float = 5e-3,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """One in-context task; the accuracy of its answers is the score."""
    node = tasks.task(task, length, vocab_size)
    stream = tasks.stream(node, batch_size, seed)
    total_steps = fdl.Config(optim.total_steps, stream=stream, steps=steps)
    schedule = fdl.Config(
        optim.warmup_cosine, peak=learning_rate, total_steps=total_steps
    )
    config = fdl.Config(
        Trainer,
        model=_MODELS[model](vocab_size),
        optimizer=fdl.Config(
            optim.muon,
            schedule=schedule,
            adam_scale=2.0,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        stream=stream,
        total_steps=total_steps,
        schedule=schedule,
        evaluation=tasks.held_out(node, name=task, batch_size=batch_size, every="25%"),
        logger=fdl.Partial(roxxel.Logger, console_every=10),
        checkpointer=fdl.Partial(
            Checkpointer, best_metric=f"{task}_accuracy", best_mode="max"
        ),
        save_every=steps,
        seed=seed,
    )
    fdl.add_tag(schedule, "peak", tags.LearningRate)
    fdl.add_tag(config.model, "compute_dtype", tags.ComputeDtype)
    fdl.add_tag(config, "workdir", tags.WorkDir)
    fdl.add_tag(config, "seed", tags.Seed)
    return config


def _ssm(vocab_size: int) -> fdl.Partial[Mamba2LM]:
    return fdl.Partial(
        Mamba2LM, vocab_size=vocab_size, d_model=160, n_layers=4, state_dim=64
    )


def _transformer(vocab_size: int) -> fdl.Partial[TransformerLM]:
    return fdl.Partial(
        TransformerLM,
        vocab_size=vocab_size,
        d_model=128,
        n_layers=4,
        n_heads=4,
        d_ff=288,
        tie_embeddings=True,
    )


_MODELS = {"ssm": _ssm, "transformer": _transformer}
