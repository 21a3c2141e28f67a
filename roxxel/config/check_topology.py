"""`--mode=check --topology`: the step compiled for TPUs, as text and problems."""

import collections
import math
from typing import TYPE_CHECKING, Any

from roxxel.config import arguments, check_memory, check_model, scalars
from roxxel.errors import ConfigError
from roxxel.topology import devices

if TYPE_CHECKING:
    from roxxel.topology.compiling import Compiled
    from roxxel.topology.roofline import Bound

_SHOWN = check_memory.shown


def parse(line: arguments.CommandLine) -> devices.Topology | None:
    """What `--topology` and `--num_slices` name; None where they are not given.

    Raises:
      ConfigError: a value is wrong, the flags exclude each other, or there is no
        compiler for TPUs.
    """
    text, slices = line.get("topology"), line.get("num_slices")
    if text is None:
        if slices is not None:
            raise ConfigError(f"--num_slices={slices} belongs to --topology.")
        return None
    topology = devices.parse(text, _num_slices(slices))
    if line.get("devices") is not None:
        raise ConfigError(
            f"--topology={text} and --devices exclude each other: it has "
            f"{topology.num_chips} chips."
        )
    devices.check_compiler()
    return topology


def report(
    trainer: Any, model: Any, topology: devices.Topology, problems: list[str]
) -> list[str]:
    """Sections on memory, collectives and time; adds a problem if it does not fit.

    Args:
      trainer: whose step is compiled, or `abstract.Unknown`.
      model: of it, as shapes.
      topology: for what.
      problems: so far; where there are some, nothing is compiled.
    """
    if problems:
        return [f"compiled for {topology}\n  not tried: something is wrong already"]
    if not hasattr(trainer, "make_step"):
        why = getattr(trainer, "reason", "the graph makes no Trainer.")
        problems.append(f"--topology: the step cannot be compiled. {why}")
        return []
    if topology.num_slices > 1 and not trainer.dcn_axes:
        problems.append(
            f"dcn_axes: --num_slices={topology.num_slices} needs the axes that lie "
            f"over slices: --fdl.dcn_axes='{{\"data\": {topology.num_slices}}}'."
        )
        return []
    from roxxel.topology import compiling, roofline

    try:
        compiled = compiling.compile_step(trainer, devices.open_devices(topology))
    except ConfigError as err:
        problems.append(str(err))
        return []
    sections = [_head(compiled, topology), _memory(compiled, topology)]
    if not compiled.fits:
        problems.append(_too_large(compiled, topology, trainer, model))
        return sections
    per_token, _ = check_model.flops_per_token(model, compiled.span.seq_len)
    bound = roofline.bound(compiled, topology.chip, per_token)
    params = check_model.num_params(model)
    work = _work(compiled, per_token, params)
    return [*sections, work, _collectives(compiled), _time(bound, topology)]


def _num_slices(text: str | None) -> int:
    try:
        number = 1 if text is None else scalars.parse_int(text)
    except scalars.MismatchError:
        number = 0
    if not 1 <= number <= 1024:
        raise ConfigError(f"--num_slices={text}: expected int, at least 1.")
    return number


def _head(compiled: "Compiled", topology: devices.Topology) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in compiled.mesh.items())
    span = compiled.span
    lines = [
        f"compiled for {topology}",
        f"  chips      {topology.num_chips} {topology.chip.name}, mesh {axes}",
        f"  batch      {span.batch_size} x {span.seq_len} tokens",
        f"  compiling  {compiled.took[0]:.0f} s ({compiled.took[1]:.0f} s of CPU)",
    ]
    if compiled.kernels:
        lines.append(f"  kernels    {compiled.kernels}, whose work is not counted")
    if compiled.unknown_loops:
        lines.append(f"  loops      {compiled.unknown_loops} counted as one trip")
    return "\n".join(lines)


def _memory(compiled: "Compiled", topology: devices.Topology) -> str:
    memory = compiled.memory
    rows = {"arguments": memory.arguments, "outputs": memory.outputs}
    rows |= {"of them shared": memory.shared, "code": memory.code}
    rows = {name: _SHOWN(size) for name, size in rows.items() if size}
    if memory.temporaries is not None:
        rows["temporaries"] = _SHOWN(memory.temporaries)
    limit = _SHOWN(memory.limit or topology.chip.hbm_bytes)
    verdict = "fits" if compiled.fits else "does not fit"
    rows["together"] = f"{_SHOWN(memory.total):>12}  of {limit}: {verdict}"
    lines = [f"  {name:<16} {text:>12}" for name, text in rows.items()]
    title = "memory of one chip, activations included, as compiled"
    return "\n".join([title, *lines])


