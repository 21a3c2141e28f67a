"""`transformer_small` shrunk to under a minute: what `ssm_tiny` is to `ssm_small`.

What: 0.46 M parameters, windows of 128 bytes, 200 steps on the data of `ssm_tiny`.
Hardware: two CPU cores, about half a minute.
Expected: 2.69 bits per byte on CPython 3.11.7's held-out split.
Command: python -m roxxel.main --fdl_config=experiments.transformer_tiny
"""

import fiddle as fdl

import roxxel
from experiments.transformer_small import transformer_small
from roxxel.train.trainer import Trainer


@roxxel.experiment
def transformer_tiny(
    d_model: int = 128,
    n_layers: int = 2,
    n_heads: int = 4,
    d_ff: int = 384,
    seq_len: int = 128,
    batch_size: int = 8,
    steps: int = 200,
    learning_rate: float = 6e-3,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """A Transformer of 128-byte windows, 200 steps."""
    return transformer_small(
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        d_ff=d_ff,
        seq_len=seq_len,
        batch_size=batch_size,
        steps=steps,
        learning_rate=learning_rate,
        evaluate_every=100,
        seed=seed,
    )
