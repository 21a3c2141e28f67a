"""Continues the parameters of a finished run on other data, at a lower rate.

What: `ssm_small`'s model from its newest checkpoint, 100 steps on text files, or on the
  library's character tables where none are given. Arrays whose name and shape both
  models have are taken over and the others start fresh; a larger vocabulary is a change
  of `model` with `init_resize`; `init_rules` renames and leaves out. With
  `huggingface=True`, `init_from` is a folder of a Mamba-2 or Llama in safetensors: its
  own model and tokenizer are taken (docs/exchange.md).
Hardware: two CPU cores, half a minute.
Expected: 0.91 bits per byte on the tables' held-out split (CPython 3.11.7).
Command: python -m roxxel.main --fdl_config='finetune(init_from="runs/ssm_small")'
"""

import fiddle as fdl

import roxxel
from configs import data, tags
from experiments.ssm_small import ssm_small
from roxxel import builders
from roxxel.errors import ConfigError
from roxxel.exchange import huggingface as hf
from roxxel.train.trainer import Trainer


@roxxel.experiment
def finetune(
    init_from: str = "runs/ssm_small",
    files: str | None = None,
    steps: int = 100,
    learning_rate: float = 2e-3,
    seed: int = 1,
    huggingface: bool = False,
) -> fdl.Config[Trainer]:
    """Starts from another run's parameters; `files` is a glob of texts."""
    config = ssm_small(
        steps=steps, learning_rate=learning_rate, evaluate_every=steps, seed=seed
    )
    config.init_from = init_from
    tokenizer = None
    if huggingface:
        if files is None:
            raise ConfigError(
                "finetune: huggingface=True needs files, a glob of texts."
            )
        tokenizer = init_from
        config.model = fdl.Partial(hf.model_of, folder=init_from)
        fdl.add_tag(config.model, "compute_dtype", tags.ComputeDtype)
        config.sample = None  # its prompt is bytes
    config.stream.dataset = _dataset(files, "train", tokenizer)
    config.evaluation.dataset = _dataset(files, "heldout", tokenizer)
    return config


def _dataset(
    files: str | None, split: str, tokenizer: str | None
) -> fdl.Config[roxxel.Roxxel]:
    if files is None:
        return fdl.Config(data.python_encodings, split=split)
    config = fdl.Config(
        builders.text_files, patterns=files, split=split, heldout_fraction=0.1
    )
    if tokenizer is not None:
        config.tokenizer = tokenizer
    return config
