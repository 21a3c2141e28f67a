"""What the language models share: embedding, residual blocks, norm, head, states.

The residual stream, norms and logits are float32 whatever `compute_dtype` is.

Legend: B batch, L length, D d_model, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import documents, keys, layers, ssd, stack
from roxxel.models.modules import RMSNorm
from roxxel.models.placement import Cut, Placement, lookup

_EMBEDDING_STD = 0.02  # with a tied head the first loss is then the log of vocab_size


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelState:
    """What a sequence has left behind.

    Attributes:
      layers: per block a `mixer.MixerState` or an `attention.KVCache`; None for an
        attention block that was called without a state.
      segment_B: int32 id of the document of the last token.
      length: int32 scalar, tokens read.
      start_B: int32 index of the first token of the current document.
    """

    layers: tuple[Any, ...]
    segment_B: jax.Array
    length: jax.Array
    start_B: jax.Array


class LanguageModel(nnx.Module):
    """Embedding, blocks, norm and head; a subclass chooses the blocks.

    A block is called as `stack.run_blocks` says and has `init_state(batch_size,
    max_length)`, `emptied(state, where_B)` and `flops_per_token(seq_len)`.

    Args:
      vocab_size: number of token ids.
      d_model: width of the residual stream.
      make_blocks: makes the blocks from a source of keys.
      norm_eps: added to the mean square in every norm.
      tie_embeddings: the head is the embedding's transpose.
      separator_id: token that ends a document. Documents are then told from the
        tokens wherever no `segment_ids_BL` are given, and the state after a separator
        is empty. None: without segment ids a row is one document and former ones leak.
      pad_vocab_to: embedding and head get rows up to a multiple of this; logits,
        losses and `num_params` never show them.
      compute_dtype: in which activations and products compute.
      remat: what the backward pass of a block finds: "none" everything, "dots" the
        products with weights, "scan" the outputs of state space scans and attention,
        "full" only the block's inputs.
      scan_layers: run the blocks in a loop, see `stack.run_blocks`.
      period: blocks that far apart are alike.
      rngs: key source of the initial values.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        make_blocks: Callable[[keys.Source], list],
        norm_eps: float,
        tie_embeddings: bool,
        separator_id: int | None,
        pad_vocab_to: int,
        compute_dtype: jax.typing.DTypeLike,
        remat: stack.Remat,
        scan_layers: bool,
        period: int = 1,
        rngs: nnx.Rngs,
    ):
        check_sizes(vocab_size=vocab_size, d_model=d_model, pad_vocab_to=pad_vocab_to)
        stack.check_remat(remat)
        self.vocab_size, self.d_model = vocab_size, d_model
        self.separator_id, self.compute_dtype = separator_id, compute_dtype
        self.remat, self.scan_layers, self.period = remat, scan_layers, period
        self.placement: Placement | None = None
        shape = (vocab_size, d_model, -vocab_size % pad_vocab_to)
        source = keys.Keys(rngs)
        self.embedding = _embedding(source, *shape)
        self.head = None if tie_embeddings else _embedding(source, *shape)
        self.blocks = nnx.List(make_blocks(source))
        source.close()
        self.norm = RMSNorm(d_model, eps=norm_eps)

    def __call__(
        self,
        tokens_BL: jax.Array,
        *,
        segment_ids_BL: jax.Array | None = None,
        state: ModelState | None = None,
    ) -> tuple[jax.Array, ModelState]:
        """Logits `[B, L, V]` float32 and the state after the last token.

        Args:
          tokens_BL: int32 ids.
          segment_ids_BL: a change starts a new document, which sees nothing of the
            former; ids may be in any order.
          state: what came before; its document goes on where the first segment id
            equals the last one seen. None: nothing did, and attention blocks leave no
            cache; to go on after a prompt, pass `init_state` with it.
        """
        hidden_BLD, state = self.hidden(
            tokens_BL, segment_ids_BL=segment_ids_BL, state=state
        )
        return self.logits(hidden_BLD), state

    def hidden(
        self,
        tokens_BL: jax.Array,
        *,
        segment_ids_BL: jax.Array | None = None,
        state: ModelState | None = None,
        first_B: jax.Array | None = None,
    ) -> tuple[jax.Array, ModelState]:
        """What `logits` takes, `[B, L, D]` float32, and the state; see `__call__`.

        `first_B` says where each row's first token lies in this call, for rows of
        different lengths that end together: what is before it is padding, which
        nothing sees. Negative: the row began in a former call. Not together with
        segment ids.
        """
        batch, length = tokens_BL.shape
        runs_BL = self._runs(tokens_BL, segment_ids_BL, state)
        if first_B is not None:
            runs_BL = _padded_runs(runs_BL, first_B, length)
        before = None if state is None else (state.length, state.start_B)
        where = documents.locate(runs_BL, length, before)
        x_BLD, states = stack.run_blocks(
            self.blocks,
            self._embedded(tokens_BL),
            self._states(state),
            where,
            period=self.period,
            remat=self.remat,
            scan_layers=self.scan_layers,
            placement=self.placement,
        )
        segment_B = _last_segment(tokens_BL, segment_ids_BL, state)
        read = where.length + length
        start_B = jnp.broadcast_to(read - 1 - where.positions_BL[:, -1], (batch,))
        after = ModelState(
            layers=states, segment_B=segment_B, length=read, start_B=start_B
        )
        if segment_ids_BL is None and self.separator_id is not None:
            after = self._emptied(after, tokens_BL[:, -1] == self.separator_id)
        return self.norm(x_BLD), after

    def logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Logits `[B, L, V]` float32 of `hidden`'s result."""
        weight_DV = self.head_weight().T
        logits = layers.dense(hidden_BLD, weight_DV, self.compute_dtype, jnp.float32)
        return logits[..., : self.vocab_size]

    def head_weight(self) -> jax.Array:
        """The head, `[V, D]`, with the rows that pad the vocabulary last."""
        return self._in_use(self.embedding if self.head is None else self.head)

    def cut_sizes(self) -> list[Cut]:
        """What a mesh may cut."""
        rows = self.embedding.shape[0]
        return [Cut("vocab", "vocab_size, padded to pad_vocab_to,", rows)]

    def init_state(self, batch_size: int, max_length: int | None = None) -> ModelState:
        """The state before the first token.

        `max_length` is how many tokens will be read at most. It bounds the caches of
        attention blocks without a window, and only they need it: beyond it their
        logits are NaN.
        """
        zeros_B = jnp.zeros(batch_size, jnp.int32)
        return ModelState(
            layers=tuple(b.init_state(batch_size, max_length) for b in self.blocks),
            segment_B=zeros_B,
            length=jnp.int32(0),
            start_B=zeros_B,
        )

    def step(
        self,
        tokens_B: jax.Array,
        state: ModelState,
        *,
        segment_ids_B: jax.Array | None = None,
    ) -> tuple[jax.Array, ModelState]:
        """Logits `[B, V]` float32 after one more token, and the state after it."""
        segment_ids_BL = None if segment_ids_B is None else segment_ids_B[:, None]
        logits_BLV, state = self(
            tokens_B[:, None], segment_ids_BL=segment_ids_BL, state=state
        )
        return logits_BLV[:, 0], state

    def flops_per_token(self, seq_len: int) -> float:
        """Operations of a training step a token, forward and backward: 3 forwards.

        A forward pass is the sum of the blocks' terms, which their `flops_per_token`
        state, and `2 * D * V` of the head. A product of `[m, k]` and `[k, n]` counts
        `2 m k n`. Not counted: what remat computes again, what pads the vocabulary,
        and all that is no product (norms, exponentials, the optimizer).
        """
        check_sizes(seq_len=seq_len)
        blocks = sum(block.flops_per_token(seq_len) for block in self.blocks)
        return 3.0 * (blocks + 2.0 * self.d_model * self.vocab_size)

    def _embedded(self, tokens_BL):
        table_VD = self._in_use(self.embedding)
        if self.placement is None:
            return table_VD[tokens_BL]
        return lookup(self.placement, table_VD, tokens_BL)

    def _in_use(self, parameter):
        if self.placement is None:
            return parameter[...]
        return self.placement.gathered(parameter)[...]

    def _states(self, state):
        return (None,) * len(self.blocks) if state is None else state.layers

    def _runs(self, tokens_BL, segment_ids_BL, state):
        """Document number of each token, 0 continuing `state`; None: one document."""
        if segment_ids_BL is not None:
            before_B = None if state is None else state.segment_B
            return ssd.segment_runs(segment_ids_BL, before_B)
        if self.separator_id is None or tokens_BL.shape[1] == 1:
            return None  # a separator belongs to the document that it ends
        ends_BL = (tokens_BL == self.separator_id).astype(jnp.int32)
        return jnp.cumsum(ends_BL, axis=1) - ends_BL

    def _emptied(self, state, where_B):
        """`state` with the rows chosen by `where_B` as before a first token."""
        pairs = zip(self.blocks, state.layers, strict=True)
        return dataclasses.replace(
            state,
            layers=tuple(block.emptied(layer, where_B) for block, layer in pairs),
            start_B=jnp.where(where_B, state.length, state.start_B),
        )


