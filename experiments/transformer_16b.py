"""A Transformer of the shape of Pax's 16 B example, on shards of 32 k tokens.

What: 16.7 G parameters (36 layers, width 6144, 48 heads), rows of 1,024 tokens, half a
  million tokens a step, 20 tokens a parameter (arXiv:2203.15556).
Hardware: 256 accelerators of 80 GB, about two weeks at 40 % of an A100's peak.
Expected: about 2.1 nats a token, by the fit of
  arXiv:2203.15556 for web text; not run here.
Command: python -m roxxel.main --fdl_config='transformer_16b(data="data/train_*.rox")'
Source: paxml, tasks/lm/params/c4.py, C4Spmd16BAdam32Replicas; SwiGLU of 8/3 of the
  width in place of its four times wider GELU, which has as many parameters.
"""

import fiddle as fdl
import jax.numpy as jnp

import roxxel
from configs import models, runtime
from roxxel.train.trainer import Trainer


@roxxel.experiment
def transformer_16b(
    data: str | None = None,
    heldout: str | None = None,
    vocab_size: int = 32_000,
    seq_len: int = 1024,
    batch_size: int = 512,
    tokens: int = 334_000_000_000,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """A Transformer with 16.7 G parameters, on shards of tokens."""
    model = models.transformer(
        d_model=6144,
        n_layers=36,
        n_heads=48,
        d_ff=16_384,
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
