"""The sequence mixer of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060).

    out_proj(norm(ssd(silu(conv([x B C]))) * silu(z))),   [z x B C dt] = in_proj(u)

Legend: B batch, L length, D d_model, H heads, P head width, I = H * P inner channels,
G groups, N state, F = I + 2 * G * N convolved channels, T = conv_width - 1 former
steps, W = I / G channels of a group.

Parameters are float32. The projections compute in `dtype`; convolution, decays, scan,
norm and the scan's state are float32 always.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import keys, layers, ssd, ssd_chunk
from roxxel.models.modules import RMSNorm

# The published ranges: exp(A_log) in [1, 16), dt in [1e-3, 0.1) and at least 1e-4.
_A_RANGE = (1.0, 16.0)
_DT_RANGE = (1e-3, 0.1)
_DT_FLOOR = 1e-4


class MixerState(NamedTuple):
    """What the former steps of a sequence leave to a mixer.

    `ssm` `[B, G, N, W]` float32, see `ssd.head_state`. `conv` `[B, T, F]`, the last
    inputs of the convolution, zero where they belong to a former document.
    """

    ssm: jax.Array
    conv: jax.Array


class Mamba2Mixer(nnx.Module):
    """Mamba-2's mixer, `[B, L, D]` to `[B, L, D]`.

    Parameters: `in_proj` `[D, 2*I + 2*G*N + H]` with the columns z, x, B, C, dt in this
    order; `conv_weight` `[T + 1, F]` with the current step last, `conv_bias` `[F]`;
    `A_log`, `D`, `dt_bias` `[H]`; `norm.scale` `[I]`; `out_proj` `[I, D]`.

    Args are those of `ssm.Mamba2LM`; `out_scale` scales the initial `out_proj`.
    """

    def __init__(
        self,
        *,
        d_model: int,
        expand: int = 2,
        head_dim: int = 64,
        state_dim: int = 64,
        n_groups: int = 1,
        conv_width: int = 4,
        chunk_size: int = 64,
        norm_eps: float = 1e-5,
        conv_bias: bool = True,
        out_scale: float = 1.0,
        dtype: jax.typing.DTypeLike = jnp.float32,
        form: ssd.Form = "scan",
        scan_lanes: int = 1,
        rngs: keys.Source,
    ):
        ssd.check_form(form)
        d_inner = expand * d_model
        n_heads = _divide("expand * d_model", d_inner, "head_dim", head_dim)
        _divide("heads", n_heads, "n_groups", n_groups)
        self.d_inner, self.n_heads, self.head_dim = d_inner, n_heads, head_dim
        self.n_groups, self.state_dim = n_groups, state_dim
        self.channels = d_inner + 2 * n_groups * state_dim
        self.chunk_size, self.dtype, self.form = chunk_size, dtype, form
        self.scan_lanes = scan_lanes
        key, uniform = rngs.params, layers.uniform
        in_shape = (d_model, d_inner + self.channels + n_heads)
        conv_shape = (conv_width, self.channels)
        self.in_proj = nnx.Param(uniform(key(), in_shape, bound=d_model**-0.5))
        self.conv_weight = nnx.Param(uniform(key(), conv_shape, bound=conv_width**-0.5))
        self.conv_bias = nnx.Param(jnp.zeros(self.channels)) if conv_bias else None
        self.A_log = nnx.Param(_init_a_log(key(), n_heads))
        self.D = nnx.Param(jnp.ones(n_heads, jnp.float32))
        self.dt_bias = nnx.Param(_init_dt_bias(key(), n_heads))
        self.norm = RMSNorm(d_inner, eps=norm_eps)
        out_bound = out_scale * d_inner**-0.5
        self.out_proj = nnx.Param(uniform(key(), (d_inner, d_model), bound=out_bound))

    def __call__(
        self,
        u_BLD: jax.Array,
        state: MixerState | None = None,
        runs_BL: jax.Array | None = None,
    ) -> tuple[jax.Array, MixerState]:
        """Output `[B, L, D]` in `dtype` and the state after the last step.

        Args:
          u_BLD: normalised inputs.
          state: what came before; None: nothing.
          runs_BL: document number of each step, 0 continuing `state`; None: one.
        """
        columns = layers.dense(u_BLD, self.in_proj[...], self.dtype)
        batch = u_BLD.shape[0]
        inputs = (columns, self.init_state(batch) if state is None else state, runs_BL)
        whole = batch % self.scan_lanes or layers.on_mesh(columns)
        lanes = 1 if whole else self.scan_lanes
        parts = [
            self._mix(*jax.tree.map(lambda v, i=i: jnp.split(v, lanes)[i], inputs))
            for i in range(lanes)
        ]
        y_BLI, state = jax.tree.map(lambda *lane: jnp.concatenate(lane), *parts)
        return layers.dense(y_BLI, self.out_proj[...], self.dtype), state

    def init_state(self, batch_size: int) -> MixerState:
        """The state before the first step."""
        groups, size = self.n_groups, self.state_dim
        history = (batch_size, self.conv_weight.shape[0] - 1, self.channels)
        return MixerState(
            ssm=jnp.zeros((batch_size, groups, size, self.d_inner // groups)),
            conv=jnp.zeros(history, self.dtype),
        )

    def flops_per_token(self, seq_len: int) -> float:
        """Forward: projections, convolution, and the products of the scan.

        `2 * D * (2 I + 2 G N + H)` and `2 * I * D` of the projections, `2 * F * taps`
        of the convolution; of a chunk of Q steps the scores C B' `2 * G * N * Q`,
        their use on x `2 * I * Q` (both computed whole, the causal half is masked),
        and the state's update and reading, `2 * N * I` each.
        """
        chunk = min(self.chunk_size, seq_len)
        in_dim, out_dim = self.in_proj.shape
        projections = in_dim * out_dim + self.d_inner * in_dim
        convolution = self.channels * self.conv_weight.shape[0]
        scores = self.n_groups * self.state_dim * chunk + self.d_inner * chunk
        states = 2 * self.state_dim * self.d_inner
        return 2.0 * (projections + convolution + scores + states)

    def _mix(self, columns_BLC, state, runs_BL):
        """Everything between the projections."""
        carry = (state, jnp.zeros(columns_BLC.shape[0], jnp.int32))
        inputs = (columns_BLC, runs_BL)
        if self.form == "scan":
            body = functools.partial(self._mix_piece, _scan_chunk)
            (state, _), y = ssd.scan_chunks(body, carry, inputs, self.chunk_size)
            return y, state
        scan = functools.partial(_scan_parallel, chunk_size=self.chunk_size)
        (state, _), y = self._mix_piece(scan, carry, inputs)
        return y, state

    def _mix_piece(self, scan, carry, piece):
        """`_mix` for a piece of the sequence, `scan` doing the state space part."""
        state, before = carry
        columns, runs = piece
        z, xbc, dt = jnp.split(
            columns, [self.d_inner, self.d_inner + self.channels], axis=-1
        )
        conv_next = layers.next_history(xbc, state.conv, runs, before)
        x, b, c = self._convolve(xbc, state.conv, runs, before)
        dt = jax.nn.softplus(dt.astype(jnp.float32) + self.dt_bias[...])
        a = -jnp.exp(self.A_log[...]) * dt
        scaled = x * ssd_chunk.spread(dt, x.shape)
        scan = functools.partial(scan, runs=runs, before=before)
        y, ssm_next = ssd_chunk.per_group(scan, state.ssm, scaled, a, b, c)
        y = (y + x * ssd_chunk.spread(self.D[...], x.shape[2:])).reshape(z.shape)
        y = layers.gated_rms_norm(
            y, z.astype(jnp.float32), self.norm.scale[...], self.norm.eps, self.n_groups
        )
        before = before if runs is None else runs[:, -1]
        return (MixerState(ssm_next, conv_next), before), y.astype(self.dtype)

    def _convolve(self, xbc, history, runs, before):
        """x `[B, L, G, W]`, B and C `[B, L, G, N]` from the columns before the conv."""
        kernel = self.conv_weight[...]
        bias = jnp.zeros(self.channels) if self.conv_bias is None else self.conv_bias
        xbc, history = xbc.astype(jnp.float32), history.astype(jnp.float32)
        out = layers.conv_silu(xbc, history, kernel, bias[...], runs, before)
        size = self.n_groups * self.state_dim
        parts = jnp.split(out, [self.d_inner, self.d_inner + size], axis=-1)
        return (v.reshape(*v.shape[:2], self.n_groups, -1) for v in parts)


def _scan_chunk(state, x, a, b, c, *, runs, before):
    runs = None if runs is None else ssd_chunk.Runs(runs, before)
    return ssd_chunk.scan_chunk(state, x, a, b, c, runs)


def _scan_parallel(state, x, a, b, c, *, runs, before, chunk_size):
    del before  # the first document is number 0, as scan_in_parallel takes it
    return ssd.scan_in_parallel(state, x, a, b, c, runs_BL=runs, chunk_size=chunk_size)


def _init_a_log(key, n_heads):
    low, high = _A_RANGE
    return jnp.log(jax.random.uniform(key, (n_heads,), jnp.float32, low, high))


def _init_dt_bias(key, n_heads):
    low, high = jnp.log(jnp.array(_DT_RANGE, jnp.float32))
    dt = jnp.exp(jax.random.uniform(key, (n_heads,), jnp.float32, low, high))
    return layers.inverse_softplus(jnp.maximum(dt, _DT_FLOOR))


def _divide(name, value, by_name, by):
    if by < 1 or value % by:
        raise ValueError(f"{name} = {value} does not divide by {by_name} = {by}.")
    return value // by
