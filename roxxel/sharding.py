"""Meshes, where a batch and a state lie on them, and state that is born there.

Axes by the default `AxisRules`: rows of a batch lie over `data`, `replica` and `fsdp`
together. `fsdp` also cuts parameters and the optimizer's state; a block has its
parameters whole only while it runs. `tensor` cuts heads, inner widths and the
vocabulary, parameters with them. `context` cuts the sequence of activations. What no
axis cuts is the same on every device.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from roxxel import extras
from roxxel.errors import ConfigError

try:
    import jax
    import numpy as np
    from flax import nnx
    from jax.experimental import mesh_utils
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
except ImportError as err:
    raise extras.missing("roxxel.sharding", "checkpoint", err) from err

from roxxel import axis_rules, placed
from roxxel.axis_rules import MIN_SHARDED_ELEMENTS as MIN_SHARDED_ELEMENTS
from roxxel.axis_rules import AxisRules as AxisRules
from roxxel.placed import Placed as Placed

DEFAULT_RULES = AxisRules()

# XLA's compiler for CPU else begins all parameters of a program at once, each with
# several arrays of its size beside it.
_ONE_AFTER_THE_OTHER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def axis_sizes(
    axes: Mapping[str, int],
    num_devices: int,
    dcn_axes: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """`axes` with the size -1, of which there may be one, made what the others leave.

    Args:
      axes: sizes by name within a slice, the outermost first.
      num_devices: of all slices.
      dcn_axes: sizes by name over slices, none of them -1. An axis is as long as both
        its sizes multiplied; those that only `dcn_axes` has come first.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices.
    """
    outer = dict(dcn_axes or {})
    slices = math.prod(outer.values())
    if any(size < 1 for size in outer.values()) or num_devices % slices:
        raise ConfigError(
            f"dcn_axes {outer} do not fit {num_devices} devices: the sizes must be at "
            "least 1 and multiply to the number of slices, which divides the devices."
        )
    inner = dict.fromkeys([name for name in outer if name not in axes], 1) | dict(axes)
    inner = _filled(inner, num_devices // slices, axes, slices)
    return {name: size * outer.get(name, 1) for name, size in inner.items()}


def _filled(sizes, num_devices, axes, slices):
    if any(size < 1 and size != -1 for size in sizes.values()):
        raise ConfigError(
            f"mesh axes {dict(axes)} do not fit {num_devices} devices: a size must be "
            "at least 1, or -1 for what the others leave."
        )
    known = math.prod(size for size in sizes.values() if size != -1)
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) == 1 and num_devices % known == 0:
        return sizes | {free[0]: num_devices // known}
    if free or known != num_devices:
        where = "" if slices == 1 else f" of each of {slices} slices"
        raise ConfigError(
            f"mesh axes {dict(axes)} do not fit {num_devices} devices{where}: the "
            "sizes must multiply to that number, and at most one may be -1."
        )
    return sizes


def make_mesh(
    axes: Mapping[str, int],
    devices: Sequence[jax.Device] | None = None,
    dcn_axes: Mapping[str, int] | None = None,
) -> Mesh | None:
    """A mesh over all devices, e.g. `{"data": -1}`; None where there is one device.

    Args:
      axes: sizes by name, the outermost first; one may be -1, see `axis_sizes`.
      devices: None: all.
      dcn_axes: sizes by name over slices, which are joined by a slower network. Put
        there what talks least: `{"data": 2}`. Devices that tell no slice (CPU) are
        cut into slices in their order.

    Raises:
      ConfigError: the sizes do not multiply to the number of devices, or the devices
        are in another number of slices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = axis_sizes(axes, len(devices), dcn_axes)
    if len(devices) == 1:
        return None
    kinds = (AxisType.Auto,) * len(sizes)
    if math.prod((dcn_axes or {}).values()) == 1:
        shape = tuple(sizes.values())
        return jax.make_mesh(shape, tuple(sizes), axis_types=kinds, devices=devices)
    outer = [(dcn_axes or {}).get(name, 1) for name in sizes]
    grid = _hybrid(devices, list(sizes.values()), outer)
    return Mesh(grid, tuple(sizes), axis_types=kinds)


