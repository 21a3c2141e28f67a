"""What models ask of the mesh that they run on, and what its devices tell each other.

Legend: B batch, L length of a device's part, D d_model, V vocabulary, T former steps.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

Names = Sequence[str | None]
Axis = str | tuple[str, ...] | None


class Cut(NamedTuple):
    """A size of a module that must divide over an axis.

    Attributes:
      axis: logical name, see `axis_rules.AxisRules`.
      what: the size's name.
      size: its value.
      shared: it may also divide the number of parts; several then share one.
    """

    axis: str
    what: str
    size: int
    shared: bool = False


class Placement(Protocol):
    """How a model's arrays lie on a mesh; see `placed.Placed`."""

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        ...

    @property
    def platform(self) -> str:
        """Of the mesh's devices: "cpu", "gpu" or "tpu"."""
        ...

    def parts(self, name: str) -> int:
        """Into how many parts the dimension `name` is cut."""
        ...

    def axis(self, name: str, size: int) -> Axis:
        """The axes that cut a dimension of this size; None where it stays whole."""
        ...

    def spec(self, shape: Sequence[int], names: Names) -> PartitionSpec:
        """How an array whose dimensions have `names` lies."""
        ...

    def gathered(self, values: Any) -> Any:
        """Parameters as blocks use them; their gradients lie as they are kept."""
        ...

    def rows(self, x: jax.Array) -> jax.Array:
        """Activations `[B, L, ...]` cut by batch and length alone."""
        ...

    def constrained(self, x: jax.Array, names: Names) -> jax.Array:
        """`x`, whose dimensions have `names`, as the rules say."""
        ...

    def on_parts(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """`function` run on each device's parts; it may talk over the mesh's axes."""
        ...


def lookup(
    placement: Placement, table_VD: jax.Array, tokens_BL: jax.Array
) -> jax.Array:
    """Rows of a table whose vocabulary may be cut, `[B, L, D]`.

    Each part looks up the tokens that it has; the sum over the parts is left to the
    compiler, so that the way back needs no communication.
    """
    axis = placement.axis("vocab", table_VD.shape[0])
    tokens_spec = placement.spec(tokens_BL.shape, ("batch", "length"))

    def part(table, tokens):
        if axis is None:
            return table[tokens][None]
        rows = table.shape[0]
        local = tokens - jax.lax.axis_index(axis) * rows
        known = (local >= 0) & (local < rows)
        found = table[jnp.clip(local, 0, rows - 1)]
        return jnp.where(known[..., None], found, 0.0)[None]

    specs = (PartitionSpec(axis), tokens_spec)
    run = placement.on_parts(part, specs, PartitionSpec(axis, *tokens_spec))
    return placement.rows(jnp.sum(run(table_VD, tokens_BL), axis=0))


def axis_size(axis: Axis) -> int:
    """Devices along an axis, inside of `Placement.on_parts`; 1 for None."""
    return 1 if axis is None else jax.lax.axis_size(axis)


def from_left(x: Any, axis: Axis, distance: int = 1) -> Any:
    """What the device `distance` before on the axis gives; zeros where none is."""
    size = axis_size(axis)
    if axis is None:
        return jax.tree.map(jnp.zeros_like, x)
    pairs = [(at, at + distance) for at in range(size - distance)]
    return jax.tree.map(lambda v: jax.lax.ppermute(v, axis, pairs), x)


def of_last(x: Any, axis: Axis) -> Any:
    """What the last device on the axis has, on all of them."""
    if axis is None:
        return x
    is_last = jax.lax.axis_index(axis) == axis_size(axis) - 1
    alone = lambda v: jnp.where(is_last, v, jnp.zeros_like(v))  # noqa: E731
    return jax.tree.map(lambda v: jax.lax.psum(alone(v), axis), x)


def carried_from_left(state: jax.Array, decay: jax.Array, axis: Axis) -> jax.Array:
    """The state that enters each device's part of a sequence.

    A part that begins with the state h ends with `decay * h + state`. Prefixes of that
    associative rule are combined in log2 of the devices steps.
    """
    distance = 1
    while distance < axis_size(axis):
        former, former_decay = from_left((state, decay), axis, distance)
        state = state + decay * former
        decay = decay * former_decay
        distance *= 2
    return from_left(state, axis)
