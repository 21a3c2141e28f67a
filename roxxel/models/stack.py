"""Residual blocks one after another: rematerialised, scanned, sharded.

A block is called as `block(x_BLD, state, documents) -> (x_BLD, state)`.

Legend: B batch, L length, D d_model.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from roxxel.models.attention_kernels import SAVED_OUTPUT as ATTENTION_OUTPUT
from roxxel.models.documents import Documents
from roxxel.models.placement import Placement
from roxxel.models.remat import checkpoint_in_branch
from roxxel.models.ssd_chunk import SAVED_OUTPUT as SCAN_OUTPUT

Remat = Literal["none", "full", "dots", "scan"]

SAVED_OUTPUTS = (SCAN_OUTPUT, ATTENTION_OUTPUT)

_POLICIES = {
    # Only a block's inputs are kept for the backward pass.
    "full": jax.checkpoint_policies.nothing_saveable,
    # And the results of products with weights, which cost the most to compute again;
    # attention scores and the decays of a scan are computed again.
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    # And the outputs of the state space scan and of attention, which take long to
    # compute again; products with weights are computed again.
    "scan": jax.checkpoint_policies.save_only_these_names(*SAVED_OUTPUTS),
}

_GATHERED = "gathered_parameters"
# The backward pass gathers parameters again: kept, those of all blocks would be whole
# on every device at once.
_KEEP_CUT = jax.checkpoint_policies.save_anything_except_these_names(_GATHERED)


def check_remat(remat: str) -> None:
    """Raises ValueError where `remat` is no policy."""
    if remat != "none" and remat not in _POLICIES:
        names = ", ".join(repr(name) for name in ("none", *_POLICIES))
        raise ValueError(f"remat must be one of {names}, got {remat!r}.")


def run_blocks(
    blocks: Sequence[nnx.Module],
    x_BLD: jax.Array,
    states: Sequence[Any],
    documents: Documents,
    *,
    period: int = 1,
    remat: Remat = "none",
    scan_layers: bool = False,
    placement: Placement | None = None,
) -> tuple[jax.Array, tuple]:
    """The residual stream after all blocks, and each block's next state.

    Args:
      blocks: in order.
      x_BLD: the residual stream.
      states: one per block.
      documents: of the tokens.
      period: blocks that far apart have the same structure.
      remat: what the backward pass finds and what it computes again.
      scan_layers: run one compiled body per `period` blocks in a loop. The program
        then does not grow with the depth; the parameters are copied once a call. As
        many of the first blocks as do not fill a period run before the loop.
      placement: on a mesh that shards parameters.
    """
    call = functools.partial(_call, placement=placement, remat=remat)
    looped = len(blocks) // period if scan_layers else 0
    first = 0 if looped < 2 else len(blocks) % period
    first = first if looped > 1 else len(blocks)
    after = []
    for block, state in zip(blocks[:first], states[:first], strict=True):
        x_BLD, state = call(block, x_BLD, state, documents)
        after.append(state)
    if first < len(blocks):
        rest = (blocks[first:], states[first:])
        x_BLD, scanned = _scan(call, *rest, x_BLD, documents, period)
        after.extend(scanned)
    return x_BLD, tuple(after)


def _call(block, x, state, documents, *, placement, remat):
    """One block, under its policies."""
    if placement is None and remat == "none":
        return block(x, state, documents)
    graphdef, values = nnx.split(block)

    def run(values, x, state, documents):
        if placement is not None:
            values = checkpoint_name(placement.gathered(values), _GATHERED)
            x = placement.rows(x)
        x, state = nnx.merge(graphdef, values)(x, state, documents)
        return x if placement is None else placement.rows(x), state

    policy = _POLICIES.get(remat, _KEEP_CUT)
    platform = jax.default_backend() if placement is None else placement.platform
    checkpoint = checkpoint_in_branch if platform == "cpu" else jax.checkpoint
    return checkpoint(run, policy=policy)(values, x, state, documents)


def _scan(call: Callable, blocks, states, x, documents, period):
    """`blocks` in a loop over groups of `period`."""
    graphdefs = [nnx.graphdef(block) for block in blocks[:period]]
    groups = range(0, len(blocks), period)

    def stacked(trees):
        """One tree a place in the group, with a leading axis over the groups."""
        return tuple(
            jax.tree.map(lambda *v: jnp.stack(v), *(trees[g + place] for g in groups))
            for place in range(period)
        )

    def body(x, group):
        after = []
        for graphdef, values, state in zip(graphdefs, *group, strict=True):
            x, state = call(nnx.merge(graphdef, values), x, state, documents)
            after.append(state)
        return x, tuple(after)

    values = stacked([nnx.state(block) for block in blocks])
    x, after = jax.lax.scan(body, x, (values, stacked(states)))
    return x, [
        jax.tree.map(lambda v, g=g: v[g], after[place])
        for g in range(len(groups))
        for place in range(period)
    ]
