"""Which operations take a device's time: a trace of XLA's profiler, as a table.

A trace (`*.xplane.pb`) has planes (a device, the host), these have lines (a stream, a
thread), and these have events. On an accelerator the operations are the events of a
device's plane, on a CPU those of the host's threads that name an operation of a
program (`hlo_op`). A loop encloses the events of its body: each operation counts by the
time that is its own, so that rows sum to what the devices were busy.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

MOST_ROWS = 25
_NAME_WIDTH, _ORIGIN_WIDTH = 34, 70
_NS = 1e-9

# `%dot.3 = f32[8,8]{1,0} dot(...), metadata={op_name="jit(step)/.../dot_general" ...}`
_ORIGIN = re.compile(
    r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?metadata=\{[^}]*?op_name="([^"]*)"', re.MULTILINE
)
# What only wraps the function in the name of an operation.
_WRAPPERS = re.compile(r"^jit\([^)]*\)/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """All calls of one operation of a program, on all devices of this process.

    Attributes:
      name: in the compiled program.
      origin: where it comes from in the model, "" where that is not known.
      seconds: of its own, without the operations inside of it.
      calls: how often it ran.
    """

    name: str
    origin: str
    seconds: float
    calls: int


def read(
    path: str | os.PathLike, origins: Mapping[str, str] | None = None
) -> list[Operation]:
    """The operations of a trace, that with the most time first.

    Args:
      path: of an `.xplane.pb` file.
      origins: of operations by name, see `origins`.
    """
    planes = list(jax.profiler.ProfileData.from_file(os.fspath(path)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    spent: dict[str, list[float]] = {}
    for plane in devices or planes:
        for events in _lines(plane):
            for name, seconds in own_seconds(events):
                spent.setdefault(name, []).append(seconds)
    found = [
        Operation(
            name=name,
            origin=(origins or {}).get(name, ""),
            seconds=sum(calls),
            calls=len(calls),
        )
        for name, calls in spent.items()
    ]
    return sorted(found, key=lambda one: -one.seconds)


def _lines(plane: Any) -> Iterable[list[tuple[str, float, float]]]:
    """Events of operations, by line: name, begin and end in ns."""
    lines = list(plane.lines)
    named = [line for line in lines if line.name == "XLA Ops"]
    for line in named or lines:
        events = []
        for event in line.events:
            name = _operation(event, is_named=bool(named))
            if name is not None:
                events.append((name, event.start_ns, event.end_ns))
        yield events


def _operation(event: Any, *, is_named: bool) -> str | None:
    if event.name.startswith("end: "):  # a mark of CPU threads
        return None
    operation = next((v for k, v in event.stats if k == "hlo_op"), None)
    if operation is None and not is_named:
        return None
    # A TPU's event may be called by the whole line of the program.
    name = str(operation or event.name)
    return name.partition(" = ")[0].removeprefix("%")


def own_seconds(
    events: Sequence[tuple[str, float, float]],
) -> list[tuple[str, float]]:
    """Name and own seconds of each event: its time without that of events inside it.

    `events` are name, begin and end in nanoseconds, of one thread or stream.
    """
    found: list[tuple[str, float]] = []
    open_events: list[list] = []  # name, end, own ns

    def close() -> None:
        name, _, own = open_events.pop()
        found.append((name, max(own, 0.0) * _NS))

    for name, begin, end in sorted(events, key=lambda event: (event[1], -event[2])):
        while open_events and open_events[-1][1] <= begin:
            close()
        if open_events:
            open_events[-1][2] -= min(end, open_events[-1][1]) - begin
        open_events.append([name, end, end - begin])
    while open_events:
        close()
    return found


def origins(program: Any) -> dict[str, str]:
    """Where the operations of a compiled program come from, by name."""
    as_text = getattr(program, "as_text", None)
    text = as_text() if callable(as_text) else ""
    return {name: _short(origin) for name, origin in _ORIGIN.findall(text or "")}


def _short(origin: str) -> str:
    """Without the program's own name."""
    return _WRAPPERS.sub("", origin)


def text(found: Sequence[Operation], *, wall: float, steps: int) -> str:
    """The operations with the most time as a table; `wall` seconds were traced."""
    busy = sum(one.seconds for one in found)
    if not busy:
        return "Operations: the trace holds none."
    devices = jax.local_device_count()
    lines = [
        f"Operations: {1e3 * busy / steps:.2f} ms a step on {devices} "
        f"{jax.devices()[0].platform} device(s) of this process, "
        f"{100 * busy / (wall * devices):.0f} % of their time",
        f"{'ms/step':>9} {'share':>6} {'calls/step':>10}  operation",
    ]
    for one in found[:MOST_ROWS]:
        lines.append(
            f"{1e3 * one.seconds / steps:9.3f} {100 * one.seconds / busy:5.1f}% "
            f"{one.calls / steps:10.1f}  {one.name:<{_NAME_WIDTH}}  "
            f"{_cut(one.origin)}".rstrip()
        )
    rest = found[MOST_ROWS:]
    if rest:
        spent = sum(one.seconds for one in rest)
        lines.append(
            f"{1e3 * spent / steps:9.3f} {100 * spent / busy:5.1f}% "
            f"{sum(one.calls for one in rest) / steps:10.1f}  {len(rest)} others"
        )
    return "\n".join(lines)


def _cut(origin: str) -> str:
    """The end says what it is, the beginning only where."""
    if len(origin) <= _ORIGIN_WIDTH:
        return origin
    return ".." + origin[2 - _ORIGIN_WIDTH :]


def phases_text(seconds: Mapping[str, float], *, steps: int) -> str:
    """Host time by phase of the run's clock as a table, most first."""
    total = sum(seconds.values()) or 1.0
    lines = [
        "Host time by phase ('step' waits for the device)",
        f"{'ms/step':>9} {'share':>6}  phase",
    ]
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        if spent > 0:
            share = 100 * spent / total
            lines.append(f"{1e3 * spent / steps:9.3f} {share:5.1f}%  {name}")
    return "\n".join(lines)
