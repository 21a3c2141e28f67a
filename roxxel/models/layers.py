"""Layers that the models share: projections, norms, causal convolution, initial values.

The backward passes of `dense`, `conv_silu` and `gated_rms_norm` are written out: they
keep only the inputs, and take fewer passes over memory than the derived ones.

Legend: B batch, L length, D width, F channels, K taps, T = K - 1 former steps.
"""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

_UNROLLED_ROWS = 16


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def dense(
    x: jax.Array,
    weight: jax.Array,
    dtype: jax.typing.DTypeLike = jnp.float32,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """`x @ weight` over the last axis, computed in `dtype` with float32 sums.

    `x` is `[..., D]`, `weight` `[D, F]`. The result has the type `out_dtype`, or else
    `dtype`; gradients have the types of the arguments.
    """
    return _dense_forward(x, weight, dtype, out_dtype)[0]


def _dense_forward(x, weight, dtype, out_dtype):
    # Not by `dense`: a policy of `jax.checkpoint` does not see into a second one.
    out = _dot(x.astype(dtype), weight.astype(dtype), "...d,df->...f")
    out = out.astype(dtype if out_dtype is None else out_dtype)
    return out, (x.astype(dtype), weight, jnp.zeros((), x.dtype))


def _dense_backward(dtype, out_dtype, residuals, dout):
    del out_dtype
    x, weight, like = residuals
    rows, drows = x, dout.astype(dtype)
    if not on_mesh(x):  # there, axes that are cut would have to become one
        rows, drows = (v.reshape(-1, v.shape[-1]) for v in (rows, drows))
    dx = _dot(drows, weight.astype(dtype), "...f,df->...d").reshape(x.shape)
    leading = tuple(range(rows.ndim - 1))
    dweight = jax.lax.dot_general(
        rows,
        drows,
        ((leading, leading), ((), ())),
        preferred_element_type=jnp.float32,
    )
    return dx.astype(like.dtype), dweight.astype(weight.dtype)


dense.defvjp(_dense_forward, _dense_backward)


def rms_norm(x: jax.Array, scale: jax.Array, *, eps: float) -> jax.Array:
    """`x` over its root mean square, times `scale`; float32, any leading axes."""
    x = x.astype(jnp.float32)
    mean = jnp.mean(x * x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean + eps) * scale


class Shared(NamedTuple):
    """A group of channels that lies over several devices.

    Attributes:
      axis: of the mesh.
      groups: over all of its devices.
      parts: devices of one group.
    """

    axis: str | tuple[str, ...]
    groups: int
    parts: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def gated_rms_norm(
    y_BLF: jax.Array,
    z_BLF: jax.Array,
    scale_F: jax.Array,
    eps: float,
    groups: int,
    shared: Shared | None = None,
) -> jax.Array:
    """Mamba-2's norm after the gate: `y * silu(z)` over its root mean square; float32.

    The mean is over each of `groups` equal parts of the channels; with `shared`, over
    the part here and those of the other devices that have channels of this group.
    """
    gated, inverse, _ = _gate(y_BLF, z_BLF, eps, groups, shared)
    return gated * inverse * scale_F


def _gated_forward(y, z, scale, eps, groups, shared):
    return gated_rms_norm(y, z, scale, eps, groups, shared), (y, z, scale)


def _gated_backward(eps, groups, shared, residuals, dout):
    y, z, scale = residuals
    gated, inverse, gate = _gate(y, z, eps, groups, shared)
    dnormed = dout * scale
    mean = _group_mean(dnormed * gated, groups, shared)
    dgated = inverse * dnormed - gated * (inverse**3 * mean)
    dz = dgated * y * _silu_slope(z, gate)
    dscale = _sum_of_steps(dout * gated * inverse)
    return dgated * z * gate, dz, dscale


gated_rms_norm.defvjp(_gated_forward, _gated_backward)


@jax.custom_vjp
def conv_silu(
    x_BLF: jax.Array,
    history_BTF: jax.Array,
    kernel_KF: jax.Array,
    bias_F: jax.Array,
    runs_BL: jax.Array | None = None,
    before_B: jax.Array | None = None,
) -> jax.Array:
    """silu of the causal depthwise convolution; tap K - 1 is the current step. float32.

    Shifted multiply-adds: on CPU 20 times faster than the general convolution.

    Args:
      x_BLF: inputs.
      history_BTF: the inputs before the first; zero where there were none.
      kernel_KF: taps.
      bias_F: added to every step.
      runs_BL: document number of each step; a tap counts only within its document.
      before_B: document number of the history.
    """
    padded, same = _taps(x_BLF, history_BTF, runs_BL, before_B)
    return jax.nn.silu(_convolve(padded, same, kernel_KF, bias_F))


def _conv_forward(x, history, kernel, bias, runs, before):
    out = conv_silu(x, history, kernel, bias, runs, before)
    return out, (x, history, kernel, bias, runs, before)


def _conv_backward(residuals, dout):
    x, history, kernel, bias, runs, before = residuals
    padded, same = _taps(x, history, runs, before)
    pre = _convolve(padded, same, kernel, bias)
    dpre = dout * _silu_slope(pre, jax.nn.sigmoid(pre))
    length, former = x.shape[1], history.shape[1]
    dpadded, dkernel = jnp.zeros_like(padded), []
    for tap in range(former + 1):
        dtap = _where(same[tap], dpre)
        spread = jnp.pad(dtap, [(0, 0), (former, former), (0, 0)])
        start = former - tap
        dpadded += spread[:, start : start + former + length] * kernel[tap]
        product = dtap * padded[:, tap : tap + length]
        dkernel.append(_sum_of_steps(product))
    dbias = _sum_of_steps(dpre)
    dhistory, dx = dpadded[:, :former], dpadded[:, former:]
    return dx, dhistory, jnp.stack(dkernel), dbias, None, None


conv_silu.defvjp(_conv_forward, _conv_backward)


def next_history(
    x_BLF: jax.Array,
    history_BTF: jax.Array,
    runs_BL: jax.Array | None = None,
    before_B: jax.Array | None = None,
) -> jax.Array:
    """The last T inputs; those of documents before the last step's are zero."""
    former, length = history_BTF.shape[1], x_BLF.shape[1]
    last = jnp.concatenate([history_BTF, x_BLF], axis=1)[:, length:]
    if runs_BL is None or before_B is None:
        return last
    runs = _with_history_runs(runs_BL, before_B, former)[:, length:]
    return _where(runs == runs_BL[:, -1:], last)


def on_mesh(x: jax.Array) -> bool:
    """Whether `x` is cut by the compiler: from arrays on a mesh, not a part of one."""
    mesh = jax.typeof(x).sharding.mesh
    return mesh.size > 1 and not mesh.are_all_axes_manual


def uniform(key: jax.Array, shape: tuple[int, ...], *, bound: float) -> jax.Array:
    """Uniform float32 in [-bound, bound)."""
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def inverse_softplus(x: jax.Array) -> jax.Array:
    """The y of softplus(y) = x, for x > 0."""
    return x + jnp.log(-jnp.expm1(-x))


def _dot(left, right, axes):
    return jnp.einsum(axes, left, right, preferred_element_type=jnp.float32)


def _gate(y, z, eps, groups, shared):
    """The gated values, one over their root mean square, and sigmoid(z)."""
    gate = jax.nn.sigmoid(z)
    gated = y * (z * gate)
    mean = _group_mean(gated * gated, groups, shared)
    return gated, jax.lax.rsqrt(mean + eps), gate


def _group_mean(values, groups, shared):
    """Means over equal parts of the last axis, shaped to combine with `values`."""
    if shared is not None:
        return _shared_mean(values, shared)
    if groups == 1:
        return jnp.mean(values, axis=-1, keepdims=True)
    means = jnp.mean(values.reshape(*values.shape[:-1], groups, -1), axis=-1)
    return jnp.repeat(means, values.shape[-1] // groups, axis=-1)


def _shared_mean(values, shared):
    """Each device adds to its group's sum; the groups' sums travel together."""
    group = jax.lax.axis_index(shared.axis) // shared.parts
    mine = jnp.arange(shared.groups) == group
    part = jnp.mean(values, axis=-1, keepdims=True) / shared.parts
    means = jax.lax.psum(jnp.where(mine, part, 0.0), shared.axis)
    return jnp.sum(jnp.where(mine, means, 0.0), axis=-1, keepdims=True)


def _sum_of_steps(values_BLF):
    """Sums over rows and steps, `[F]`.

    Over few rows term by term, which fuses with what makes the values, and over steps
    by a product: faster on CPU. Not on a mesh, where a row by itself would travel
    between devices.
    """
    if values_BLF.shape[0] > _UNROLLED_ROWS or on_mesh(values_BLF):
        return jnp.sum(values_BLF, axis=(0, 1))
    rows = [values_BLF[row] for row in range(values_BLF.shape[0])]
    values_LF = functools.reduce(operator.add, rows)
    ones_L = jnp.ones((1, values_LF.shape[0]), values_LF.dtype)
    return jnp.dot(ones_L, values_LF, precision=jax.lax.Precision.HIGHEST)[0]


def _silu_slope(x, sigmoid):
    return sigmoid * (1.0 + x * (1.0 - sigmoid))


def _taps(x, history, runs, before):
    """History and inputs in one, and per tap where it counts (None: everywhere)."""
    former, length = history.shape[1], x.shape[1]
    # Made once: fused into each tap, the seam costs a branch per element.
    padded = jax.lax.optimization_barrier(jnp.concatenate([history, x], axis=1))
    if runs is None:
        return padded, [None] * (former + 1)
    all_runs = _with_history_runs(runs, before, former)
    same = [all_runs[:, tap : tap + length] == runs for tap in range(former)]
    return padded, [*same, None]


def _with_history_runs(runs_BL, before_B, former):
    before_BT = jnp.broadcast_to(before_B[:, None], (runs_BL.shape[0], former))
    return jnp.concatenate([before_BT, runs_BL], axis=1)


def _convolve(padded, same, kernel, bias):
    length = padded.shape[1] - len(same) + 1
    out = bias
    for tap, mask in enumerate(same):
        out = out + _where(mask, padded[:, tap : tap + length]) * kernel[tap]
    return out


def _where(mask, values):
    return values if mask is None else jnp.where(mask[..., None], values, 0.0)
