"""One chunk of the state space dual scan, forward and by hand backward.

Legend: B batch, Q chunk length, H heads, P head width, G groups, N state, R heads of
one group, W = R * P channels of one group. All arrays are float32. Except for
`per_group`, all is about one group.

The backward pass is written out because it needs far fewer passes over memory than
the derivative of the forward pass: on CPU it makes the scan 1.7 times faster. The
gradient of the log decays comes from an identity instead of from the decay matrix:
every term of `y_l` carries `exp(+sum_l)` and every use of `x_s` carries
`exp(-sum_s)`, where `sum` is the running sum of the log decays, so its gradient is
`<dy, y> - <dx, x>` at each step, and that of the last sum has `<dstate, state>` too.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

# Name under which `jax.checkpoint` policies find the outputs of a chunk.
SAVED_OUTPUT = "ssd_chunk_output"

# exp(-64) is 1.6e-28, nothing beside any float32 that it is added to. The bound makes
# the cumulative sums of a chunk exact, see `_split_cumsum`.
_MIN_LOG_DECAY = -64.0

# Up to here a sum over heads is written out; beyond, the program would grow too long.
_UNROLLED_HEADS = 32

# The sums below must not be rounded to bfloat16, which is the default on TPU.
_exact_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class Runs(NamedTuple):
    """Document numbers: of each step `[B, Q]`, of the carried state `[B]`."""

    steps: jax.Array
    before: jax.Array


class Decays(NamedTuple):
    """Running sums of log decays, `[B, Q, R]` each, and the decays they give.

    `coarse + fine` is the running sum. `start` leads from the carried state to each
    step, `end` from each step to the chunk's last, `whole` `[B, R]` over the chunk.
    """

    coarse: jax.Array
    fine: jax.Array
    start: jax.Array
    end: jax.Array
    whole: jax.Array


def per_group(
    scan: Callable,
    state_BGNW: jax.Array,
    x_BQGW: jax.Array,
    a_BQH: jax.Array,
    b_BQGN: jax.Array,
    c_BQGN: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`scan(state_BNW, x_BQW, a_BQR, b_BQN, c_BQN)` for each group by itself.

    A single group loses its axis: with it, XLA's products on CPU copy their arguments.
    """
    groups = b_BQGN.shape[2]
    a_BQGR = a_BQH.reshape(*a_BQH.shape[:2], groups, -1)
    if groups > 1:
        scan = jax.vmap(scan, in_axes=(1, 2, 2, 2, 2), out_axes=(2, 1))
        return scan(state_BGNW, x_BQGW, a_BQGR, b_BQGN, c_BQGN)
    inputs = (array[:, :, 0] for array in (x_BQGW, a_BQGR, b_BQGN, c_BQGN))
    y_BQW, state_BNW = scan(state_BGNW[:, 0], *inputs)
    return y_BQW[:, :, None], state_BNW[:, None]


@jax.custom_vjp
def scan_chunk(
    state_BNW: jax.Array,
    x_BQW: jax.Array,
    a_BQR: jax.Array,
    b_BQN: jax.Array,
    c_BQN: jax.Array,
    runs: Runs | None,
) -> tuple[jax.Array, jax.Array]:
    """Outputs `[B, Q, W]` of one chunk of one group, and the state after it."""
    return _forward(state_BNW, x_BQW, a_BQR, b_BQN, c_BQN, runs)[0]


def _forward(state, x, a, b, c, runs):
    decays = chunk_decays(a, runs)
    y = within_chunk(x, b, c, decays, runs) + from_state(state, c, decays)
    y = checkpoint_name(y, SAVED_OUTPUT)
    after = carried(state, decays) + into_state(x, b, decays)
    return (y, after), (state, x, a, b, c, runs, y)


def _backward(residuals, cotangents):
    state, x, a, b, c, runs, y = residuals
    dy, dafter = cotangents
    heads = a.shape[-1]
    decays = chunk_decays(a, runs)
    dx_within, db, dc = _within_backward(x, b, c, dy, decays, runs)
    dread = dy * spread(decays.start, dy.shape)
    dc += jnp.einsum("blw,bnw->bln", dread, state)
    end = spread(decays.end, x.shape)
    db += jnp.einsum("bsw,bnw->bsn", x * end, dafter)
    dx_end = jnp.einsum("bsn,bnw->bsw", b, dafter) * end
    dx = dx_within + dx_end
    dstate = carried(dafter, decays) + jnp.einsum("bln,blw->bnw", c, dread)
    dsums = _sum_of_heads(dy * y - x * dx, heads)
    dlast = jnp.sum(_sum_of_heads(x * dx_end, heads), axis=1)
    dlast += decays.whole * jnp.sum(_sum_of_heads(state * dafter, heads), axis=1)
    da = _sum_steps("blr->bsr", dsums.at[:, -1].add(dlast), runs)
    return dstate, dx, jnp.where(a < _MIN_LOG_DECAY, 0.0, da), db, dc, None


scan_chunk.defvjp(_forward, _backward)


def chunk_decays(a_BQR: jax.Array, runs: Runs | None) -> Decays:
    """The decays of one chunk; 0 from one document to another."""
    coarse, fine = _split_cumsum(a_BQR, runs)
    start = coarse + fine
    end = (coarse[:, -1:] - coarse) + (fine[:, -1:] - fine)
    whole = start[:, -1]
    if runs is not None:
        last = runs.steps[:, -1:]
        start = _only(runs.steps == runs.before[:, None], start)
        end = _only(runs.steps == last, end)
        whole = _only(last[:, 0] == runs.before, whole)
    return Decays(coarse, fine, jnp.exp(start), jnp.exp(end), jnp.exp(whole))


