"""The main job with a hybrid: three Mamba-2 blocks, then one of attention.

What: 0.75 M parameters, trained with Muon on 5.7 M bytes of the interpreter's standard
  library: data, tokens and optimizer of `ssm_small`.
Hardware: two CPU cores, about ten minutes, 1 GB of memory.
Expected: near ssm_small's 1.58 bits per byte; not run in full here.
Command: python -m roxxel.main --fdl_config=experiments.hybrid_small
"""

import fiddle as fdl

import roxxel
from configs import tags
from experiments.ssm_small import ssm_small
from roxxel.models.hybrid import HybridLM
from roxxel.train.trainer import Trainer


@roxxel.experiment
def hybrid_small(
    d_model: int = 160,
    n_layers: int = 4,
    n_heads: int = 5,
    d_ff: int = 160,
    pattern: str = "MMMA",
    seq_len: int = 512,
    batch_size: int = 4,
    steps: int = 2800,
    learning_rate: float = 5e-3,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """Mamba-2 and attention in one stack, on the data and budget of `ssm_small`."""
    config = ssm_small(
        seq_len=seq_len,
        batch_size=batch_size,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    )
    config.model = fdl.Partial(
        HybridLM,
        vocab_size=256,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        d_ff=d_ff,
        pattern=pattern,
    )
    fdl.add_tag(config.model, "compute_dtype", tags.ComputeDtype)
    return config
