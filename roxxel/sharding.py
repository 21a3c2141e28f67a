"""Meshes, where a batch and a state lie on them, and state that is born there.

Rows of a batch lie over the axes `data`, `replica` and `fsdp` together. An axis `fsdp`
also cuts parameters and the optimizer's state, each array along its largest dimension
that divides; a model's block has its parameters whole only while it runs. What no axis
cuts is the same on every device.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roxxel import extras
from roxxel.errors import ConfigError

try:
    import jax
    from flax import nnx
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
except ImportError as err:
    raise extras.missing("roxxel.sharding", "checkpoint", err) from err

BATCH_AXES = ("data", "replica", "fsdp")
FSDP_AXIS = "fsdp"

# Arrays of fewer elements are not cut: gathering them costs more than they take.
MIN_SHARDED_ELEMENTS = 2**12


def axis_sizes(axes: Mapping[str, int], num_devices: int) -> dict[str, int]:
    """`axes` with the size -1, of which there may be one, made what the others leave.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices.
    """
    sizes = dict(axes)
    known = math.prod(size for size in sizes.values() if size != -1)
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) == 1 and known > 0 and num_devices % known == 0:
        return sizes | {free[0]: num_devices // known}
    if free or known != num_devices:
        raise ConfigError(
            f"mesh axes {dict(axes)} do not fit {num_devices} devices: the sizes must "
            "multiply to that number, and at most one may be -1."
        )
    return sizes


def make_mesh(
    axes: Mapping[str, int], devices: Sequence[jax.Device] | None = None
) -> Mesh | None:
    """A mesh over all devices, e.g. `{"data": -1}`; None where there is one device.

    Args:
      axes: sizes by name, the outermost first; one may be -1, see `axis_sizes`.
      devices: None: all.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = axis_sizes(axes, len(devices))
    if len(devices) == 1:
        return None
    return jax.make_mesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(AxisType.Auto,) * len(sizes),
        devices=devices,
    )


def batch_axes(mesh: Mesh | Mapping[str, int]) -> tuple[str, ...]:
    """Axes that rows of a batch lie over: the `BATCH_AXES`, or else the first."""
    names = tuple(_sizes(mesh))
    return tuple(name for name in names if name in BATCH_AXES) or names[:1]


def batch_shards(mesh: Mesh | Mapping[str, int]) -> int:
    """Into how many parts the rows of a batch are cut."""
    return math.prod(_sizes(mesh)[name] for name in batch_axes(mesh))


def parameter_sharding(
    mesh: Mesh | Mapping[str, int], shape: Sequence[int]
) -> PartitionSpec:
    """Where an array of a model's or an optimizer's state lies.

    Its largest dimension that divides by the size of the axis `fsdp` is cut (of equals
    the first); arrays of fewer than `MIN_SHARDED_ELEMENTS` and those that do not divide
    are whole on every device. Needs no devices: axis sizes by name will do.
    """
    parts = _sizes(mesh).get(FSDP_AXIS, 1)
    fitting = [dim for dim, size in enumerate(shape) if size and size % parts == 0]
    if parts == 1 or not fitting or math.prod(shape) < MIN_SHARDED_ELEMENTS:
        return PartitionSpec()
    largest = max(fitting, key=lambda dim: shape[dim])
    return PartitionSpec(*[None] * largest, FSDP_AXIS)


def batch_sharding(mesh: Mesh | None) -> NamedSharding | None:
    """Rows of a batch over `batch_axes`; None without a mesh."""
    if mesh is None:
        return None
    axes = batch_axes(mesh)
    return NamedSharding(mesh, PartitionSpec(axes if len(axes) > 1 else axes[0]))


def replicated(mesh: Mesh | None) -> NamedSharding | None:
    """The same value on every device; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def create_on(mesh: Mesh | None, create: Callable[[], tuple]) -> tuple:
    """Runs `create`, which makes NNX modules, in one jit with its state on the mesh.

    Eager creation compiles each small operation by itself; under jit all parameters
    come from one program and are born where they stay, cut as `parameter_sharding`
    says: no device ever holds more than its part. Modules with an attribute
    `placement` learn there how to run on a mesh that cuts parameters.
    """
    make = functools.partial(_make, mesh, create)
    graphdef, state = nnx.split(nnx.eval_shape(make))
    placed = None if mesh is None else jax.tree.map(functools.partial(_on, mesh), state)
    init = jax.jit(lambda: nnx.state(make()), out_shardings=placed)
    return nnx.merge(graphdef, init())


def abstract_on(mesh: Mesh, create: Callable[[], tuple]) -> tuple:
    """What `create_on` makes, of shapes that know where they would lie; no arrays."""
    graphdef, state = nnx.split(nnx.eval_shape(functools.partial(_make, mesh, create)))

    def placed(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_on(mesh, leaf))

    return nnx.merge(graphdef, jax.tree.map(placed, state))


def _make(mesh, create):
    modules = create()
    if mesh is not None and mesh.shape.get(FSDP_AXIS, 1) > 1:
        for module in modules:
            if hasattr(module, "placement"):
                module.placement = FullySharded(mesh)
    return modules


@dataclasses.dataclass(frozen=True)
class FullySharded:
    """How a model runs where an axis `fsdp` cuts its parameters.

    Said to the compiler instead of left to it: it might else gather the activations.
    """

    mesh: Mesh

    def gathered(self, values: Any) -> Any:
        """The arrays of `values` whole on every device; their gradients are cut."""
        return jax.tree.map(lambda value: _gathered(self.mesh, value), values)

    def rows(self, x: jax.Array) -> jax.Array:
        """`x` with its rows over the batch axes, if they divide."""
        if x.shape[0] % batch_shards(self.mesh):
            return x
        return jax.lax.with_sharding_constraint(x, batch_sharding(self.mesh))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gathered(mesh, value):
    return jax.lax.with_sharding_constraint(value, replicated(mesh))


def _gathered_forward(mesh, value):
    return _gathered(mesh, value), None


def _gathered_backward(mesh, _, dvalue):
    return (jax.lax.with_sharding_constraint(dvalue, _on(mesh, dvalue)),)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def _on(mesh, array):
    return NamedSharding(mesh, parameter_sharding(mesh, array.shape))


def _sizes(mesh: Mesh | Mapping[str, int]) -> Mapping[str, int]:
    return mesh.shape if isinstance(mesh, Mesh) else mesh
