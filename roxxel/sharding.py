"""Meshes, and model state that is born on them."""

from collections.abc import Callable, Mapping

import numpy as np

from roxxel import extras
from roxxel.errors import ConfigError

try:
    import jax
    from flax import nnx
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
except ImportError as err:
    raise extras.missing("roxxel.sharding", "checkpoint", err) from err


def make_mesh(axes: Mapping[str, int]) -> Mesh | None:
    """A mesh over all devices, e.g. `{"data": -1}`; None where there is one device.

    One size may be -1: it takes what the others leave.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices()
    sizes = dict(axes)
    known = int(np.prod([size for size in sizes.values() if size != -1]))
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) == 1 and known > 0 and len(devices) % known == 0:
        sizes[free[0]] = len(devices) // known
    elif free or known != len(devices):
        raise ConfigError(
            f"mesh axes {dict(axes)} do not fit {len(devices)} devices: the sizes must "
            "multiply to that number, and at most one may be -1."
        )
    if len(devices) == 1:
        return None
    return jax.make_mesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(AxisType.Auto,) * len(sizes),
        devices=devices,
    )


def batch_sharding(mesh: Mesh | None) -> NamedSharding | None:
    """Rows of a batch over the mesh's first axis; None without a mesh."""
    if mesh is None:
        return None
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))


def replicated(mesh: Mesh | None) -> NamedSharding | None:
    """The same value on every device; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def create_on(mesh: Mesh | None, create: Callable[[], tuple]) -> tuple:
    """Runs `create`, which makes NNX modules, in one jit with its state on the mesh.

    Eager creation compiles each small operation by itself; under jit all parameters
    come from one program and are born where they stay.
    """
    graphdef, _ = nnx.split(nnx.eval_shape(create))
    init = jax.jit(lambda: nnx.state(create()), out_shardings=replicated(mesh))
    return nnx.merge(graphdef, init())
