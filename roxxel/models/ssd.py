"""The state space dual scan of Mamba-2: chunked, recurrent, with document resets.

    h_t = exp(a_t) h_{t-1} + x_t B_t^T        y_t = h_t C_t

`x` already carries its step size dt, and `a = dt * A <= 0` (Dao and Gu 2024,
arXiv:2405.21060, section 6). Everything here is float32 inside.

Legend: B batch, L length, H heads, P head width, G groups, N state, Q chunk length,
K chunks, R heads of one group (H = G * R; head h reads group h // R).

Document resets. Only runs of equal segment ids count, so ids may be in any order. A
step reads a former step of its chunk only within one run; what enters the state is
the run of the chunk's last step; the carried state is read only by the run that it
belongs to. Decays are masked before the exponential, never made very negative.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp

Form = Literal["scan", "parallel"]

# exp(-64) is 1.6e-28, nothing beside any float32 that it is added to. The bound makes
# the cumulative sums of a chunk exact, see `_split_cumsum`.
_MIN_LOG_DECAY = -64.0


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
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}.")
    if form not in ("scan", "parallel"):
        raise ValueError(f"form must be 'scan' or 'parallel', got {form!r}.")
    batch, length, heads, width = x_BLHP.shape
    groups, size = B_BLGN.shape[2:]
    if heads % groups:
        raise ValueError(f"{heads} heads do not divide into {groups} groups.")
    state = _group_state(initial_state, (batch, groups, heads // groups, width, size))
    runs_BL = None
    if segment_ids is not None:
        runs_BL = segment_runs(segment_ids, previous_segment)
    chunk = min(chunk_size, length)
    chunks = _chunked(x_BLHP, a_BLH, B_BLGN, C_BLGN, runs_BL, chunk)
    run = _scan_chunks if form == "scan" else _parallel_chunks
    y_KBQGRP, state = run(chunks, state)
    y_BLHP = jnp.moveaxis(y_KBQGRP, 0, 1).reshape(batch, -1, heads, width)
    return y_BLHP[:, :length], state.reshape(batch, heads, width, size)


def ssd_step(
    x_BHP: jax.Array,
    a_BH: jax.Array,
    B_BGN: jax.Array,
    C_BGN: jax.Array,
    state_BHPN: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One step of the recurrence: outputs `[B, H, P]` and the next state."""
    repeats = x_BHP.shape[1] // B_BGN.shape[1]
    B_BHN = jnp.repeat(B_BGN.astype(jnp.float32), repeats, axis=1)
    C_BHN = jnp.repeat(C_BGN.astype(jnp.float32), repeats, axis=1)
    entering = x_BHP.astype(jnp.float32)[..., None] * B_BHN[:, :, None, :]
    decay = jnp.exp(a_BH.astype(jnp.float32))[..., None, None]
    state = decay * state_BHPN + entering
    return jnp.sum(state * C_BHN[:, :, None, :], axis=-1), state


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


def _group_state(state, shape):
    if state is None:
        return jnp.zeros(shape, jnp.float32)
    return state.astype(jnp.float32).reshape(shape)


