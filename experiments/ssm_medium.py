"""Mamba-2 370M on shards of GPT-NeoX tokens, as its authors trained it.

What: 368 M parameters (48 layers, width 1024, 128 states), rows of 2,048 tokens, half a
  million tokens a step, 20 tokens a parameter (Hoffmann et al. 2022, arXiv:2203.15556).
Hardware: 8 accelerators of 80 GB, about six hours at 40 % of an A100's peak.
Expected: about 2.9 nats a token, by the fit of
  arXiv:2203.15556 for web text; not run here.
Command: python -m roxxel.main --fdl_config='ssm_medium(data="data/train_*.rox")'
Source: Mamba-2 (arXiv:2405.21060), appendix; the rate is five times GPT-3's.
"""

import fiddle as fdl
import jax.numpy as jnp

import roxxel
from configs import models, runtime
from roxxel.train.trainer import Trainer


@roxxel.experiment
def ssm_medium(
    data: str | None = None,
    heldout: str | None = None,
    vocab_size: int = 50_288,
    seq_len: int = 2048,
    batch_size: int = 256,
    tokens: int = 7_400_000_000,
    learning_rate: float = 1.5e-3,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """Mamba-2 with 370 M parameters, on shards of tokens."""
    model = models.mamba2(
        "medium",
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
