"""The mixer's recurrence for one token: what the chunked scan gives for a chunk of one.

The general form computes decay matrices, running sums and masks that one step does not
need; written out, a step costs two passes over the state.

XLA on CPU fuses whatever is cheap into the loop over the state, where it is computed N
times, but no division and no exponential. So what that loop reads ends in one of them:
silu(v) is written `v / (1 + exp(-v))`.

Legend: B batch, D d_model, H heads, P head width, I = H * P inner channels, G groups,
N state, W = I / G, F convolved channels, T former steps.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from roxxel.models import layers

if TYPE_CHECKING:
    from roxxel.models.mixer import Mamba2Mixer, MixerState

_EXACT = jax.lax.Precision.HIGHEST


def step(
    mixer: "Mamba2Mixer", u_BD: jax.Array, state: "MixerState"
) -> tuple[jax.Array, "MixerState"]:
    """Output `[B, D]` in the mixer's type, and the state after this token.

    The token goes on with the document that the state is of.
    """
    inner = mixer.d_inner
    columns = layers.dense(u_BD, mixer.in_proj[...], mixer.dtype)
    z, xbc, dt = jnp.split(columns, [inner, inner + mixer.channels], axis=-1)
    pre_BF, conv = _convolved(mixer, xbc, state.conv)
    dt = jax.nn.softplus(dt.astype(jnp.float32) + mixer.dt_bias[...])
    y, ssm = _recurrence(mixer, pre_BF, dt, state.ssm)
    gate = z.astype(jnp.float32)
    norm = (mixer.norm.scale[...], mixer.norm.eps, mixer.n_groups)
    y = layers.gated_rms_norm(y, gate, *norm).astype(mixer.dtype)
    out = layers.dense(y, mixer.out_proj[...], mixer.dtype)
    return out, type(state)(ssm, conv)


def _convolved(mixer, xbc_BF, history_BTF):
    """The convolution at this step before its silu, and the next history."""
    taps = jnp.concatenate([history_BTF, xbc_BF[:, None]], axis=1)
    kernel = mixer.conv_weight[...]
    out = 0.0 if mixer.conv_bias is None else mixer.conv_bias[...]
    for tap in range(kernel.shape[0]):
        out = out + taps[:, tap].astype(jnp.float32) * kernel[tap]
    return out, taps[:, 1:]


def _recurrence(mixer, pre_BF, dt_BH, ssm_BGNW):
    """Outputs `[B, I]` before the gate, and the next state."""
    batch, groups, inner = pre_BF.shape[0], mixer.n_groups, mixer.d_inner
    spread_BF = 1.0 + jnp.exp(-pre_BF)
    x_BI, bc_BF = jnp.split(pre_BF / spread_BF, [inner], axis=1)
    dt_BI = _per_channel(dt_BH, mixer.head_dim)
    decay_BI = jnp.exp(-jnp.repeat(jnp.exp(mixer.A_log[...]), mixer.head_dim) * dt_BI)
    entering_BI = (pre_BF[:, :inner] * dt_BI) / spread_BF[:, :inner]
    grouped = (v.reshape(batch, groups, -1) for v in (decay_BI, entering_BI))
    inputs = (ssm_BGNW, *grouped, *_halves(bc_BF.reshape(batch, 2 * groups, -1)))
    # A single group loses its axis: with it, XLA on CPU makes the state twice.
    if groups > 1:
        y, ssm = jax.vmap(_one_group, in_axes=1, out_axes=1)(*inputs)
    else:
        y, ssm = _one_group(*(value[:, 0] for value in inputs))
        ssm = ssm[:, None]
    skip_BI = x_BI * jnp.repeat(mixer.D[...], mixer.head_dim)
    return y.reshape(batch, inner) + skip_BI, ssm


def _one_group(ssm_BNW, decay_BW, entering_BW, b_BN, c_BN):
    ssm = ssm_BNW * decay_BW[:, None] + b_BN[:, :, None] * entering_BW[:, None]
    return jnp.einsum("bnw,bn->bw", ssm, c_BN, precision=_EXACT), ssm


def _per_channel(values_BH, width):
    """Each head's value for all its channels: a product, whose result is kept."""
    spread_HI = jnp.repeat(jnp.eye(values_BH.shape[1]), width, axis=1)
    return jnp.dot(values_BH, spread_HI, precision=_EXACT)


def _halves(both_BGN):
    return jnp.split(both_BGN, 2, axis=1)
