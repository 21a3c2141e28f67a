"""Llama-style Transformer language model in Flax NNX.

Pre-norm residual blocks of causal attention (rotary positions, grouped heads) and a
gated feed-forward part, both after a root mean square norm.

Legend: B batch, L length, D d_model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import keys, stack
from roxxel.models.attention import Attention, Choice, KVCache
from roxxel.models.documents import Documents
from roxxel.models.language_model import LanguageModel, check_sizes
from roxxel.models.modules import Activation, GatedMLP, RMSNorm, default_d_ff


class TransformerBlock(nnx.Module):
    """Attention, then the feed-forward part, each pre-norm and residual."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int | None,
        activation: Activation,
        norm_eps: float,
        bias: bool,
        out_scale: float,
        dtype: jax.typing.DTypeLike,
        rngs: keys.Source,
        **attention_options,
    ):
        options = {"bias": bias, "out_scale": out_scale, "dtype": dtype, "rngs": rngs}
        self.norm1 = RMSNorm(d_model, eps=norm_eps)
        self.attention = Attention(
            d_model=d_model, norm_eps=norm_eps, **options, **attention_options
        )
        self.norm2 = RMSNorm(d_model, eps=norm_eps)
        d_ff = default_d_ff(d_model) if d_ff is None else d_ff
        check_sizes(d_ff=d_ff)
        self.mlp = GatedMLP(
            d_model=d_model, d_ff=d_ff, activation=activation, **options
        )

    def __call__(
        self, x_BLD: jax.Array, cache: KVCache | None, documents: Documents
    ) -> tuple[jax.Array, KVCache | None]:
        """The residual stream after this block and the next cache."""
        out_BLD, cache = self.attention(self.norm1(x_BLD), cache, documents)
        x_BLD = x_BLD + out_BLD.astype(jnp.float32)
        out_BLD = self.mlp(self.norm2(x_BLD))
        return x_BLD + out_BLD.astype(jnp.float32), cache

    def init_state(self, batch_size: int, max_length: int | None) -> KVCache:
        """An empty cache, see `Attention.init_cache`."""
        return self.attention.init_cache(batch_size, max_length)

    def emptied(self, cache: KVCache | None, where_B: jax.Array):
        """`cache` itself: where a document starts says what of it is seen."""
        del where_B
        return cache

    def flops_per_token(self, seq_len: int) -> float:
        """Forward: attention and feed-forward part."""
        return self.attention.flops_per_token(seq_len) + self.mlp.flops_per_token()


class TransformerLM(LanguageModel):
    """Llama-style language model.

    Args:
      vocab_size: number of token ids.
      d_model: width of the residual stream.
      n_layers: blocks.
      n_heads: query heads.
      n_kv_heads: key and value heads, a divisor of `n_heads`; None: as many.
      head_dim: width of a head; None: `d_model / n_heads`.
      d_ff: inner width of the feed-forward part; None: 8/3 of `d_model`, up to a
        multiple of 64.
      activation: of the feed-forward part's gate; silu makes it SwiGLU.
      rope_theta: base of the rotary wave lengths.
      qk_norm: normalise queries and keys per head.
      window: tokens that a query sees at most, itself among them; None: all.
      bias: whether the projections have biases.
      attention: "auto" takes the platform's fused kernel where it fits (splash on TPU,
        cuDNN on GPU), "plain" never, "flash" or an error; see `attention_kernels`.
      tie_embeddings, norm_eps, separator_id, pad_vocab_to, compute_dtype, remat,
        scan_layers, rngs: as in `language_model.LanguageModel`.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_ff: int | None = None,
        activation: Activation = jax.nn.silu,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-5,
        qk_norm: bool = False,
        window: int | None = None,
        tie_embeddings: bool = False,
        bias: bool = False,
        attention: Choice = "auto",
        separator_id: int | None = None,
        pad_vocab_to: int = 1,
        compute_dtype: jax.typing.DTypeLike = jnp.float32,
        remat: stack.Remat = "none",
        scan_layers: bool = False,
        rngs: nnx.Rngs,
    ):
        check_sizes(n_layers=n_layers)

        def make_blocks(source):
            return [
                TransformerBlock(
                    d_model=d_model,
                    n_heads=n_heads,
                    n_kv_heads=n_kv_heads,
                    head_dim=head_dim,
                    d_ff=d_ff,
                    activation=activation,
                    rope_theta=rope_theta,
                    norm_eps=norm_eps,
                    qk_norm=qk_norm,
                    window=window,
                    bias=bias,
                    attention=attention,
                    out_scale=(2 * n_layers) ** -0.5,
                    dtype=compute_dtype,
                    rngs=source,
                )
                for _ in range(n_layers)
            ]

        super().__init__(
            vocab_size=vocab_size,
            d_model=d_model,
            make_blocks=make_blocks,
            norm_eps=norm_eps,
            tie_embeddings=tie_embeddings,
            separator_id=separator_id,
            pad_vocab_to=pad_vocab_to,
            compute_dtype=compute_dtype,
            remat=remat,
            scan_layers=scan_layers,
            rngs=rngs,
        )
