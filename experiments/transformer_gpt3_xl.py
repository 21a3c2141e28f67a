"""A Transformer of the width and depth of GPT-3 XL, on shards of GPT-2 tokens.

What: 1.3 G parameters (24 layers, width 2048), rows of 2,048 tokens, one million
  tokens a step, 20 tokens a parameter (arXiv:2203.15556). Its parts are Llama's (RMS
  norm, rotary positions, SwiGLU of 8/3 of the width, which has the parameters of
  GPT-3's four times wider GELU).
Hardware: 16 accelerators of 80 GB, about two days at 40 % of an A100's peak.
Expected: about 2.5 nats a token, by the fit of
  arXiv:2203.15556 for web text; not run here.
Command: python -m roxxel.main --fdl_config="transformer_gpt3_xl(data='train_*.rox')"
Source: Brown et al. 2020 (arXiv:2005.14165), table 2.1, whose 24 heads of 128 do not
  make 2048; these are 16 heads of 128. GPT-2 has 50,257 tokens; 50,304 is a multiple
  of 128.
"""

import fiddle as fdl
import jax.numpy as jnp

import roxxel
from configs import models, runtime
from roxxel.train.trainer import Trainer


@roxxel.experiment
def transformer_gpt3_xl(
    data: str | None = None,
    heldout: str | None = None,
    vocab_size: int = 50_304,
    seq_len: int = 2048,
    batch_size: int = 512,
    tokens: int = 26_300_000_000,
    learning_rate: float = 2e-4,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """A Transformer of GPT-3 XL's width and depth, on shards of tokens."""
    model = models.transformer(
        d_model=2048,
        n_layers=24,
        n_heads=16,
        tie_embeddings=True,
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
