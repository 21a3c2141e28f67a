"""The mesh of a trainer, and what must divide over it before anything is made."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import jax
from flax import nnx
from jax.sharding import Mesh

from roxxel import sharding
from roxxel.errors import ConfigError
from roxxel.train.optimizer import RunOptimizer

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer


def make(spec: "Trainer") -> Mesh | None:
    """The trainer's mesh over all devices; None where there is one device.

    Raises:
      ConfigError: the axes do not fit the devices or the rules, or a length of rows
        the mesh.
    """
    mesh = sharding.make_mesh(spec.mesh_axes, dcn_axes=spec.dcn_axes)
    for problem in mesh_problems(
        (span.seq_len for span in spec.stream.spans()),
        [(name, one.seq_len) for name, one in spec.evaluations.items()],
        None if mesh is None else mesh.shape,
        spec.axis_rules,
    ):
        raise ConfigError(problem)
    return mesh


def mesh_problems(
    trained: Iterable[int],
    evaluated: Iterable[tuple[str, int | None]],
    mesh: Mapping[str, int] | None,
    rules: sharding.AxisRules,
) -> list[str]:
    """What of the rows' lengths a mesh cannot cut, and what does not cut at all.

    Asks for no device.

    Args:
      trained: lengths of the rows of training.
      evaluated: names of evaluations and the lengths of their rows, if they are fixed.
      mesh: sizes by axis; None: one device.
      rules: of the trainer.
    """
    named = [("stream", length) for length in trained]
    named += [(f"evaluation {name}", length) for name, length in evaluated if length]
    found = [sharding.axis_problem(mesh, rules)]
    found += [sharding.length_problem(*one, mesh, rules) for one in named]
    return list(dict.fromkeys(filter(None, found)))


def create(spec: "Trainer", mesh: Mesh | None) -> tuple[nnx.Module, RunOptimizer]:
    """The trainer's model and optimizer, born on the mesh."""
    return sharding.create_on(mesh, spec.create, spec.axis_rules)


def fits_one_device(model: nnx.Module) -> bool:
    """Whether a device of this process has room for all of a model that lies on many.

    One that does not tell its memory (CPU) counts as having it.
    """
    told = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in told:
        return True
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))
    return size <= told["bytes_limit"] - told.get("bytes_in_use", 0)


def gathered(model: nnx.Module, mesh: Mesh) -> nnx.State:
    """The state of a model, whole on this process's first device; all must call it."""
    state = nnx.state(model)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    if jax.process_count() > 1:
        whole = sharding.replicated(mesh)
        copies = jax.jit(lambda values: values, out_shardings=whole)(state)
        state = jax.tree.map(lambda leaf: leaf.addressable_data(0), copies)
    return jax.device_put(state, here)
