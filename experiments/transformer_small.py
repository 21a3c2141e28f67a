"""The main job with a Transformer: same data, tokens and optimizer as `ssm_small`.

What: 0.74 M parameters, trained with Muon on 5.7 M bytes of the interpreter's standard
  library, so that only the mixing of positions differs from `ssm_small`.
Hardware: two CPU cores, about ten minutes, 1 GB of memory.
Expected: 1.65 bits per byte after half of the steps on CPython 3.11.7's held-out split;
  not run to its end here.
Command: python -m roxxel.main --fdl_config=experiments.transformer_small
"""

import fiddle as fdl

import roxxel
from configs import tags
from experiments.ssm_small import ssm_small
from roxxel.models.transformer import TransformerLM
from roxxel.train.trainer import Trainer


@roxxel.experiment
def transformer_small(
    d_model: int = 128,
    n_layers: int = 4,
    n_heads: int = 4,
    d_ff: int = 288,
    seq_len: int = 512,
    batch_size: int = 4,
    steps: int = 2800,
    learning_rate: float = 5e-3,
    evaluate_every: int = 1400,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """A Transformer on the data and budget of `ssm_small`."""
    config = ssm_small(
        seq_len=seq_len,
        batch_size=batch_size,
        steps=steps,
        learning_rate=learning_rate,
        evaluate_every=evaluate_every,
        seed=seed,
    )
    config.model = fdl.Partial(
        TransformerLM,
        vocab_size=256,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        d_ff=d_ff,
        tie_embeddings=True,
    )
    fdl.add_tag(config.model, "compute_dtype", tags.ComputeDtype)
    return config
