"""Models by size or by shape: `--fdl.model=configs.models.transformer(d_model=256)`.

Each returns a `fdl.Partial`, which the trainer calls with `rngs=`. A size sets what is
not given; a shape without a size starts from "tiny".
Embedding and head are padded to multiples of 128 rows, which losses, logits and counts
never show. What is not among the arguments is set on the result, such as
`--fdl.model.qk_norm=True` or `--fdl.model.attention=plain`.

| size   | mamba2: layers x d_model | transformer: layers x d_model              |
|--------|--------------------------|--------------------------------------------|
| tiny   | 2 x 128                  | 2 x 128, 4 heads                           |
| small  | 24 x 768, 130 M          | 12 x 768, 12 heads, 124 M                  |
| medium | 48 x 1024, 370 M         | 24 x 1024, 16 heads, 350 M                 |
| 1b     | 48 x 2048, 1.3 B         | 16 x 2048, 32 heads, 8 of keys, 1.2 B      |
| 3b     | 64 x 2560, 2.7 B         | 28 x 3072, 24 heads, 8 of keys, 3.2 B      |
| 7b     | 64 x 4096, 7.2 B         | 32 x 4096, 32 heads, 6.7 B                 |

Sources: Mamba-2's published models (Dao and Gu 2024, arXiv:2405.21060) and, for 7b,
Mamba-Codestral-7B; GPT-3 small and medium (arXiv:2005.14165, table 2.1); Llama 3.2 1B
and 3B; Llama 2 7B (arXiv:2307.09288). Parameters with the vocabularies of the sources:
50,288, 50,257, 128,256 and 32,000.
"""

from typing import Any

import fiddle as fdl
import jax.numpy as jnp
from jax.typing import DTypeLike

from configs import tags
from roxxel.errors import ConfigError
from roxxel.models.hybrid import HybridLM
from roxxel.models.ssm import Mamba2LM
from roxxel.models.stack import Remat
from roxxel.models.transformer import TransformerLM

MAMBA2_SIZES: dict[str, dict[str, int]] = {
    "tiny": {"d_model": 128, "n_layers": 2, "state_dim": 32, "head_dim": 32},
    "small": {"d_model": 768, "n_layers": 24, "state_dim": 128},
    "medium": {"d_model": 1024, "n_layers": 48, "state_dim": 128},
    "1b": {"d_model": 2048, "n_layers": 48, "state_dim": 128},
    "3b": {"d_model": 2560, "n_layers": 64, "state_dim": 128},
    "7b": {"d_model": 4096, "n_layers": 64, "state_dim": 128, "n_groups": 8},
}

_LLAMA3 = {"rope_theta": 500_000.0, "tie_embeddings": True}
TRANSFORMER_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "n_layers": 2, "n_heads": 4},
    "small": {"d_model": 768, "n_layers": 12, "n_heads": 12, "tie_embeddings": True},
    "medium": {"d_model": 1024, "n_layers": 24, "n_heads": 16, "tie_embeddings": True},
    "1b": {"d_model": 2048, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8}
    | {"d_ff": 8192}
    | _LLAMA3,
    "3b": {"d_model": 3072, "n_layers": 28, "n_heads": 24, "n_kv_heads": 8}
    | {"d_ff": 8192}
    | _LLAMA3,
    "7b": {"d_model": 4096, "n_layers": 32, "n_heads": 32, "d_ff": 11008},
}


def mamba2(
    size: str | None = None,
    vocab_size: int = 256,
    d_model: int | None = None,
    n_layers: int | None = None,
    state_dim: int | None = None,
    head_dim: int | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: Remat = "none",
    scan_layers: bool = False,
) -> fdl.Partial[Mamba2LM]:
    """Mamba-2."""
    shape = _shape(MAMBA2_SIZES, size, "mamba2")
    given = {"d_model": d_model, "n_layers": n_layers}
    given |= {"state_dim": state_dim, "head_dim": head_dim}
    given |= {"compute_dtype": compute_dtype, "remat": remat}
    return _model(Mamba2LM, vocab_size, shape, given | {"scan_layers": scan_layers})


def transformer(
    size: str | None = None,
    vocab_size: int = 256,
    d_model: int | None = None,
    n_layers: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    d_ff: int | None = None,
    window: int | None = None,
    tie_embeddings: bool | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: Remat = "none",
    scan_layers: bool = False,
) -> fdl.Partial[TransformerLM]:
    """A Llama-style Transformer: RMS norm, rotary positions, SwiGLU."""
    shape = _shape(TRANSFORMER_SIZES, size, "transformer")
    given = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads}
    given |= {"n_kv_heads": n_kv_heads, "d_ff": d_ff, "window": window}
    given |= {"tie_embeddings": tie_embeddings}
    given |= {"compute_dtype": compute_dtype, "remat": remat}
    return _model(
        TransformerLM, vocab_size, shape, given | {"scan_layers": scan_layers}
    )


def hybrid(
    size: str | None = None,
    vocab_size: int = 256,
    d_model: int | None = None,
    n_layers: int | None = None,
    n_heads: int | None = None,
    d_ff: int | None = None,
    pattern: str = "MMMA",
    compute_dtype: DTypeLike = jnp.float32,
    remat: Remat = "none",
    scan_layers: bool = False,
) -> fdl.Partial[HybridLM]:
    """Mamba-2 and attention blocks in one stack; sizes as of Mamba-2."""
    ssm = _shape(MAMBA2_SIZES, size, "hybrid")
    shape = {"ssm_head_dim" if key == "head_dim" else key: ssm[key] for key in ssm}
    width = d_model or shape["d_model"]
    given = {"d_model": d_model, "n_layers": n_layers, "pattern": pattern}
    given["d_ff"] = d_ff
    given["n_heads"] = n_heads or max(1, width // 64)
    given |= {"compute_dtype": compute_dtype, "remat": remat}
    return _model(HybridLM, vocab_size, shape, given | {"scan_layers": scan_layers})


def _shape(
    sizes: dict[str, dict[str, Any]], size: str | None, name: str
) -> dict[str, Any]:
    if size is not None and size not in sizes:
        known = ", ".join(map(repr, sizes))
        raise ConfigError(f"configs.models.{name}: size is {size!r}, expected {known}.")
    return sizes[size or "tiny"]


def _model(
    cls: Any, vocab_size: int, shape: dict[str, Any], given: dict[str, Any]
) -> fdl.Partial:
    values = shape | {name: value for name, value in given.items() if value is not None}
    config = fdl.Partial(cls, vocab_size=vocab_size, pad_vocab_to=128, **values)
    fdl.add_tag(config, "compute_dtype", tags.ComputeDtype)
    return config