def check_sizes(**sizes: int) -> None:
    """Raises ValueError where one of the named sizes is less than 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")


def num_params(model: nnx.Module) -> int:
    """Number of trainable values; a tied head counts once, a padded vocabulary not."""
    state = nnx.state(model, nnx.Param)
    total = sum(leaf.size for leaf in jax.tree.leaves(state))
    if not isinstance(model, LanguageModel):
        return total
    tables = [table for table in (model.embedding, model.head) if table is not None]
    return total - sum((t.shape[0] - model.vocab_size) * t.shape[1] for t in tables)


def _embedding(rngs, vocab_size, d_model, padding):
    shape = (vocab_size, d_model)
    table = _EMBEDDING_STD * jax.random.normal(rngs.params(), shape, jnp.float32)
    table = jnp.pad(table, [(0, padding), (0, 0)]) if padding else table
    return nnx.Param(table, logical_axes=("vocab", "embed"))


def _padded_runs(runs_BL, first_B, length):
    """Runs of rows whose tokens start at `first_B`; run 0 is padding, or goes on."""
    runs_BL = jnp.int32(0) if runs_BL is None else runs_BL
    begun_BL = jnp.arange(length) >= first_B[:, None]
    fresh_BL = (first_B >= 0).astype(jnp.int32)[:, None]
    return jnp.where(begun_BL, runs_BL + fresh_BL, 0)


def _last_segment(tokens_BL, segment_ids_BL, state):
    if segment_ids_BL is not None:
        return segment_ids_BL[:, -1].astype(jnp.int32)
    if state is not None:
        return state.segment_B
    return jnp.zeros(tokens_BL.shape[0], jnp.int32)
