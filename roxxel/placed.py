"""How a model runs on a mesh: where its arrays lie, and functions on their parts.

Said to the compiler instead of left to it: it might else gather the activations, and
kernels must be told which part of an array they see.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roxxel import axis_rules
from roxxel.axis_rules import AxisRules

Names = Sequence[str | None]


@dataclasses.dataclass(frozen=True)
class Placed:
    """A mesh and the rules by which arrays lie on it."""

    mesh: Mesh
    rules: AxisRules

    @property
    def platform(self) -> str:
        """Of the mesh's devices: "cpu", "gpu" or "tpu"."""
        return self.mesh.devices.flat[0].platform

    def parts(self, name: str) -> int:
        """Into how many parts the dimension `name` is cut."""
        return self.rules.parts(name, self.mesh.shape)

    def axis(self, name: str, size: int) -> str | tuple[str, ...] | None:
        """The axes that cut a dimension of this size; None where it stays whole."""
        return next(iter(self.spec((size,), (name,))), None)

    def spec(self, shape: Sequence[int], names: Names) -> PartitionSpec:
        """How an array whose dimensions have `names` lies."""
        return axis_rules.spec(self.rules, self.mesh.shape, shape, names)

    def kept(self, shape: Sequence[int], names: Names | None = None) -> NamedSharding:
        """Where an array of a model's or an optimizer's state lies."""
        kept = axis_rules.parameter_spec(self.rules, self.mesh.shape, shape, names)
        return NamedSharding(self.mesh, kept)

    def used(self, shape: Sequence[int], names: Names | None = None) -> NamedSharding:
        """Where a parameter lies while a block uses it."""
        rules = self.rules.in_use()
        used = axis_rules.parameter_spec(rules, self.mesh.shape, shape, names)
        return NamedSharding(self.mesh, used)

    def gathered(self, values: Any) -> Any:
        """Parameters as blocks use them; their gradients lie as they are kept."""
        return on_variables(self._gathered, values)

    def rows(self, x: jax.Array) -> jax.Array:
        """Activations `[B, L, ...]` cut by batch and length alone."""
        names = ("batch", "length") + (None,) * (x.ndim - 2)
        return self.constrained(x, names)

    def constrained(self, x: jax.Array, names: Names) -> jax.Array:
        """`x`, whose dimensions have `names`, as the rules say."""
        where = NamedSharding(self.mesh, self.spec(x.shape, names))
        return jax.lax.with_sharding_constraint(x, where)

    def on_parts(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """`function` run on each device's parts; it may talk over the mesh's axes."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )

    def _gathered(self, value, names):
        kept, used = self.kept(value.shape, names), self.used(value.shape, names)
        return value if kept == used else _gather(kept, used, value)


def on_variables(function: Callable[[Any, Names | None], Any], tree: Any) -> Any:
    """`tree` with `function(array, names of its dimensions)` in place of its arrays."""

    def apply(leaf):
        value = _apply(function, leaf)
        return leaf.replace(value) if isinstance(leaf, nnx.Variable) else value

    return jax.tree.map(apply, tree, is_leaf=_is_variable)


def mapped(function: Callable[[Any, Names | None], Any], tree: Any) -> Any:
    """As `on_variables`, the results without the variables around them."""
    apply = functools.partial(_apply, function)
    return jax.tree.map(apply, tree, is_leaf=_is_variable)


def _apply(function, leaf):
    if not _is_variable(leaf):
        return function(leaf, None)
    names = leaf.get_metadata().get("logical_axes")
    # Not always one array: an optimizer's masked entry is an empty tuple.
    return jax.tree.map(lambda array: function(array, names), leaf.get_value())


def _is_variable(leaf):
    return isinstance(leaf, nnx.Variable)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(kept, used, value):
    return jax.lax.with_sharding_constraint(value, used)


def _gather_forward(kept, used, value):
    return _gather(kept, used, value), None


def _gather_backward(kept, used, _, dvalue):
    return (jax.lax.with_sharding_constraint(dvalue, kept),)


_gather.defvjp(_gather_forward, _gather_backward)
