"""The sequence mixer of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060).

    out_proj(norm(ssd(silu(conv([x B C]))) * silu(z))),   [z x B C dt] = in_proj(u)

Legend: B batch, L length, D d_model, H heads, P head width, I = H * P inner channels,
G groups, N state, F = I + 2 * G * N convolved channels, T = conv_width - 1 former
steps, W = I / G channels of a group.

Parameters are float32. The projections compute in `dtype`; convolution, decays, scan,
norm and the scan's state are float32 always.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import keys, layers, mixer_core, mixer_parts, mixer_step, ssd
from roxxel.models.mixer_core import MixerState as MixerState
from roxxel.models.modules import RMSNorm
from roxxel.models.placement import Cut, Placement

# The published ranges: exp(A_log) in [1, 16), dt in [1e-3, 0.1) and at least 1e-4.
_A_RANGE = (1.0, 16.0)
_DT_RANGE = (1e-3, 0.1)
_DT_FLOOR = 1e-4


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
        self.placement: Placement | None = None
        key, uniform = rngs.params, layers.uniform
        in_shape = (d_model, d_inner + self.channels + n_heads)
        conv_shape = (conv_width, self.channels)
        in_proj = uniform(key(), in_shape, bound=d_model**-0.5)
        self.in_proj = nnx.Param(in_proj, logical_axes=("embed", "in_columns"))
        self.conv_weight = nnx.Param(uniform(key(), conv_shape, bound=conv_width**-0.5))
        self.conv_bias = nnx.Param(jnp.zeros(self.channels)) if conv_bias else None
        self.A_log = nnx.Param(_init_a_log(key(), n_heads))
        self.D = nnx.Param(jnp.ones(n_heads, jnp.float32))
        self.dt_bias = nnx.Param(_init_dt_bias(key(), n_heads))
        self.norm = RMSNorm(d_inner, eps=norm_eps, axis="inner")
        out_proj = uniform(key(), (d_inner, d_model), bound=out_scale * d_inner**-0.5)
        self.out_proj = nnx.Param(out_proj, logical_axes=("inner", "embed"))

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
        if u_BLD.shape[1] == 1 and state is not None and runs_BL is None:
            out_BD, state = mixer_step.step(self, u_BLD[:, 0], state)
            return out_BD[:, None], state
        if self.placement is not None and state is None:
            y_BLI, state = mixer_parts.mix(self, u_BLD, runs_BL, self.placement)
        else:
            y_BLI, state = self._mix(u_BLD, state, runs_BL)
        return layers.dense(y_BLI, self.out_proj[...], self.dtype), state

    def core(self) -> mixer_core.Core:
        """What happens between the projections."""
        bias = self.conv_bias
        return mixer_core.Core(
            conv_weight=self.conv_weight[...],
            conv_bias=jnp.zeros(self.channels) if bias is None else bias[...],
            A_log=self.A_log[...],
            D=self.D[...],
            dt_bias=self.dt_bias[...],
            norm_scale=self.norm.scale[...],
            n_groups=self.n_groups,
            norm_eps=self.norm.eps,
            chunk_size=self.chunk_size,
            form=self.form,
            dtype=self.dtype,
        )

    def cut_sizes(self) -> list[Cut]:
        """What a mesh may cut."""
        heads = Cut("inner", "heads of a Mamba-2 block", self.n_heads)
        return [heads, Cut("inner", "n_groups", self.n_groups, shared=True)]

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

    def _mix(self, u_BLD, state, runs_BL):
        """What `out_proj` takes, and the next state."""
        batch = u_BLD.shape[0]
        columns = self._columns(u_BLD)
        inputs = (columns, self.init_state(batch) if state is None else state, runs_BL)
        whole = batch % self.scan_lanes or layers.on_mesh(u_BLD)
        lanes = 1 if whole else self.scan_lanes
        core = self.core()
        parts = [
            core.mix(*jax.tree.map(lambda v, i=i: jnp.split(v, lanes)[i], inputs))
            for i in range(lanes)
        ]
        return jax.tree.map(lambda *lane: jnp.concatenate(lane), *parts)

    def _columns(self, u_BLD):
        """z, x B C and dt, each by a product of its own.

        Their widths suit the products better than the sum of them does, and the
        backward pass joins no gradients.
        """
        ends = [self.d_inner, self.d_inner + self.channels]
        weights = jnp.split(self.in_proj[...], ends, axis=1)
        return tuple(layers.dense(u_BLD, weight, self.dtype) for weight in weights)


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