def _chunked(x, a, b, c, runs, chunk):
    """The arguments as float32 `[K, B, Q, ...]`; the tail is padded with x = a = 0."""
    batch, length, heads, _ = x.shape
    groups = b.shape[2]
    missing = -length % chunk

    def split(array, mode="constant"):
        if missing:
            pads = [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2)
            array = jnp.pad(array, pads, mode=mode)
        shape = (batch, -1, chunk, *array.shape[2:])
        return jnp.moveaxis(array.reshape(shape), 1, 0)

    x, a, b, c = (split(array.astype(jnp.float32)) for array in (x, a, b, c))
    x = x.reshape(*x.shape[:3], groups, heads // groups, -1)
    a = a.reshape(*a.shape[:3], groups, heads // groups)
    if runs is None:
        return x, a, b, c, None
    runs = split(runs, mode="edge")
    first = jnp.zeros_like(runs[:1, :, -1])
    return x, a, b, c, (runs, jnp.concatenate([first, runs[:-1, :, -1]]))


def _scan_chunks(chunks, state):
    """One chunk after the other; the backward pass computes each chunk again."""

    def body(state, chunk):
        decays = _chunk_decays(chunk[1], chunk[4])
        y = _within_chunk(chunk, decays) + _from_state(chunk, decays, state)
        return decays[3][..., None, None] * state + _into_state(chunk, decays), y

    state, y = jax.lax.scan(jax.checkpoint(body), state, chunks)
    return y, state


def _parallel_chunks(chunks, state):
    """All chunks at once; only the states between chunks are sequential."""
    decays = jax.vmap(_chunk_decays)(chunks[1], chunks[4])
    entering = jax.vmap(_into_state)(chunks, decays)

    def carry(state, chunk):
        decay, entering = chunk
        return decay[..., None, None] * state + entering, state

    state, before = jax.lax.scan(carry, state, (decays[3], entering))
    y = jax.vmap(_within_chunk)(chunks, decays)
    return y + jax.vmap(_from_state)(chunks, decays, before), state


def _chunk_decays(a, runs):
    """Decays of one chunk, a `[B, Q, G, R]`.

    Returns: between steps `[B, G, R, Q, Q]` (0 above the diagonal and across
    documents), from the carried state to each step and from each step to the end
    `[B, Q, G, R]`, over the whole chunk `[B, G, R]`.
    """
    chunk = a.shape[1]
    coarse, fine = _split_cumsum(a)
    rows, columns = jnp.moveaxis(coarse, 1, -1), jnp.moveaxis(fine, 1, -1)
    log_between = (rows[..., :, None] - rows[..., None, :]) + (
        columns[..., :, None] - columns[..., None, :]
    )
    seen = jnp.tril(jnp.ones((chunk, chunk), bool))
    log_start = coarse + fine
    log_end = (coarse[:, -1:] - coarse) + (fine[:, -1:] - fine)
    log_whole = log_start[:, -1]
    if runs is not None:
        run, before = runs
        seen = seen & (run[:, :, None] == run[:, None, :])[:, None, None]
        log_start = _only(run == before[:, None], log_start)
        log_end = _only(run == run[:, -1:], log_end)
        log_whole = _only(run[:, -1] == before, log_whole)
    between = jnp.exp(jnp.where(seen, log_between, -jnp.inf))
    return between, jnp.exp(log_start), jnp.exp(log_end), jnp.exp(log_whole)


def _only(mask, log_decay):
    missing = log_decay.ndim - mask.ndim
    return jnp.where(mask.reshape(mask.shape + (1,) * missing), log_decay, -jnp.inf)


def _split_cumsum(a):
    """Cumulative sums over axis 1 as a pair whose differences do not cancel.

    The coarse part is on a grid on which the sums of a chunk are exact in float32;
    the fine part is tiny. So `coarse_l - coarse_s + fine_l - fine_s` is the sum over
    (s, l] to float32 accuracy also next to decays of any strength.
    """
    a = jnp.maximum(a, _MIN_LOG_DECAY)
    bits = 23 - math.ceil(math.log2(-_MIN_LOG_DECAY * a.shape[1]))
    coarse = jax.lax.stop_gradient(jnp.round(a * 2.0**bits) * 2.0**-bits)
    return jnp.cumsum(coarse, axis=1), jnp.cumsum(a - coarse, axis=1)


def _within_chunk(chunk, decays):
    x, _, b, c, _ = chunk
    scores = jnp.einsum("blgn,bsgn->bgls", c, b)
    weights = scores[:, :, None] * decays[0]
    return jnp.einsum("bgrls,bsgrp->blgrp", weights, x)


def _from_state(chunk, decays, state):
    read = jnp.einsum("blgn,bgrpn->blgrp", chunk[3], state)
    return read * decays[1][..., None]


def _into_state(chunk, decays):
    return jnp.einsum("bsgrp,bsgn->bgrpn", chunk[0] * decays[2][..., None], chunk[2])