def _hybrid(devices, whole, outer):
    """Devices `[*whole]`: what is of one slice lies together along each axis."""
    inner = [size // over for size, over in zip(whole, outer, strict=True)]
    found = {getattr(device, "slice_index", None) for device in devices}
    wanted = math.prod(outer)
    if found == {None} or devices[0].platform == "cpu":
        grid = np.asarray(devices).reshape(*outer, *inner)
        pairs = [place for at in range(len(whole)) for place in (at, at + len(whole))]
        return grid.transpose(pairs).reshape(whole)
    if len(found) != wanted:
        raise ConfigError(
            f"dcn_axes multiply to {wanted} slices, the devices are in {len(found)}."
        )
    # An axis need not be as long as sides of the slice's grid: so is jax.make_mesh.
    return mesh_utils.create_hybrid_device_mesh(
        inner, outer, devices, allow_split_physical_axes=True
    )


def batch_axes(
    mesh: Mesh | Mapping[str, int], rules: AxisRules = DEFAULT_RULES
) -> tuple[str, ...]:
    """Axes that rows of a batch lie over: those of the rules, or else the first."""
    rules = _fitting(rules, _sizes(mesh))
    return tuple(name for name in _sizes(mesh) if name in _axes(rules.batch))


def _fitting(rules, sizes):
    """`rules`, or, of a mesh without an axis that they name, rows over its first."""
    named = {axis for value in vars(rules).values() for axis in _axes(value)}
    if named & set(sizes):
        return rules
    return dataclasses.replace(rules, batch=next(iter(sizes)))


def _axes(value):
    return (value,) if isinstance(value, str) else value or ()


def batch_shards(
    mesh: Mesh | Mapping[str, int], rules: AxisRules = DEFAULT_RULES
) -> int:
    """Into how many parts the rows of a batch are cut."""
    return math.prod(_sizes(mesh)[name] for name in batch_axes(mesh, rules))


def parameter_sharding(
    mesh: Mesh | Mapping[str, int],
    shape: Sequence[int],
    names: Sequence[str | None] | None = None,
    rules: AxisRules = DEFAULT_RULES,
) -> PartitionSpec:
    """Where an array of state lies: `axis_rules.parameter_spec`; needs no devices."""
    return axis_rules.parameter_spec(rules, _sizes(mesh), shape, names)


def batch_sharding(
    mesh: Mesh | None, rules: AxisRules = DEFAULT_RULES
) -> NamedSharding | None:
    """Rows of a batch over `batch_axes`; None without a mesh.

    A row, one column longer than the sequence, is whole on every device of its axes:
    each input then has its successor beside it, wherever the sequence is cut.
    """
    if mesh is None:
        return None
    axes = batch_axes(mesh, rules)
    rows = axes[0] if len(axes) == 1 else axes or None
    return NamedSharding(mesh, PartitionSpec(rows) if rows else PartitionSpec())


def replicated(mesh: Mesh | None) -> NamedSharding | None:
    """The same value on every device; None without a mesh."""
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def create_on(
    mesh: Mesh | None,
    create: Callable[[], tuple],
    rules: AxisRules = DEFAULT_RULES,
) -> tuple:
    """Runs `create`, which makes NNX modules, in one jit with its state on the mesh.

    Eager creation compiles each small operation by itself; under jit all parameters
    come from one program and are born where they stay, cut as the rules say: no device
    ever holds more than its part. Modules with an attribute `placement` learn there
    how to run on the mesh.

    Raises:
      ConfigError: a size of the model does not divide over the mesh.
    """
    graphdef = nnx.graphdef(abstract_on(mesh, create, rules))
    return nnx.merge(graphdef, creation(mesh, create, rules)())


def creation(
    mesh: Mesh | None,
    create: Callable[[], tuple],
    rules: AxisRules = DEFAULT_RULES,
) -> jax.stages.Wrapped:
    """The jitted function without arguments by which `create_on` makes the state."""
    state = nnx.state(abstract_on(mesh, create, rules))
    where = None if mesh is None else jax.tree.map(lambda leaf: leaf.sharding, state)
    make = lambda: nnx.state(_with_placement(mesh, create, rules))  # noqa: E731
    platform = jax.default_backend() if mesh is None else Placed(mesh, rules).platform
    options = _ONE_AFTER_THE_OTHER if platform == "cpu" else None
    return jax.jit(make, out_shardings=where, compiler_options=options)


def abstract_on(
    mesh: Mesh | None,
    create: Callable[[], tuple],
    rules: AxisRules = DEFAULT_RULES,
) -> tuple:
    """What `create_on` would make, as shapes with their shardings; touches no device.

    Raises:
      ConfigError: a size of the model does not divide over the mesh.
    """
    modules = nnx.eval_shape(lambda: _with_placement(mesh, create, rules))
    if mesh is None:
        return modules
    rules = _fitting(rules, mesh.shape)
    problems = [p for m in modules for p in model_problems(m, mesh.shape, rules)]
    if problems:
        raise ConfigError(" ".join(problems))
    where = Placed(mesh, rules)

    def place(leaf, names):
        kept = where.kept(leaf.shape, names)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=kept)

    graphdef, state = nnx.split(modules)
    return nnx.merge(graphdef, placed.on_variables(place, state))


