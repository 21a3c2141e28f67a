"""Mamba-2 language model (Dao and Gu 2024, arXiv:2405.21060) in Flax NNX.

Embedding, pre-norm residual blocks around `mixer.Mamba2Mixer`, norm, head. The
residual stream, norms, decays, scan and its state are float32 whatever `dtype` is.

Legend: B batch, L length, D d_model, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import layers, mixer, ssd

_EMBEDDING_STD = 0.02  # with a tied head the first loss is then the log of vocab_size


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba2State:
    """What a sequence has left behind; its size does not grow with the length.

    `layers`: per block a `mixer.MixerState`. `segment_B`: int32 id of its document.
    """

    layers: tuple[mixer.MixerState, ...]
    segment_B: jax.Array


class Mamba2Block(nnx.Module):
    """Pre-norm residual block around a `Mamba2Mixer`."""

    def __init__(self, *, d_model: int, norm_eps: float, **mixer_options):
        self.norm = mixer.RMSNorm(d_model, eps=norm_eps)
        self.mixer = mixer.Mamba2Mixer(
            d_model=d_model, norm_eps=norm_eps, **mixer_options
        )

    def __call__(
        self,
        x_BLD: jax.Array,
        state: mixer.MixerState | None = None,
        runs_BL: jax.Array | None = None,
    ) -> tuple[jax.Array, mixer.MixerState]:
        """The residual stream after this block and the mixer's next state."""
        out_BLD, state = self.mixer(self.norm(x_BLD), state, runs_BL)
        return x_BLD + out_BLD.astype(jnp.float32), state


class Mamba2LM(nnx.Module):
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
      tie_embeddings: the head is the embedding's transpose.
      norm_eps: added to the mean square in every norm.
      conv_bias: whether the convolution has a bias.
      dtype: in which the projections compute.
      form: of the scan, see `ssd.ssd_scan`.
      scan_lanes: parts of the batch scanned independently of each other. On one CPU
        device each gets a core: 2 is 1.15 times faster there on two cores. Leave it at
        1 where the batch is sharded. A batch that it does not divide is one part.
      remat: compute each block again in the backward pass, to save memory.
      separator_id: token that ends a document. Documents are then told from the
        tokens wherever no `segment_ids_BL` are given, and the state after a separator
        is empty. None: without segment ids a row is one document and former ones leak.
      rngs: key source of the initial values.
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
        dtype: jax.typing.DTypeLike = jnp.float32,
        form: ssd.Form = "scan",
        scan_lanes: int = 1,
        remat: bool = False,
        separator_id: int | None = None,
        rngs: nnx.Rngs,
    ):
        _check_sizes(
            vocab_size=vocab_size,
            d_model=d_model,
            n_layers=n_layers,
            expand=expand,
            head_dim=head_dim,
            state_dim=state_dim,
            n_groups=n_groups,
            conv_width=conv_width,
            chunk_size=chunk_size,
        )
        self.vocab_size = vocab_size
        self.dtype, self.remat, self.separator_id = dtype, remat, separator_id
        self.embedding = nnx.Param(_init_embedding(rngs, vocab_size, d_model))
        head = None if tie_embeddings else _init_embedding(rngs, vocab_size, d_model)
        self.head = None if head is None else nnx.Param(head)
        self.blocks = nnx.List(
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
                dtype=dtype,
                form=form,
                scan_lanes=scan_lanes,
                rngs=rngs,
            )
            for _ in range(n_layers)
        )
        self.norm = mixer.RMSNorm(d_model, eps=norm_eps)

    def __call__(
        self,
        tokens_BL: jax.Array,
        *,
        segment_ids_BL: jax.Array | None = None,
        state: Mamba2State | None = None,
    ) -> tuple[jax.Array, Mamba2State]:
        """Logits `[B, L, V]` float32 and the state after the last token.

        Args:
          tokens_BL: int32 ids.
          segment_ids_BL: a change starts a new document, which sees nothing of the
            former; ids may be in any order.
          state: what came before; its document goes on where the first segment id
            equals the last one seen. None: nothing did.
        """
        runs_BL = self._runs(tokens_BL, segment_ids_BL, state)
        x_BLD = self.embedding[...][tokens_BL]
        call = nnx.remat(Mamba2Block.__call__) if self.remat else Mamba2Block.__call__
        states = []
        for index, block in enumerate(self.blocks):
            before = None if state is None else state.layers[index]
            x_BLD, after = call(block, x_BLD, before, runs_BL)
            states.append(after)
        segment_B = _last_segment(tokens_BL, segment_ids_BL, state)
        state = Mamba2State(layers=tuple(states), segment_B=segment_B)
        if segment_ids_BL is None and self.separator_id is not None:
            state = _emptied(state, tokens_BL[:, -1] == self.separator_id)
        return self._logits(x_BLD), state

    def init_state(self, batch_size: int) -> Mamba2State:
        """The state before the first token."""
        return Mamba2State(
            layers=tuple(block.mixer.init_state(batch_size) for block in self.blocks),
            segment_B=jnp.zeros(batch_size, jnp.int32),
        )

    def step(
        self,
        tokens_B: jax.Array,
        state: Mamba2State,
        *,
        segment_ids_B: jax.Array | None = None,
    ) -> tuple[jax.Array, Mamba2State]:
        """Logits `[B, V]` float32 after one more token, and the state after it.

        The recurrent form: a chunk of one step, so it costs the same at any position.
        """
        segment_ids_BL = None if segment_ids_B is None else segment_ids_B[:, None]
        logits_BLV, state = self(
            tokens_B[:, None], segment_ids_BL=segment_ids_BL, state=state
        )
        return logits_BLV[:, 0], state

    def _logits(self, x_BLD):
        weight_VD = (self.embedding if self.head is None else self.head)[...]
        x_BLD = self.norm(x_BLD)
        return layers.dense(x_BLD, weight_VD.T, self.dtype).astype(jnp.float32)

    def _runs(self, tokens_BL, segment_ids_BL, state):
        """Document number of each token, 0 continuing `state`; None: one document."""
        if segment_ids_BL is not None:
            before_B = None if state is None else state.segment_B
            return ssd.segment_runs(segment_ids_BL, before_B)
        if self.separator_id is None:
            return None
        ends_BL = (tokens_BL == self.separator_id).astype(jnp.int32)
        return jnp.cumsum(ends_BL, axis=1) - ends_BL


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")


def num_params(model: nnx.Module) -> int:
    """Number of trainable values; a tied head counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def _init_embedding(rngs, vocab_size, d_model):
    shape = (vocab_size, d_model)
    return _EMBEDDING_STD * jax.random.normal(rngs.params(), shape, jnp.float32)


def _last_segment(tokens_BL, segment_ids_BL, state):
    if segment_ids_BL is not None:
        return segment_ids_BL[:, -1].astype(jnp.int32)
    if state is not None:
        return state.segment_B
    return jnp.zeros(tokens_BL.shape[0], jnp.int32)


def _emptied(state, where_B):
    """`state` with the rows chosen by `where_B` as before a first token."""

    def clear(array):
        chosen = where_B.reshape(where_B.shape + (1,) * (array.ndim - 1))
        return jnp.where(chosen, jnp.zeros_like(array), array)

    return dataclasses.replace(state, layers=jax.tree.map(clear, state.layers))
