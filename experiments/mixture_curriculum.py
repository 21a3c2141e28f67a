"""Two data sets in a mixture whose rows grow: a curriculum in three phases.

What: `ssm_small`'s model on the library's sources and its character tables. A quarter
  of the run in rows of 128 bytes with a third tables, a quarter in rows of 256, half in
  rows of 512 with one part in twenty; 2,048 bytes a step throughout.
Hardware: two CPU cores, about nine minutes, 1 GB of memory.
Expected: near ssm_small's 1.58 bits per byte on the sources' held-out split; not run in
  full here.
Command: python -m roxxel.main --fdl_config=experiments.mixture_curriculum
"""

import fiddle as fdl

import roxxel
from configs import data, tags
from experiments.ssm_small import ssm_small
from roxxel.data.mixture_stream import MixtureStream
from roxxel.data.phases import Phase
from roxxel.train.trainer import Trainer


@roxxel.experiment
def mixture_curriculum(
    steps: int = 2800,
    tokens_per_step: int = 2048,
    learning_rate: float = 5e-3,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """Sources and tables, in rows of 128, 256 and 512 bytes."""
    config = ssm_small(learning_rate=learning_rate, seed=seed)
    stream = fdl.Config(
        MixtureStream,
        mix={
            "sources": config.stream.dataset,
            "tables": fdl.Config(data.python_encodings, split="train"),
        },
        phases=[
            _phase(steps // 4, 128, tokens_per_step, tables=1 / 3),
            _phase(steps // 4, 256, tokens_per_step, tables=0.1),
            _phase(steps - 2 * (steps // 4), 512, tokens_per_step, tables=0.05),
        ],
        overlap=1,
        seed=seed,
    )
    fdl.add_tag(stream, "seed", tags.Seed)
    config.stream = stream
    config.total_steps.stream = stream
    config.total_steps.steps = None  # the phases say how long it is
    return config


def _phase(
    steps: int, seq_len: int, tokens_per_step: int, *, tables: float
) -> fdl.Config[Phase]:
    phase = fdl.Config(
        Phase,
        steps=steps,
        seq_len=seq_len,
        batch_size=tokens_per_step // seq_len,
        weights={"sources": 1 - tables, "tables": tables},
    )
    fdl.add_tag(phase, "seq_len", tags.SeqLen)
    fdl.add_tag(phase, "batch_size", tags.BatchSize)
    return phase
