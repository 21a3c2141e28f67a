"""Mamba-2 language model (Dao and Gu 2024, arXiv:2405.21060) in Flax NNX.

Pre-norm residual blocks around `mixer.Mamba2Mixer`. Decays, scan and its state are
float32 whatever `compute_dtype` is.

Legend: B batch, L length, D d_model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import mixer, ssd, stack
from roxxel.models.documents import Documents
from roxxel.models.language_model import LanguageModel, check_sizes
from roxxel.models.language_model import num_params as num_params
from roxxel.models.modules import RMSNorm


class Mamba2Block(nnx.Module):
    """Pre-norm residual block around a `Mamba2Mixer`."""

    def __init__(self, *, d_model: int, norm_eps: float, **mixer_options):
        self.norm = RMSNorm(d_model, eps=norm_eps)
        self.mixer = mixer.Mamba2Mixer(
            d_model=d_model, norm_eps=norm_eps, **mixer_options
        )

    def __call__(
        self, x_BLD: jax.Array, state: mixer.MixerState | None, documents: Documents
    ) -> tuple[jax.Array, mixer.MixerState]:
        """The residual stream after this block and the mixer's next state."""
        out_BLD, state = self.mixer(self.norm(x_BLD), state, documents.runs_BL)
        return x_BLD + out_BLD.astype(jnp.float32), state

    def init_state(self, batch_size: int, max_length: int | None) -> mixer.MixerState:
        """The state before the first token; its size does not grow with the length."""
        del max_length
        return self.mixer.init_state(batch_size)

    def emptied(self, state: mixer.MixerState, where_B: jax.Array) -> mixer.MixerState:
        """`state` with the rows chosen by `where_B` as before a first token."""

        def clear(array):
            chosen = where_B.reshape(where_B.shape + (1,) * (array.ndim - 1))
            return jnp.where(chosen, jnp.zeros_like(array), array)

        return jax.tree.map(clear, state)

    def flops_per_token(self, seq_len: int) -> float:
        """Forward: that of the mixer."""
        return self.mixer.flops_per_token(seq_len)


class Mamba2LM(LanguageModel):
    """Mamba-2 language model.

    Args:
      vocab_size: number of token ids.
      d_model: width of the residual stream.
      n_layers: blocks.
      expand: inner width over `d_model`.
      head_dim: channels of one head.
      state_dim: state per channel.
      n_groups: groups of heads that share B and C.
      conv_width: taps of the convolution.
      chunk_size: steps per chunk of the scan; changes speed, not results.
      conv_bias: whether the convolution has a bias.
      form: of the scan, see `ssd.ssd_scan`.
      scan_lanes: parts of the batch scanned independently of each other. On one CPU
        device each gets a core: 2 is 1.15 times faster there on two cores. A batch on
        a mesh, or one that it does not divide, is one part.
      tie_embeddings, norm_eps, separator_id, pad_vocab_to, compute_dtype, remat,
        scan_layers, rngs: as in `language_model.LanguageModel`.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        expand: int = 2,
        head_dim: int = 64,
        state_dim: int = 64,
        n_groups: int = 1,
        conv_width: int = 4,
        chunk_size: int = 64,
        tie_embeddings: bool = True,
        norm_eps: float = 1e-5,
        conv_bias: bool = True,
        form: ssd.Form = "scan",
        scan_lanes: int = 1,
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
                Mamba2Block(
                    d_model=d_model,
                    norm_eps=norm_eps,
                    expand=expand,
                    head_dim=head_dim,
                    state_dim=state_dim,
                    n_groups=n_groups,
                    conv_width=conv_width,
                    chunk_size=chunk_size,
                    conv_bias=conv_bias,
                    out_scale=(2 * n_layers) ** -0.5,
                    dtype=compute_dtype,
                    form=form,
                    scan_lanes=scan_lanes,
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
