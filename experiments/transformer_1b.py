"""A Transformer of the shape of Llama 3.2 1B, on shards of its tokens.

What: 1.24 G parameters (16 layers, width 2048, 32 heads with 8 of keys), rows of 4,096
  tokens, one million tokens a step, 20 tokens a parameter (arXiv:2203.15556).
Hardware: 32 accelerators of 80 GB, about a day at 40 % of an A100's peak.
Expected: about 2.5 nats a token, by the fit of
  arXiv:2203.15556 for web text; not run here.
Command: python -m roxxel.main --fdl_config='transformer_1b(data="data/train_*.rox")'
Source: the published configuration of Llama 3.2 1B; rate of arXiv:2407.21783.
"""

import fiddle as fdl
import jax.numpy as jnp

import roxxel
from configs import models, runtime
from roxxel.train.trainer import Trainer


@roxxel.experiment
def transformer_1b(
    data: str | None = None,
    heldout: str | None = None,
    vocab_size: int = 128_256,
    seq_len: int = 4096,
    batch_size: int = 256,
    tokens: int = 24_700_000_000,
    learning_rate: float = 3e-4,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """A Transformer with 1.2 G parameters, on shards of tokens."""
    model = models.transformer(
        "1b",
        vocab_size=vocab_size,
        compute_dtype=jnp.bfloat16,
        remat="full",
        scan_layers=True,
    )
    return runtime.pretraining(
        model,
        data=data,
        heldout=heldout,
        seq_len=seq_len,
        batch_size=batch_size,
        tokens=tokens,
        learning_rate=learning_rate,
        mesh_axes={"data": 1, "fsdp": -1},
        seed=seed,
    )
