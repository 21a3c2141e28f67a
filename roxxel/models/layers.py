"""Layers that the models share: norms, causal depthwise convolution, initial values.

Legend: B batch, L length, D width, F channels, K taps.
"""

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, scale: jax.Array, *, eps: float, groups: int = 1):
    """`x` over its root mean square, times `scale`; float32, any leading axes.

    With `groups` the last axis is normalised in that many equal parts.
    """
    x = x.astype(jnp.float32)
    parts = x.reshape(*x.shape[:-1], groups, -1)
    inverse = jax.lax.rsqrt(jnp.mean(parts * parts, axis=-1, keepdims=True) + eps)
    return (parts * inverse).reshape(x.shape) * scale


def gated_rms_norm(
    y: jax.Array, z: jax.Array, scale: jax.Array, *, eps: float, groups: int = 1
):
    """Mamba-2's norm after the gate: `rms_norm(y * silu(z))`, float32."""
    gated = y.astype(jnp.float32) * jax.nn.silu(z.astype(jnp.float32))
    return rms_norm(gated, scale, eps=eps, groups=groups)


def causal_conv(
    x_BLF: jax.Array,
    kernel_KF: jax.Array,
    bias_F: jax.Array | None,
    *,
    history_BTF: jax.Array | None = None,
    runs_BL: jax.Array | None = None,
) -> jax.Array:
    """Depthwise causal convolution; tap K - 1 is the current step. float32.

    Shifted multiply-adds: on CPU 20 times faster than the general convolution.

    Args:
      x_BLF: inputs.
      kernel_KF: taps.
      bias_F: added to every step, or None.
      history_BTF: the T = K - 1 inputs before the first, zero where None.
      runs_BL: document number of each step (0 continues the history); a tap counts
        only within its document.
    """
    taps = kernel_KF.shape[0]
    length = x_BLF.shape[1]
    padded = with_history(x_BLF, history_BTF, taps)
    out = x_BLF.astype(jnp.float32) * kernel_KF[-1]
    for tap in range(taps - 1):
        shifted = padded[:, tap : tap + length].astype(jnp.float32)
        if runs_BL is not None:
            former = jnp.pad(runs_BL, [(0, 0), (taps - 1 - tap, 0)])[:, :length]
            same = former == runs_BL
            shifted = jnp.where(same[..., None], shifted, 0.0)
        out = out + shifted * kernel_KF[tap]
    return out if bias_F is None else out + bias_F


def with_history(x_BLF: jax.Array, history_BTF: jax.Array | None, taps: int):
    """The inputs with the `taps - 1` before them, `[B, taps - 1 + L, F]`."""
    if history_BTF is None:
        return jnp.pad(x_BLF, [(0, 0), (taps - 1, 0), (0, 0)])
    return jnp.concatenate([history_BTF.astype(x_BLF.dtype), x_BLF], axis=1)


def next_history(
    x_BLF: jax.Array,
    history_BTF: jax.Array | None,
    taps: int,
    runs_BL: jax.Array | None = None,
) -> jax.Array:
    """The last `taps - 1` inputs; those of former documents are zero."""
    if taps == 1:
        return x_BLF[:, :0]
    last = with_history(x_BLF, history_BTF, taps)[:, 1 - taps :]
    if runs_BL is None:
        return last
    runs = jnp.pad(runs_BL, [(0, 0), (taps - 1, 0)])[:, 1 - taps :]
    return jnp.where((runs == runs_BL[:, -1:])[..., None], last, 0)


def normal(key: jax.Array, shape: tuple[int, ...], *, std: float) -> jax.Array:
    """Gaussian float32 of standard deviation `std`."""
    return std * jax.random.normal(key, shape, jnp.float32)


def uniform(key: jax.Array, shape: tuple[int, ...], *, bound: float) -> jax.Array:
    """Uniform float32 in [-bound, bound)."""
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def inverse_softplus(x: jax.Array) -> jax.Array:
    """The y of softplus(y) = x, for x > 0."""
    return x + jnp.log(-jnp.expm1(-x))
