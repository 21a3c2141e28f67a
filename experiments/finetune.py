"""Continues the parameters of a finished run on other data, at a lower rate.

What: `ssm_small`'s model from its newest checkpoint, 100 steps on text files, or on the
  library's character tables where none are given. Arrays whose name and shape both
  models have are taken over and the others start fresh, so a new head or a larger
  vocabulary is a change of `model`; `init_rules` renames and leaves out.
Hardware: two CPU cores, half a minute.
Expected: 0.91 bits per byte on the tables' held-out split (CPython 3.11.7).
Command: python -m roxxel.main --fdl_config='finetune(init_from="runs/ssm_small")'
"""

import fiddle as fdl

import roxxel
from configs import data
from experiments.ssm_small import ssm_small
from roxxel import builders
from roxxel.train.trainer import Trainer


@roxxel.experiment
def finetune(
    init_from: str = "runs/ssm_small",
    files: str | None = None,
    steps: int = 100,
    learning_rate: float = 2e-3,
    seed: int = 1,
) -> fdl.Config[Trainer]:
    """Starts from another run's parameters; `files` is a glob of texts."""
    config = ssm_small(
        steps=steps, learning_rate=learning_rate, evaluate_every=steps, seed=seed
    )
    config.init_from = init_from
    config.stream.dataset = _dataset(files, "train")
    config.evaluation.dataset = _dataset(files, "heldout")
    return config


def _dataset(files: str | None, split: str) -> fdl.Config[roxxel.Roxxel]:
    if files is None:
        return fdl.Config(data.python_encodings, split=split)
    return fdl.Config(
        builders.text_files, patterns=files, split=split, heldout_fraction=0.1
    )
