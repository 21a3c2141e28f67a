"""The train step of a run compiled for devices that are not here.

Model, optimizer and batch are shapes with their places on the mesh; no array is made.
"""

import dataclasses
import pathlib
import re
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding

from roxxel import sharding
from roxxel.data.steps import Span
from roxxel.topology import collectives, costs, hlo
from roxxel.topology.devices import quiet

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer

# What the compiler says where temporaries, or all together, exceed the memory.
_TEMPORARIES = re.compile(r"HLO temporaries \(([\d.]+\w)\) exceeds available HBM \(")
_USED = re.compile(r"Used ([\d.]+\w) of")
_LIMIT = re.compile(r"(?:available HBM \(|Used [\d.]+\w of )([\d.]+\w)")
_TEXT_FILES = "*after_optimizations.txt"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes in the memory of one device.

    Attributes:
      arguments, outputs: of the step: the state and a batch, and the state after it.
      shared: outputs that take the place of arguments.
      temporaries: activations, gradients and copies; of a step that does not fit, what
        the compiler would need, or None.
      code: of the program.
      limit: what the compiler may use; None where it did not say.
    """

    arguments: int
    outputs: int = 0
    shared: int = 0
    temporaries: int | None = None
    code: int = 0
    limit: int | None = None

    @property
    def total(self) -> int:
        """All of it, at the moment when most is used."""
        kept = self.arguments + self.outputs - self.shared
        return kept + (self.temporaries or 0) + self.code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a step would be on some devices.

    Attributes:
      mesh: sizes by axis.
      span: the batches.
      fits: whether the compiler found room for it.
      memory: of one device.
      flops: of the products of one device.
      hbm_bytes: to and from the memory of one device.
      found: what chips send to each other.
      slices: the slice of each partition.
      kernels: written by hand, which `flops` does not see.
      unknown_loops: counted as running once.
      took: seconds of tracing and compiling, by the wall and of all threads.
    """

    mesh: dict[str, int]
    span: Span
    fits: bool
    memory: Memory
    flops: float = 0.0
    hbm_bytes: float = 0.0
    found: tuple[collectives.Collective, ...] = ()
    slices: tuple[int, ...] = (0,)
    kernels: int = 0
    unknown_loops: int = 0
    took: tuple[float, float] = (0.0, 0.0)


def compile_step(spec: "Trainer", devices: Sequence[Any]) -> Compiled:
    """The step of a trainer for the largest of its batches.

    Raises:
      ConfigError: the mesh does not fit the devices.
    """
    clock = _Clock()
    span = max(spec.stream.spans(), key=lambda span: span.batch_size * span.seq_len)
    mesh = sharding.make_mesh(spec.mesh_axes, devices, spec.dcn_axes)
    step, leaves, batch = _abstract(spec, span, mesh, devices[0])
    order = list(devices) if mesh is None else list(mesh.devices.flat)
    sizes = {"data": 1} if mesh is None else dict(mesh.shape)
    try:
        with quiet():
            program, text = _compiled(step, leaves, batch)
    except jax.errors.JaxRuntimeError as err:
        memory = does_not_fit(err, _local_bytes([*leaves, batch]))
        return Compiled(
            mesh=sizes, span=span, fits=False, memory=memory, took=clock.read()
        )
    took = clock.read()
    text = hlo.parse(text)
    return Compiled(
        mesh=sizes,
        span=span,
        fits=True,
        memory=_memory(program.memory_analysis()),
        flops=costs.flops(text),
        hbm_bytes=costs.hbm_bytes(text),
        found=tuple(collectives.find(text, len(order))),
        slices=tuple(getattr(device, "slice_index", None) or 0 for device in order),
        kernels=costs.kernels(text),
        unknown_loops=text.unknown_loops,
        took=took,
    )


def _compiled(step, leaves, batch) -> tuple[Any, str]:
    """The program, and its text as the compiler writes it to a file.

    libtpu may be newer than jaxlib, whose `as_text` then cannot read every program: for
    v5p and v6e it failed on collectives that run beside other work (0.0.52, 0.10.2).
    """
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        program = step.compile(leaves, batch, compiler_options=options)
        texts = [p.read_text() for p in pathlib.Path(folder).glob(_TEXT_FILES)]
    return program, max(texts, key=len) if texts else program.as_text()


class _Clock:
    """Seconds since it was made, by the wall and of this process."""

    def __init__(self):
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def _abstract(spec, span, mesh, device):
    """The step, the leaves of its state and a batch, as shapes with their places."""
    dtype = np.dtype(getattr(spec.stream, "dtype", None) or np.int32)
    shape = (span.batch_size, span.seq_len + spec.stream.overlap)
    if mesh is None:
        model, optimizer = nnx.eval_shape(spec.create)
        alone = SingleDeviceSharding(device)
    else:
        model, optimizer = sharding.abstract_on(mesh, spec.create, spec.axis_rules)
        alone = None
    step = spec.make_step(model, optimizer)
    leaves = step.leaves(model, optimizer)
    if alone is not None:
        leaves = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=alone) for x in leaves
        ]
    where = alone or sharding.batch_sharding(mesh, spec.axis_rules)
    return step, leaves, jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def _local_bytes(shapes: list[Any]) -> int:
    return sum(
        int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize for x in shapes
    )


def _memory(stats: Any) -> Memory:
    return Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        shared=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
    )


def does_not_fit(error: Exception, arguments: int) -> Memory:
    """The memory that the compiler says it lacks; any other failure goes on."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text or "hbm" not in text.lower():
        raise error
    temporaries, used = _size(_TEMPORARIES, text), _size(_USED, text)
    if temporaries is None and used is not None:
        temporaries = max(0, used - arguments)
    return Memory(
        arguments=arguments, temporaries=temporaries, limit=_size(_LIMIT, text)
    )


def _size(pattern: re.Pattern, text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = match[1][:-1], match[1][-1]
    return int(float(number) * _UNITS.get(unit, 1)) if unit in _UNITS else None
