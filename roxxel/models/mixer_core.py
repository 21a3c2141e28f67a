"""What a Mamba-2 mixer does between its projections, of all heads or some.

Legend: as in `mixer`; H, G and F are those of the heads at hand.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from roxxel.models import layers, ssd, ssd_chunk


class MixerState(NamedTuple):
    """What the former steps of a sequence leave to a mixer.

    `ssm` `[B, G, N, W]` float32, see `ssd.head_state`. `conv` `[B, T, F]`, the last
    inputs of the convolution, zero where they belong to a former document.
    """

    ssm: jax.Array
    conv: jax.Array


# z `[B, L, I]`, x B C `[B, L, F]` and dt `[B, L, H]`; or these as columns of one array.
Columns = jax.Array | tuple[jax.Array, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Core:
    """The parameters and sizes of convolution, scan and norm."""

    conv_weight: jax.Array
    conv_bias: jax.Array
    A_log: jax.Array
    D: jax.Array
    dt_bias: jax.Array
    norm_scale: jax.Array
    n_groups: int
    norm_eps: float
    chunk_size: int
    form: ssd.Form
    dtype: jax.typing.DTypeLike
    norm_shared: layers.Shared | None = None

    def mix(
        self, columns: Columns, state: MixerState, runs_BL: jax.Array | None
    ) -> tuple[jax.Array, MixerState]:
        """Output `[B, L, I]` in `dtype` and the next state, from the in-projection."""
        first = columns[0] if isinstance(columns, tuple) else columns
        carry = (state, jnp.zeros(first.shape[0], jnp.int32))
        if self.form == "scan" and self.norm_shared is None:
            body = functools.partial(self._mix_piece, _scan_chunk)
            inputs = (columns, runs_BL)
            (state, _), y = ssd.scan_chunks(body, carry, inputs, self.chunk_size)
            return y, state
        return self.mix_whole(self.scan, carry, columns, runs_BL)

    def mix_whole(
        self,
        scan: Callable,
        carry: tuple[MixerState, jax.Array],
        columns: Columns,
        runs_BL: jax.Array | None,
    ) -> tuple[jax.Array, MixerState]:
        """As `mix`, but by `scan` over the whole length at once.

        `carry` is the state and `[B]` the document number of its end.
        """
        (state, _), y = self._mix_piece(scan, carry, (columns, runs_BL))
        return y, state

    def scan(self, state, x, a, b, c, *, runs, before):
        """The state space part over many chunks, of one group; state from run 0."""
        del before  # the first document is number 0, as the scans take it
        run = ssd.scan_in_order if self.form == "scan" else ssd.scan_in_parallel
        return run(state, x, a, b, c, runs_BL=runs, chunk_size=self.chunk_size)

    def split(self, columns: Columns) -> tuple[jax.Array, jax.Array, jax.Array]:
        """z, x B C, and dt."""
        if isinstance(columns, tuple):
            return columns
        inner, channels = self.norm_scale.shape[0], self.conv_weight.shape[1]
        z, xbc, dt = jnp.split(columns, [inner, inner + channels], axis=-1)
        return z, xbc, dt

    def _mix_piece(self, scan, carry, piece):
        """`_mix` for a piece of the sequence, `scan` doing the state space part."""
        state, before = carry
        columns, runs = piece
        z, xbc, dt = self.split(columns)
        conv_next = layers.next_history(xbc, state.conv, runs, before)
        x, b, c = self._convolve(xbc, state.conv, runs, before)
        dt = jax.nn.softplus(dt.astype(jnp.float32) + self.dt_bias)
        a = -jnp.exp(self.A_log) * dt
        scaled = x * ssd_chunk.spread(dt, x.shape)
        scan = functools.partial(scan, runs=runs, before=before)
        y, ssm_next = ssd_chunk.per_group(scan, state.ssm, scaled, a, b, c)
        y = (y + x * ssd_chunk.spread(self.D, x.shape[2:])).reshape(z.shape)
        y = layers.gated_rms_norm(
            y,
            z.astype(jnp.float32),
            self.norm_scale,
            self.norm_eps,
            self.n_groups,
            self.norm_shared,
        )
        before = before if runs is None else runs[:, -1]
        return (MixerState(ssm_next, conv_next), before), y.astype(self.dtype)

    def _convolve(self, xbc, history, runs, before):
        """x `[B, L, G, W]`, B and C `[B, L, G, N]` from the columns before the conv."""
        xbc, history = xbc.astype(jnp.float32), history.astype(jnp.float32)
        out = layers.conv_silu(
            xbc, history, self.conv_weight, self.conv_bias, runs, before
        )
        inner = self.norm_scale.shape[0]
        size = (out.shape[-1] - inner) // 2
        parts = jnp.split(out, [inner, inner + size], axis=-1)
        return (v.reshape(*v.shape[:2], self.n_groups, -1) for v in parts)


def _scan_chunk(state, x, a, b, c, *, runs, before):
    runs = None if runs is None else ssd_chunk.Runs(runs, before)
    return ssd_chunk.scan_chunk(state, x, a, b, c, runs)