def _with_placement(mesh, create, rules):
    modules = create()
    if mesh is not None:
        where = Placed(mesh, _fitting(rules, mesh.shape))
        for module in modules:
            for _, part in nnx.iter_modules(module):
                if hasattr(part, "placement"):
                    setattr(part, "placement", where)  # noqa: B010, not of all modules
    return modules


def model_problems(
    model: nnx.Module,
    mesh: Mesh | Mapping[str, int],
    rules: AxisRules = DEFAULT_RULES,
) -> list[str]:
    """What of a model does not divide over a mesh, a sentence each; needs no devices.

    Modules tell by `cut_sizes()`, see `models.placement.Cut`.
    """
    found: dict[str, None] = {}
    for _, part in nnx.iter_modules(model):
        for cut in getattr(part, "cut_sizes", list)():
            parts = rules.parts(cut.axis, _sizes(mesh))
            if cut.size % parts and not (cut.shared and parts % cut.size == 0):
                axes = " x ".join(rules.axes(cut.axis, _sizes(mesh)))
                also = ", nor the other way round" if cut.shared else ""
                text = f"model: {cut.what} = {cut.size} does not divide by {parts}"
                found[f"{text} ({axes}){also}."] = None
    return list(found)


def axis_problem(
    mesh: Mesh | Mapping[str, int] | None, rules: AxisRules = DEFAULT_RULES
) -> str | None:
    """Which axis of a mesh no rule names, in a sentence: its devices did the same."""
    sizes = {} if mesh is None else _sizes(mesh)
    if not sizes:
        return None
    values = vars(_fitting(rules, sizes)).values()
    known = dict.fromkeys(axis for value in values for axis in _axes(value))
    idle = [name for name, size in sizes.items() if size > 1 and name not in known]
    if not idle:
        return None
    return (
        f"mesh axis {idle[0]!r} cuts nothing: axis_rules name {', '.join(known)}; "
        "rename it, or name it there."
    )


def length_problem(
    where: str,
    seq_len: int,
    mesh: Mesh | Mapping[str, int] | None,
    rules: AxisRules = DEFAULT_RULES,
) -> str | None:
    """Why rows of `seq_len` tokens cannot be cut along the sequence, or None."""
    if mesh is None:
        return None
    axes = rules.axes("length", _sizes(mesh))
    parts = rules.parts("length", _sizes(mesh))
    if len(axes) > 1:
        return f"axis_rules: length names {len(axes)} axes of the mesh, it takes one."
    if seq_len % parts == 0:
        return None
    below = seq_len // parts * parts
    near = f"{below} or {below + parts}" if below else f"{parts}"
    return (
        f"{where}: seq_len {seq_len} does not divide by {parts} ({axes[0]}); nearest "
        f"that do: {near}."
    )


def _sizes(mesh: Mesh | Mapping[str, int]) -> Mapping[str, int]:
    return mesh.shape if isinstance(mesh, Mesh) else mesh
