"""The state space dual scan of Mamba-2 in chunks, with document resets.

    h_t = exp(a_t) h_{t-1} + x_t B_t^T        y_t = h_t C_t

`x` already carries its step size dt, and `a = dt * A <= 0` (Dao and Gu 2024,
arXiv:2405.21060, section 6). Everything here is float32 inside.

Legend: B batch, L length, H heads, P head width, G groups, N state, Q chunk length,
K chunks, W channels of one group (H * P / G; head h belongs to group h // (H / G)).

Document resets. Only runs of equal segment ids count, so ids may be in any order. A
step reads a former step of its chunk only within one run; what enters the state is
the run of the chunk's last step; the carried state is read only by the run that it
belongs to. Decays are masked before the exponential, never made very negative.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from roxxel.models import pieces, ssd_chunk

Form = Literal["scan", "parallel"]

# Of a chunk only its outputs are kept for the backward pass; the rest is cheap.
_keep_outputs = jax.checkpoint_policies.save_only_these_names(ssd_chunk.SAVED_OUTPUT)


def ssd_scan(
    x_BLHP: jax.Array,
    a_BLH: jax.Array,
    B_BLGN: jax.Array,
    C_BLGN: jax.Array,
    *,
    chunk_size: int,
    initial_state: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    previous_segment: jax.Array | None = None,
    form: Form = "scan",
) -> tuple[jax.Array, jax.Array]:
    """Outputs `[B, L, H, P]` and the state `[B, H, P, N]` after the last step.

    Args:
      x_BLHP: inputs, already multiplied by dt.
      a_BLH: log decays, dt * A, at most 0.
      B_BLGN: input projections of each group.
      C_BLGN: output projections of each group.
      chunk_size: steps handled as one matrix product; any length, also one that does
        not divide L or exceeds it. The result does not depend on it.
      initial_state: `[B, H, P, N]`, zero where None.
      segment_ids: `[B, L]` integers; a change starts a new document.
      previous_segment: `[B]` id that `initial_state` belongs to; None: that of the
        row's first step.
      form: "scan" walks over the chunks and computes each anew in the backward pass
        (little memory, best on CPU); "parallel" does all chunks at once.
    """
    check_form(form)
    _check_sizes(x_BLHP, B_BLGN, chunk_size)
    batch, length, heads, width = x_BLHP.shape
    groups, size = B_BLGN.shape[2:]
    x = x_BLHP.reshape(batch, length, groups, -1)
    x, a, b, c = (v.astype(jnp.float32) for v in (x, a_BLH, B_BLGN, C_BLGN))
    state = group_state(initial_state, (batch, heads, width, size), groups)
    runs_BL = None
    if segment_ids is not None:
        runs_BL = segment_runs(segment_ids, previous_segment)
    scan = functools.partial(
        scan_in_order if form == "scan" else scan_in_parallel,
        runs_BL=runs_BL,
        chunk_size=chunk_size,
    )
    y_BLGW, state = ssd_chunk.per_group(scan, state, x, a, b, c)
    return y_BLGW.reshape(x_BLHP.shape), head_state(state, heads)


def segment_runs(
    segment_ids: jax.Array, previous_segment: jax.Array | None = None
) -> jax.Array:
    """Number of document changes up to each step, `[B, L]` int32.

    Run 0 continues `previous_segment` (`[B]`; None: the row's first id).
    """
    if previous_segment is None:
        previous_segment = segment_ids[:, 0]
    before = jnp.concatenate([previous_segment[:, None], segment_ids[:, :-1]], axis=1)
    return jnp.cumsum(segment_ids != before, axis=1, dtype=jnp.int32)


def scan_chunks(
    body: Callable, carry: Any, inputs: Any, chunk_size: int
) -> tuple[Any, Any]:
    """`pieces.scan_pieces` over chunks, each computed anew in the backward pass.

    That takes its inputs, the carry, and the outputs of `ssd_chunk.scan_chunk`.
    """
    body = jax.checkpoint(body, policy=_keep_outputs)
    return pieces.scan_pieces(body, carry, inputs, chunk_size)


def scan_in_order(state_BNW, x_BLW, a_BLR, b_BLN, c_BLN, *, runs_BL, chunk_size):
    """The chunks of one group one after another."""

    def body(carry, piece):
        state, before = carry
        x, a, b, c, steps = piece
        runs = None if steps is None else ssd_chunk.Runs(steps, before)
        y, state = ssd_chunk.scan_chunk(state, x, a, b, c, runs)
        return (state, before if steps is None else steps[:, -1]), y

    carry = (state_BNW, jnp.zeros(x_BLW.shape[0], jnp.int32))
    inputs = (x_BLW, a_BLR, b_BLN, c_BLN, runs_BL)
    (state, _), y = scan_chunks(body, carry, inputs, chunk_size)
    return y, state


def scan_in_parallel(state_BNW, x_BLW, a_BLR, b_BLN, c_BLN, *, runs_BL, chunk_size):
    """All chunks of one group at once; only the states between them are in order."""
    length = x_BLW.shape[1]
    chunk = min(chunk_size, length)
    # Padded steps have a = 0 and x = 0: they keep the state and add nothing to it.
    split = lambda v: pieces.to_pieces(_padded(v, chunk, "constant"), chunk)  # noqa: E731
    x, a, b, c = (split(v) for v in (x_BLW, a_BLR, b_BLN, c_BLN))
    runs = None
    if runs_BL is not None:
        steps = pieces.to_pieces(_padded(runs_BL, chunk, "edge"), chunk)
        first = jnp.zeros_like(steps[:1, :, -1])
        runs = ssd_chunk.Runs(steps, jnp.concatenate([first, steps[:-1, :, -1]]))
    decays = jax.vmap(ssd_chunk.chunk_decays)(a, runs)
    entering = jax.vmap(ssd_chunk.into_state)(x, b, decays)

    def carry(state, chunk):
        decays, entering = chunk
        return ssd_chunk.carried(state, decays) + entering, state

    state, before = jax.lax.scan(carry, state_BNW, (decays, entering))
    y = jax.vmap(ssd_chunk.within_chunk)(x, b, c, decays, runs)
    y += jax.vmap(ssd_chunk.from_state)(before, c, decays)
    return pieces.from_pieces(y)[:, :length], state


def group_state(
    state_BHPN: jax.Array | None, shape: tuple[int, ...], groups: int
) -> jax.Array:
    """A state `[B, H, P, N]` (None: zeros of `shape`) as the scan's `[B, G, N, W]`."""
    batch, _, _, size = shape
    if state_BHPN is None:
        return jnp.zeros((batch, groups, size, shape[1] * shape[2] // groups))
    state = state_BHPN.astype(jnp.float32).reshape(batch, groups, -1, size)
    return jnp.swapaxes(state, 2, 3)


def head_state(state_BGNW: jax.Array, heads: int) -> jax.Array:
    """The scan's state as `[B, H, P, N]`."""
    batch, _, size, _ = state_BGNW.shape
    return jnp.swapaxes(state_BGNW, 2, 3).reshape(batch, heads, -1, size)


def check_form(form: str) -> None:
    """Raises ValueError where `form` is neither "scan" nor "parallel"."""
    if form not in ("scan", "parallel"):
        raise ValueError(f"form must be 'scan' or 'parallel', got {form!r}.")


def _check_sizes(x_BLHP, B_BLGN, chunk_size):
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")
    heads, groups = x_BLHP.shape[2], B_BLGN.shape[2]
    if heads % groups:
        raise ValueError(f"{heads} heads do not divide into {groups} groups.")


def _padded(array, chunk, mode):
    missing = -array.shape[1] % chunk
    if not missing:
        return array
    pads = [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2)
    return jnp.pad(array, pads, mode=mode)
