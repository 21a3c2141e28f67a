"""One chunk of the state space dual scan, forward and by hand backward.

Legend: B batch, Q chunk length, H heads, P head width, G groups, N state, R heads of
one group, W = R * P channels of one group. All arrays are float32.

The backward pass is written out because it needs far fewer passes over memory than
the derivative of the forward pass: on CPU it makes the scan 1.7 times faster. The
gradient of the log decays comes from an identity instead of from the decay matrix:
every term of `y_l` carries `exp(+sum_l)` and every use of `x_s` carries
`exp(-sum_s)`, where `sum` is the running sum of the log decays, so its gradient is
`<dy, y> - <dx, x>` at each step, and that of the last sum has `<dstate, state>` too.
"""

import functools
import math
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

# The sums below must not be rounded to bfloat16, which is the default on TPU.
_exact_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class Runs(NamedTuple):
    """Document numbers: of each step `[B, Q]`, of the carried state `[B]`."""

    steps: jax.Array
    before: jax.Array


class Decays(NamedTuple):
    """Running sums of log decays, `[B, Q, H]` each, and the decays they give.

    `coarse + fine` is the running sum. `start` leads from the carried state to each
    step, `end` from each step to the chunk's last, `whole` `[B, H]` over the chunk.
    """

    coarse: jax.Array
    fine: jax.Array
    start: jax.Array
    end: jax.Array
    whole: jax.Array


@jax.custom_vjp
def scan_chunk(
    state_BGNW: jax.Array,
    x_BQGW: jax.Array,
    a_BQH: jax.Array,
    b_BQGN: jax.Array,
    c_BQGN: jax.Array,
    runs: Runs | None,
) -> tuple[jax.Array, jax.Array]:
    """Outputs `[B, Q, G, W]` of one chunk and the state `[B, G, N, W]` after it."""
    return _forward(state_BGNW, x_BQGW, a_BQH, b_BQGN, c_BQGN, runs)[0]


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
    dc += jnp.einsum("blgw,bgnw->blgn", dread, state)
    end = spread(decays.end, x.shape)
    db += jnp.einsum("bsgw,bgnw->bsgn", x * end, dafter)
    dx_end = jnp.einsum("bsgn,bgnw->bsgw", b, dafter) * end
    dx = dx_within + dx_end
    dstate = carried(dafter, decays) + jnp.einsum("blgn,blgw->bgnw", c, dread)
    dsums = _sum_of_heads(dy * y - x * dx, heads)
    dlast = jnp.sum(_sum_of_heads(x * dx_end, heads), axis=1)
    dlast += decays.whole * _state_product(state, dafter, heads)
    da = _reverse_cumsum(dsums.at[:, -1].add(dlast), runs)
    return dstate, dx, jnp.where(a < _MIN_LOG_DECAY, 0.0, da), db, dc, None


scan_chunk.defvjp(_forward, _backward)


def chunk_decays(a_BQH: jax.Array, runs: Runs | None) -> Decays:
    """The decays of one chunk; 0 from one document to another."""
    coarse, fine = _split_cumsum(a_BQH, runs)
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
    """What each step reads from the chunk itself, `[B, Q, G, W]`."""
    scores_BGQQ = jnp.einsum("blgn,bsgn->bgls", c, b)
    between = _between(decays, runs, groups=b.shape[2])
    x_heads = _by_head(x, between.shape[2])
    y = jnp.einsum("bgrls,bgrsp->bgrlp", scores_BGQQ[:, :, None] * between, x_heads)
    return _by_step(y)


def from_state(state, c, decays):
    """What each step reads from the carried state, `[B, Q, G, W]`."""
    read = jnp.einsum("blgn,bgnw->blgw", c, state)
    return read * spread(decays.start, read.shape)


def into_state(x, b, decays):
    """What the chunk adds to the state, `[B, G, N, W]`."""
    return jnp.einsum("bsgn,bsgw->bgnw", b, x * spread(decays.end, x.shape))


def carried(state, decays):
    """The carried state decayed over the chunk."""
    batch, groups, _, width = state.shape
    return state * spread(decays.whole, (batch, groups, width))[:, :, None]