def _too_large(
    compiled: "Compiled", topology: devices.Topology, trainer: Any, model: Any
) -> str:
    memory = compiled.memory
    limit = memory.limit or topology.chip.hbm_bytes
    return (
        f"memory: {_SHOWN(memory.total)} do not fit the {_SHOWN(limit)} of a "
        f"{topology.chip.name} ({_SHOWN(memory.arguments)} of them state and batch); "
        f"{_advice(compiled, trainer, model, limit)}."
    )


def _advice(compiled: "Compiled", trainer: Any, model: Any, limit: int) -> str:
    """What to turn, the cheapest first."""
    if compiled.memory.arguments > limit / 2:
        return "use more chips on an axis 'fsdp' of mesh_axes, or a smaller model"
    turns = []
    if getattr(model, "remat", "full") != "full":
        turns.append("model.remat=full")
    if not getattr(model, "scan_layers", True):
        turns.append("model.scan_layers=True")
    rows = compiled.span.batch_size // _batch_shards(compiled.mesh, trainer)
    count = getattr(trainer, "accumulate", 1)
    if rows > count:
        memory = compiled.memory
        times = (memory.temporaries or 0) / max(1, limit - memory.arguments)
        turns.append(f"accumulate={_divisor(rows, count * max(2, math.ceil(times)))}")
    turns.append("more chips, or a smaller stream.batch_size")
    return f"try {' or '.join(turns)}"


def _batch_shards(mesh: dict[str, int], trainer: Any) -> int:
    from roxxel import sharding

    return sharding.batch_shards(mesh, trainer.axis_rules)


def _divisor(rows: int, least: int) -> int:
    return next((n for n in range(least, rows) if rows % n == 0), rows)


def _work(compiled: "Compiled", per_token: float, params: int) -> str:
    tokens = compiled.span.batch_size * compiled.span.seq_len
    chips = len(compiled.slices)
    model = per_token * tokens
    rows = [
        ("compiled", compiled.flops, "products, what remat computes again included"),
        ("model", model / chips, "forward and backward, causal half, without remat"),
        ("6 N D", 6.0 * params * tokens / chips, "6 a parameter and token"),
    ]
    lines = [f"  {name:<10} {flops:>12,.4g} FLOPs  {how}" for name, flops, how in rows]
    moved = f"  {'HBM':<10} {_SHOWN(compiled.hbm_bytes):>12} read and written"
    return "\n".join(["work of one chip a step", *lines, moved])


def _collectives(compiled: "Compiled") -> str:
    rows: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0, 0.0, 0.0])
    for one in compiled.found:
        how = ", in parts beside a product" if one.in_ring else ""
        how = ", between slices" if one.is_network else how
        row = rows[f"{one.kind}{how}"]
        near, far = one.sent_bytes(compiled.slices)
        row[:] = row[0] + 1, row[1] + one.runs, row[2] + near, row[3] + far
    lines = ["collectives of a step, bytes that a chip sends"]
    for name, (count, runs, near, far) in sorted(rows.items()):
        other = f", {_SHOWN(far)} to other slices" if far else ""
        shown = f"{count:>4.0f}, run {runs:>6,.0f} times"
        lines.append(f"  {name:<42} {shown}  {_SHOWN(near):>12}{other}")
    return "\n".join(lines if rows else [lines[0], "  none"])


def _time(bound: "Bound", topology: devices.Topology) -> str:
    from roxxel.topology import roofline

    chip = topology.chip
    limits: dict[str, Any] = {
        "compute": f"{chip.peak_flops / 1e12:,.0f} TFLOP/s",
        "HBM": f"{chip.hbm_bytes_per_s / 1e9:,.0f} GB/s",
        "links": f"{chip.link_bytes_per_s / 1e9:,.0f} GB/s, all links of a chip",
        "network": f"{chip.network_bytes_per_s / 1e9:,.4g} GB/s a chip",
    }
    terms = {name: secs for name, secs in bound.terms.items() if secs}
    lines = [
        f"  {name:<10} {secs * 1e3:>10,.2f} ms  at {limits[name]}"
        for name, secs in terms.items()
    ]
    return "\n".join(
        [
            f"time of a step at least: {roofline.FORMULA}",
            *lines,
            f"  {'step':<10} {bound.seconds * 1e3:>10,.2f} ms  by {bound.by}",
            f"  {'tokens/s':<10} {bound.tokens_per_s:>10,.0f} at most",
            f"  {'MFU':<10} {bound.utilization:>10.1%} at most (model FLOPs / peak)",
            "  a bound, not a prediction: runs are slower",
        ]
    )
