"""`ssm_small` shrunk to under a minute, for tests and first tries.

What: 0.25 M parameters, windows of 128 bytes, 200 steps on the same data.
Hardware: two CPU cores, about half a minute.
Expected: 2.41 bits per byte on CPython 3.11.7's held-out split.
Command: python -m roxxel.main --fdl_config=experiments.ssm_tiny
"""

import fiddle as fdl

import roxxel
from experiments.ssm_small import ssm_small
from roxxel.train.trainer import Trainer


@roxxel.experiment
def ssm_tiny(
    d_model: int = 128,
    n_layers: int = 2,
    seq_len: int = 128,
    batch_size: int = 8,
    steps: int = 200,
    learning_rate: float = 6e-3,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """A quarter of a million parameters, 128-byte windows, 200 steps."""
    config = ssm_small(
        d_model=d_model,
        n_layers=n_layers,
        state_dim=32,
        seq_len=seq_len,
        batch_size=batch_size,
        steps=steps,
        learning_rate=learning_rate,
        evaluate_every=100,
        seed=seed,
    )
    config.model.head_dim = 32
    config.evaluation.batch_size = 64
    config.sample.num_tokens = 200
    return config