def _within_backward(x, b, c, dy, decays, runs):
    """Gradients of `within_chunk` for x, b, c, by transposed matrices `[s, l]`."""
    scores_T = jnp.einsum("bsgn,blgn->bgsl", b, c)[:, :, None]
    between_T = _between(decays, runs, groups=b.shape[2], transposed=True)
    heads = between_T.shape[2]
    x_heads, dy_heads = _by_head(x, heads), _by_head(dy, heads)
    dx = jnp.einsum("bgrsl,bgrlp->bgrsp", scores_T * between_T, dy_heads)
    dweights_T = jnp.einsum("bgrsp,bgrlp->bgrsl", x_heads, dy_heads)
    dscores_T = jnp.sum(dweights_T * between_T, axis=2)
    db = jnp.einsum("bgsl,blgn->bsgn", dscores_T, c)
    dc = jnp.einsum("bgsl,bsgn->blgn", dscores_T, b)
    return _by_step(dx), db, dc


def _between(decays, runs, *, groups, transposed=False):
    """Decay from step s to step l as `[B, G, R, l, s]`, or `[.., s, l]`; else 0.

    Masked before the exponential: above the diagonal it may overflow.
    """
    length = decays.coarse.shape[1]
    steps = np.arange(length)
    sign = -1.0 if transposed else 1.0

    def difference(sums):
        rows = jnp.moveaxis(sums.reshape(*sums.shape[:2], groups, -1), 1, -1)
        return sign * (rows[..., :, None] - rows[..., None, :])

    seen = sign * (steps[:, None] - steps) >= 0
    if runs is not None:
        seen = (seen & _same_document(runs))[:, None, None]
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
    return tuple(_sum_steps("bsh->blh", part, runs) for part in parts)


def _reverse_cumsum(dsums, runs):
    """Sums over the steps of a document from each one on."""
    return _sum_steps("blh->bsh", dsums, runs)


def _sum_steps(axes, values, runs):
    """Sums of `[B, Q, H]` over pairs of steps s <= l of one document."""
    pairs = np.tril(np.ones((values.shape[1],) * 2, np.float32))
    if runs is None:
        return _exact_einsum("ls," + axes, pairs, values)
    return _exact_einsum(
        "bls," + axes, jnp.where(_same_document(runs), pairs, 0.0), values
    )


def _same_document(runs):
    return runs.steps[:, :, None] == runs.steps[:, None, :]


def _state_product(state, other, heads):
    """<state, other> of each head, `[B, H]`."""
    batch, groups, size, width = state.shape
    product = (state * other).reshape(batch * groups, size, width)
    sums = _sum_of_heads(product, heads // groups)
    return jnp.sum(sums, axis=1).reshape(batch, heads)


def _sum_of_heads(values, heads):
    """Sums over each head's channels, `[B, Q, H]`, as a product: faster on CPU."""
    lead = values.shape[:2]
    values = values.reshape(*lead, -1)
    members = np.repeat(np.eye(heads, dtype=np.float32), values.shape[-1] // heads, 0)
    return _exact_einsum("bqw,wh->bqh", values, members)


def spread(per_head: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One value per head as one per channel, in `shape` `[.., G, W]`."""
    width = math.prod(shape[-2:]) // per_head.shape[-1]
    wide = jnp.broadcast_to(per_head[..., None], (*per_head.shape, width))
    return wide.reshape(shape)


def _by_head(array_BQGW, heads):
    """`[B, Q, G, W]` as `[B, G, R, Q, P]`."""
    split = array_BQGW.reshape(*array_BQGW.shape[:3], heads, -1)
    return jnp.transpose(split, (0, 2, 3, 1, 4))


def _by_step(array_BGRQP):
    """`[B, G, R, Q, P]` as `[B, Q, G, W]`."""
    array = jnp.transpose(array_BGRQP, (0, 3, 1, 2, 4))
    return array.reshape(*array.shape[:3], -1)


def _only(mask, log_decay):
    return jnp.where(mask[..., None], log_decay, -jnp.inf)
