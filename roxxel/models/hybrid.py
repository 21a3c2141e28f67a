"""Hybrid language model: Mamba-2 and Transformer blocks in one stack.

Legend: B batch, L length, D d_model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import ssd, stack
from roxxel.models.attention import Choice
from roxxel.models.language_model import LanguageModel, check_sizes
from roxxel.models.modules import Activation
from roxxel.models.ssm import Mamba2Block
from roxxel.models.transformer import TransformerBlock


class HybridLM(LanguageModel):
    """Language model of Mamba-2 blocks (`M`) and Transformer blocks (`A`).

    Args:
      vocab_size: number of token ids.
      d_model: width of the residual stream.
      n_layers: blocks.
      pattern: letters of the blocks, repeated over the stack so that its last block
        is the pattern's last: "MMMA" over 6 layers is M A M M M A.
      n_heads, n_kv_heads, head_dim, d_ff, activation, rope_theta, qk_norm, window,
        bias, attention: of the Transformer blocks, as in `transformer.TransformerLM`.
      expand, state_dim, n_groups, conv_width, chunk_size, conv_bias, form, scan_lanes:
        of the Mamba-2 blocks, as in `ssm.Mamba2LM`.
      ssm_head_dim: channels of one head of a Mamba-2 block.
      tie_embeddings, norm_eps, separator_id, pad_vocab_to, compute_dtype, remat,
        scan_layers, rngs: as in `language_model.LanguageModel`.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        pattern: str = "MMMA",
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_ff: int | None = None,
        activation: Activation = jax.nn.silu,
        rope_theta: float = 10000.0,
        qk_norm: bool = False,
        window: int | None = None,
        bias: bool = False,
        attention: Choice = "auto",
        expand: int = 2,
        ssm_head_dim: int = 64,
        state_dim: int = 64,
        n_groups: int = 1,
        conv_width: int = 4,
        chunk_size: int = 64,
        conv_bias: bool = True,
        form: ssd.Form = "scan",
        scan_lanes: int = 1,
        norm_eps: float = 1e-5,
        tie_embeddings: bool = True,
        separator_id: int | None = None,
        pad_vocab_to: int = 1,
        compute_dtype: jax.typing.DTypeLike = jnp.float32,
        remat: stack.Remat = "none",
        scan_layers: bool = False,
        rngs: nnx.Rngs,
    ):
        check_sizes(n_layers=n_layers)
        common = {
            "d_model": d_model,
            "norm_eps": norm_eps,
            "out_scale": (2 * n_layers) ** -0.5,
            "dtype": compute_dtype,
        }

        def mamba(source):
            return Mamba2Block(
                expand=expand,
                head_dim=ssm_head_dim,
                state_dim=state_dim,
                n_groups=n_groups,
                conv_width=conv_width,
                chunk_size=chunk_size,
                conv_bias=conv_bias,
                form=form,
                scan_lanes=scan_lanes,
                **common,
                rngs=source,
            )

        def transformer(source):
            return TransformerBlock(
                n_heads=n_heads,
                n_kv_heads=n_kv_heads,
                head_dim=head_dim,
                d_ff=d_ff,
                activation=activation,
                rope_theta=rope_theta,
                qk_norm=qk_norm,
                window=window,
                bias=bias,
                attention=attention,
                **common,
                rngs=source,
            )

        makers = {"M": mamba, "A": transformer}
        kinds = block_kinds(pattern, n_layers)
        super().__init__(
            vocab_size=vocab_size,
            d_model=d_model,
            make_blocks=lambda source: [makers[kind](source) for kind in kinds],
            norm_eps=norm_eps,
            tie_embeddings=tie_embeddings,
            separator_id=separator_id,
            pad_vocab_to=pad_vocab_to,
            compute_dtype=compute_dtype,
            remat=remat,
            scan_layers=scan_layers,
            period=len(pattern),
            rngs=rngs,
        )


def block_kinds(pattern: str, n_layers: int) -> str:
    """The letter of each block: `pattern` repeated, ending with its end."""
    if not pattern or set(pattern) - set("MA"):
        raise ValueError(
            f"pattern must be letters M (Mamba-2) and A (attention), got {pattern!r}."
        )
    repeats = -(-n_layers // len(pattern))
    return (pattern * repeats)[-n_layers:]
