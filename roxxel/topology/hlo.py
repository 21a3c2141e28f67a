"""The text of a compiled program taken apart: computations, instructions, how often.

The text is XLA's HLO after its optimizations. A computation runs once for each
time that a loop, a fusion or a call runs it; loops tell their trips, or their condition
compares a counter with a constant.
"""

import collections
import dataclasses
import re
from typing import NamedTuple

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
# Attributes of kernels go over lines, and such a line may begin with a brace too.
_END = re.compile(r"\}(, execution_thread=\S+)?\s*$")
_NAMED = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\](\{[^}]*\})?")
_CALLS = re.compile(r"(calls|body|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations=\{|true_computation=)([^}]*)")
_KNOWN_TRIPS = re.compile(r'known_trip_count"?[=:]\{"?n"?:"?(\d+)')
_BITS = re.compile(r"[a-z]+(\d+)")
_CALLERS = ("fusion", "call", "async-start", "custom-call")
_PLAIN = ("copy", "bitcast", "copy-done", "convert")


class Array(NamedTuple):
    """One array of a shape: dtype, dims, and whether it lies in the main memory.

    Scalars do not.
    """

    dtype: str
    dims: tuple[int, ...]
    in_hbm: bool

    @property
    def num_bytes(self) -> int:
        """Without the padding of its layout."""
        size = 1
        for dim in self.dims:
            size *= dim
        return (size * _bits(self.dtype) + 7) // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: `name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    inside: str  # between the parentheses
    attributes: str
    is_root: bool

    def arrays(self) -> list[Array]:
        """What it results in; of a tuple each element."""
        return arrays(self.shape)

    def called(self, kind: str) -> str | None:
        """The computation of `calls=`, `body=` or `to_apply=`."""
        for name, computation in _CALLS.findall(self.attributes):
            if name == kind:
                return computation
        return None


Computation = dict[str, Instruction]


@dataclasses.dataclass
class Program:
    """A module.

    Attributes:
      computations: by name, callees before callers.
      entry: the name of the one that the others are called from.
      runs: how often each runs in one call of the program.
      unknown_loops: loops whose trips are not known and count as one.
    """

    computations: dict[str, Computation]
    entry: str
    runs: dict[str, int] = dataclasses.field(default_factory=dict)
    unknown_loops: int = 0

    def fused(self) -> set[str]:
        """Computations that are the inside of one kernel."""
        return {
            inner
            for computation in self.computations.values()
            for line in computation.values()
            if line.opcode == "fusion" and (inner := line.called("calls"))
        }


def arrays(shape: str) -> list[Array]:
    """The arrays of a shape, of a tuple each element."""
    return [
        Array(
            dtype,
            tuple(map(int, filter(None, dims.split(",")))),
            bool(dims) and "S(" not in (layout or ""),
        )
        for dtype, dims, layout in _ARRAY.findall(shape)
    ]


def parse(text: str) -> Program:
    """The program of a module's text.

    Raises:
      ValueError: the text holds no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, inside = "", None
    for line in text.splitlines():
        if inside is None:
            header = _HEADER.match(line)
            if header:
                inside = computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
        elif _END.match(line):
            inside = None
        elif instruction := _instruction(line):
            inside[instruction.name] = instruction
    if not entry:
        raise ValueError("the text is no HLO module: it has no ENTRY computation.")
    program = Program(computations, entry)
    _count_runs(program)
    return program


def _instruction(line: str) -> Instruction | None:
    named = _NAMED.match(line)
    if named is None:
        return None
    start = named.end()
    is_tuple = line[start] == "("
    end = _closing(line, start) + 1 if is_tuple else line.index(" ", start)
    opening = line.index("(", end)
    closing = _closing(line, opening)
    inside = line[opening + 1 : closing]
    return Instruction(
        name=named[2],
        shape=line[start:end],
        opcode=line[end:opening].strip(),
        operands=tuple(_OPERAND.findall(inside)),
        inside=inside,
        attributes=line[closing + 1 :],
        is_root=bool(named[1]),
    )


def _closing(line: str, opening: int) -> int:
    depth = 0
    for match in re.compile(r"[()]").finditer(line, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(line)


# -- how often ---------------------------------------------------------------------


def _count_runs(program: Program) -> None:
    runs: dict[str, int] = collections.defaultdict(int, {program.entry: 1})
    for name in reversed(program.computations):  # callers come after callees
        times = runs[name]
        if not times:
            continue
        for line in program.computations[name].values():
            for called, factor in _callees(program, name, line):
                runs[called] += times * factor
    program.runs = dict(runs)


def _callees(program: Program, where: str, line: Instruction) -> list[tuple[str, int]]:
    if line.opcode == "while":
        body = line.called("body")
        trips = _trips(program, where, line)
        program.unknown_loops += trips is None
        return [(body, trips or 1)] if body else []
    if line.opcode == "conditional":
        branches = _BRANCHES.findall(line.attributes)
        return [(name, 1) for name in _OPERAND.findall(" ".join(branches))]
    if line.opcode in _CALLERS:
        inner = line.called("calls") or line.called("to_apply")
        return [(inner, 1)] if inner else []
    return []


def _trips(program: Program, where: str, loop: Instruction) -> int | None:
    known = _KNOWN_TRIPS.search(loop.attributes)
    if known:
        return int(known[1])
    match = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
    condition = program.computations.get(match[1] if match else "", {})
    body = program.computations.get(loop.called("body") or "", {})
    root = next((line for line in condition.values() if line.is_root), None)
    step_root = next((line for line in body.values() if line.is_root), None)
    if root is None or step_root is None or "direction=LT" not in root.attributes:
        return None
    counter = _linear(condition, root.operands[0])
    limit = _linear(condition, root.operands[1])
    if counter is None or limit is None or counter[0] is None or limit[0] is not None:
        return None
    after = _linear(body, step_root.operands[counter[0]])
    if after is None or after[0] != counter[0] or after[1] < 1:
        return None
    begin = _begin(program.computations[where], loop, counter[0])
    return max(0, -(-(limit[1] - counter[1] - begin) // after[1]))


def _begin(computation: Computation, loop: Instruction, index: int) -> int:
    """The counter's first value; 0 where that is not plain."""
    init = computation.get(loop.operands[0]) if loop.operands else None
    if init is None or init.opcode != "tuple":
        return 0
    value = _linear(computation, init.operands[index])
    return value[1] if value is not None and value[0] is None else 0


def _linear(computation: Computation, name: str) -> tuple[int | None, int] | None:
    """A value as (element of the loop's state or None, what is added to it)."""
    line = computation.get(name)
    if line is None:
        return None
    if line.opcode == "constant" and line.inside.lstrip("-").isdigit():
        return None, int(line.inside)
    if line.opcode == "get-tuple-element":
        source = computation.get(line.operands[0])
        index = re.search(r"index=(\d+)", line.attributes)
        if source is not None and source.opcode == "parameter" and index:
            return int(index[1]), 0
        return None
    if line.opcode in _PLAIN and line.operands:
        return _linear(computation, line.operands[0])
    if line.opcode == "add":
        left, right = (_linear(computation, operand) for operand in line.operands)
        if left and right and None in (left[0], right[0]):
            index = left[0] if right[0] is None else right[0]
            return index, left[1] + right[1]
    return None


def _bits(dtype: str) -> int:
    match = _BITS.match(dtype)
    return int(match[1]) if match else {"pred": 8}.get(dtype, 0)
