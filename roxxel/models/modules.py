"""Modules that the models share: a linear map, the norm, the feed-forward part.

Parameters are float32; products compute in `dtype`, norms in float32.

Legend: B batch, L length, D d_model, F inner width.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import keys, layers
from roxxel.models.placement import Cut

Activation = Callable[[jax.Array], jax.Array]


class RMSNorm(nnx.Module):
    """Root mean square norm with a gain, float32."""

    def __init__(self, dim: int, *, eps: float, axis: str | None = "embed"):
        self.scale = nnx.Param(jnp.ones(dim, jnp.float32), logical_axes=(axis,))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """The normalised `x`, any leading axes."""
        return layers.rms_norm(x, self.scale[...], eps=self.eps)


class Linear(nnx.Module):
    """`x @ weight + bias`, `weight` `[D, F]`; the result has the type `dtype`.

    Initial weights are uniform within `out_scale / sqrt(D)`, biases zero. `axes` names
    the dimensions of the weight, see `axis_rules.AxisRules`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        bias: bool = False,
        out_scale: float = 1.0,
        dtype: jax.typing.DTypeLike = jnp.float32,
        axes: tuple[str | None, str | None] = (None, None),
        rngs: keys.Source,
    ):
        bound = out_scale * in_dim**-0.5
        shape = (in_dim, out_dim)
        weight = layers.uniform(rngs.params(), shape, bound=bound)
        self.weight = nnx.Param(weight, logical_axes=axes)
        zeros = jnp.zeros(out_dim, jnp.float32) if bias else None
        self.bias = nnx.Param(zeros, logical_axes=axes[1:]) if bias else None
        self.dtype = dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """The mapped `x`, any leading axes."""
        out = layers.dense(x, self.weight[...], self.dtype)
        return out if self.bias is None else out + self.bias[...].astype(self.dtype)

    def flops_per_token(self) -> float:
        """Forward: `2 * D * F`."""
        return 2.0 * self.weight.shape[0] * self.weight.shape[1]


class GatedMLP(nnx.Module):
    """Gated feed-forward part, `down(activation(gate(x)) * up(x))` (arXiv:2002.05202).

    With silu it is SwiGLU, with gelu GeGLU.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        activation: Activation = jax.nn.silu,
        bias: bool = False,
        out_scale: float = 1.0,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: keys.Source,
    ):
        options = {"bias": bias, "dtype": dtype, "rngs": rngs}
        self.activation = activation
        self.gate_proj = Linear(d_model, d_ff, axes=("embed", "mlp"), **options)
        self.up_proj = Linear(d_model, d_ff, axes=("embed", "mlp"), **options)
        axes = ("mlp", "embed")
        self.down_proj = Linear(
            d_ff, d_model, out_scale=out_scale, axes=axes, **options
        )

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        """Output `[B, L, D]` in `dtype`."""
        gate_BLF = self.activation(self.gate_proj(x_BLD))
        return self.down_proj(gate_BLF * self.up_proj(x_BLD))

    def cut_sizes(self) -> list[Cut]:
        """What a mesh may cut."""
        return [Cut("mlp", "d_ff", self.up_proj.weight.shape[1])]

    def flops_per_token(self) -> float:
        """Forward: `6 * D * F`, three products."""
        parts = (self.gate_proj, self.up_proj, self.down_proj)
        return sum(part.flops_per_token() for part in parts)


def default_d_ff(d_model: int) -> int:
    """8/3 of `d_model`, up to a multiple of 64: as many weights as a plain 4 times."""
    return -(-8 * d_model // (3 * 64)) * 64