def within_chunk(x, b, c, decays, runs):
    """What each step reads from the chunk itself, `[B, Q, W]`."""
    scores = jnp.einsum("bln,bsn->bls", c, b)[:, None]
    between = _between(decays, runs)
    x_heads = _by_head(x, between.shape[1])
    return _by_step(jnp.einsum("brls,brsp->brlp", scores * between, x_heads))


def from_state(state, c, decays):
    """What each step reads from the carried state, `[B, Q, W]`."""
    read = jnp.einsum("bln,bnw->blw", c, state)
    return read * spread(decays.start, read.shape)


def into_state(x, b, decays):
    """What the chunk adds to the state, `[B, N, W]`."""
    return jnp.einsum("bsn,bsw->bnw", b, x * spread(decays.end, x.shape))


def carried(state, decays):
    """The carried state decayed over the chunk."""
    batch, _, width = state.shape
    return state * spread(decays.whole, (batch, width))[:, None]


def spread(per_head: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One value per head as one per channel, in `shape` `[.., channels]`."""
    width = math.prod(shape) // per_head.size
    wide = jnp.broadcast_to(per_head[..., None], (*per_head.shape, width))
    return wide.reshape(shape)


def _within_backward(x, b, c, dy, decays, runs):
    """Gradients of `within_chunk` for x, b, c, by transposed matrices `[s, l]`."""
    scores_T = jnp.einsum("bsn,bln->bsl", b, c)[:, None]
    between_T = _between(decays, runs, transposed=True)
    heads = between_T.shape[1]
    x_heads, dy_heads = _by_head(x, heads), _by_head(dy, heads)
    dx = jnp.einsum("brsl,brlp->brsp", scores_T * between_T, dy_heads)
    dweights_T = jnp.einsum("brsp,brlp->brsl", x_heads, dy_heads)
    dscores_T = _sum_over_heads(dweights_T * between_T)
    db = jnp.einsum("bsl,bln->bsn", dscores_T, c)
    dc = jnp.einsum("bsl,bsn->bln", dscores_T, b)
    return _by_step(dx), db, dc


def _between(decays, runs, *, transposed=False):
    """Decay from step s to step l as `[B, R, l, s]`, or `[.., s, l]`; else 0.

    Masked before the exponential: above the diagonal it may overflow.
    """
    steps = np.arange(decays.coarse.shape[1])
    sign = -1.0 if transposed else 1.0

    def difference(sums):
        rows = jnp.moveaxis(sums, 1, -1)
        return sign * (rows[..., :, None] - rows[..., None, :])

    seen = sign * (steps[:, None] - steps) >= 0
    if runs is not None:
        seen = (seen & _same_document(runs))[:, None]
    log_decay = difference(decays.coarse) + difference(decays.fine)
    return jnp.exp(jnp.where(seen, log_decay, -jnp.inf))


def _split_cumsum(a, runs):
    """Sums over the steps of a document up to each, as a pair that does not cancel.

    The coarse part is on a grid on which the sums of a chunk are exact in float32;
    the fine part is tiny. So `coarse_l - coarse_s + fine_l - fine_s` is the sum over
    (s, l] to float32 accuracy also next to decays of any strength.
    """
    bits = 23 - math.ceil(math.log2(-_MIN_LOG_DECAY * a.shape[1]))
    a = jnp.maximum(a, _MIN_LOG_DECAY)
    coarse = jax.lax.stop_gradient(jnp.round(a * 2.0**bits) * 2.0**-bits)
    parts = (coarse, a - coarse)
    return tuple(_sum_steps("bsr->blr", part, runs) for part in parts)


def _sum_steps(axes, values, runs):
    """Sums of `[B, Q, R]` over pairs of steps s <= l of one document."""
    pairs = np.tril(np.ones((values.shape[1],) * 2, np.float32))
    if runs is None:
        return _exact_einsum("ls," + axes, pairs, values)
    return _exact_einsum(
        "bls," + axes, jnp.where(_same_document(runs), pairs, 0.0), values
    )


def _same_document(runs):
    return runs.steps[:, :, None] == runs.steps[:, None, :]


def _sum_over_heads(array_BRSL):
    """The sum over axis 1, term by term: XLA's reduction is 10 times slower on CPU."""
    heads = array_BRSL.shape[1]
    if heads > _UNROLLED_HEADS:
        return jnp.sum(array_BRSL, axis=1)
    return functools.reduce(operator.add, [array_BRSL[:, r] for r in range(heads)])


def _sum_of_heads(values_BQW, heads):
    """Sums over each head's channels, `[B, Q, R]`, as a product: faster on CPU."""
    width = values_BQW.shape[-1] // heads
    members = np.repeat(np.eye(heads, dtype=np.float32), width, axis=0)
    return _exact_einsum("bqw,wr->bqr", values_BQW, members)


def _by_head(array_BQW, heads):
    """`[B, Q, W]` as `[B, R, Q, P]`."""
    split = array_BQW.reshape(*array_BQW.shape[:2], heads, -1)
    return jnp.transpose(split, (0, 2, 1, 3))


def _by_step(array_BRQP):
    """`[B, R, Q, P]` as `[B, Q, W]`."""
    array = jnp.transpose(array_BRQP, (0, 2, 1, 3))
    return array.reshape(*array.shape[:2], -1)


def _only(mask, log_decay):
    return jnp.where(mask[..., None], log_decay, -jnp.inf)
