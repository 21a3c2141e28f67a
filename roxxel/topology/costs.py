"""Operations of a compiled program, and bytes that go to and from the main memory.

XLA's own sums count the body of a loop once; these count it as often as it runs.
"""

import math
import re
from collections.abc import Sequence

from roxxel.topology import hlo

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_BATCH_GROUPS = re.compile(r"batch_group_count=(\d+)")

# Lines that move nothing by themselves.
_FREE = (
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while"),
    *("conditional", "call", "after-all", "partition-id", "replica-id", "iota"),
    *("add-dependency", "opt-barrier", "domain"),
)
_PARTS = ("slice", "dynamic-slice", "gather", "slice-start", "dynamic-slice-start")


def flops(program: hlo.Program) -> float:
    """Of all products: a multiplication and an addition are two.

    What no product is (norms, exponentials, the optimizer) is not counted, nor are
    kernels written by hand.
    """
    total = 0.0
    for name, computation in program.computations.items():
        runs = program.runs.get(name, 0)
        for line in computation.values() if runs else ():
            if line.opcode == "convolution":
                total += runs * _convolution(computation, line)
            elif line.opcode == "dot":
                total += runs * _dot(computation, line)
    return total


def kernels(program: hlo.Program) -> int:
    """Kernels written by hand (Pallas), whose work `flops` does not see."""
    return sum(
        'custom_call_target="tpu_custom_call"' in line.attributes
        for name, computation in program.computations.items()
        if program.runs.get(name, 0)
        for line in computation.values()
    )


def hbm_bytes(program: hlo.Program) -> float:
    """What kernels read from and write to the main memory at least.

    A kernel reads each operand once, of sliced ones the slices, and writes its results,
    of updated ones the updates. What stays in the chip's fast memory is not counted,
    and neither is the padding of layouts.
    """
    total, fused = 0.0, program.fused()
    for name, computation in program.computations.items():
        runs = 0 if name in fused else program.runs.get(name, 0)
        for line in computation.values() if runs else ():
            total += runs * _moved(program, computation, line)
    return total


def _dot(computation: hlo.Computation, line: hlo.Instruction) -> float:
    left = _operand(computation, line, 0)
    match = _CONTRACTING.search(line.attributes)
    if left is None or match is None:
        return 0.0
    contracted = [left.dims[int(i)] for i in filter(None, match[1].split(","))]
    return 2.0 * math.prod(line.arrays()[0].dims) * math.prod(contracted)


def _convolution(computation: hlo.Computation, line: hlo.Instruction) -> float:
    labels = _LABELS.search(line.attributes)
    left, right = (_operand(computation, line, place) for place in (0, 1))
    if labels is None or left is None or right is None:
        return 0.0
    out = line.arrays()[0]
    inner = right.dims[labels[2].index("i")]
    total = 2.0 * inner * out.dims[labels[3].index("b")]
    total *= out.dims[labels[3].index("f")]
    window = _window(line.attributes)
    for place, letter in enumerate(sorted(set(labels[3]) - {"b", "f"})):
        total *= _positions(
            left.dims[labels[1].index(letter)],
            right.dims[labels[2].index(letter)],
            out.dims[labels[3].index(letter)],
            {key: sizes[place] for key, sizes in window.items() if place < len(sizes)},
        )
    groups = _BATCH_GROUPS.search(line.attributes)
    return total / int(groups[1]) if groups else total


def _window(attributes: str) -> dict[str, list[str]]:
    match = _WINDOW.search(attributes)
    pairs = (part.split("=") for part in (match[1] if match else "").split())
    return {key: value.split("x") for key, value in pairs}


def _positions(size: int, kernel: int, out: int, window: dict[str, str]) -> int:
    """Pairs of an output and a tap of the window that meet an element of the input.

    Products over a batch are windows that meet one element for each output.
    """
    if kernel == 1 and not window.keys() & {"pad", "lhs_dilate"}:
        return out
    stride = int(window.get("stride", 1))
    low = int(window.get("pad", "0_0").split("_")[0])
    dilate, spread = (int(window.get(key, 1)) for key in ("lhs_dilate", "rhs_dilate"))
    return sum(
        _meeting(tap * spread - low, stride, dilate, (size - 1) * dilate, out)
        for tap in range(kernel)
    )


def _meeting(begin: int, step: int, every: int, last: int, count: int) -> int:
    """How many of `begin + step * k`, k < count, are multiples of `every` in [0, last].

    All k of one residue are: it follows from the inverse of `step`.
    """
    low, high = max(0, -(begin // step)), min(count - 1, (last - begin) // step)
    common = math.gcd(step, every)
    if high < low or begin % common:
        return 0
    period = every // common
    first = -begin // common * pow(step // common, -1, period) % period
    first += -((first - low) // period) * period
    return 0 if first > high else (high - first) // period + 1


# -- bytes -------------------------------------------------------------------------


def _moved(
    program: hlo.Program, computation: hlo.Computation, line: hlo.Instruction
) -> float:
    """Bytes of one run of one line."""
    if line.opcode in _FREE or line.opcode.endswith(("-done", "-update")):
        return 0.0
    if "AllocateBuffer" in line.attributes:
        return 0.0
    if line.opcode == "fusion":
        inner = program.computations.get(line.called("calls") or "", {})
        return _fusion(computation, line, inner)
    read = [_in_hbm(computation[name]) for name in line.operands if name in computation]
    result = line.arrays()
    if line.opcode.endswith("-start"):
        # (target, source, flags) of a copy, (operand, result, flags) of others.
        result = result[:1] if line.opcode == "copy-start" else result[1:2] or result
    written = sum(array.num_bytes for array in result if array.in_hbm)
    if line.opcode in _PARTS:
        part = sum(array.num_bytes for array in line.arrays()[:1])
        return written + min(part, read[0] if read else 0)
    if line.opcode == "dynamic-update-slice":
        update = _operand(computation, line, 1)
        return 2.0 * (update.num_bytes if update else 0) if written else 0.0
    return float(sum(read) + written)


def _fusion(
    computation: hlo.Computation, line: hlo.Instruction, inner: hlo.Computation
) -> float:
    users = _users(inner)
    parameters = {
        int(one.inside): one for one in inner.values() if one.opcode == "parameter"
    }
    total = 0.0
    for place, name in enumerate(line.operands):
        operand = computation.get(name)
        whole = _in_hbm(operand) if operand else 0
        parameter = parameters.get(place)
        if whole and parameter is not None:
            total += min(whole, _read(parameter, users))
    root = next((one for one in inner.values() if one.is_root), None)
    outputs = _elements(inner, root) if root else []
    for array, output in zip(line.arrays(), outputs, strict=False):
        if array.in_hbm:
            total += min(array.num_bytes, _written(inner, output, array.num_bytes))
    return total


def _users(inner: hlo.Computation) -> dict[str, list[hlo.Instruction]]:
    users: dict[str, list[hlo.Instruction]] = {name: [] for name in inner}
    for line in inner.values():
        for name in line.operands:
            if name in users:
                users[name].append(line)
    return users


def _read(value: hlo.Instruction, users: dict[str, list[hlo.Instruction]]) -> float:
    """Bytes of a parameter that its kernel reads."""
    total = 0.0
    for user in users[value.name]:
        if user.opcode in _PARTS and user.operands[0] == value.name:
            total += user.arrays()[0].num_bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # updated in place
        elif user.opcode == "tuple":
            continue  # handed through
        elif user.opcode == "bitcast":
            total += _read(user, users)
        else:
            return math.inf
    return total


def _elements(
    inner: hlo.Computation, root: hlo.Instruction
) -> Sequence[hlo.Instruction | None]:
    if root.opcode != "tuple":
        return [root]
    return [inner.get(name) for name in root.operands]


def _written(
    inner: hlo.Computation, output: hlo.Instruction | None, whole: int
) -> float:
    while output is not None and output.opcode == "bitcast":
        output = inner.get(output.operands[0])
    if output is None or output.opcode == "parameter":
        return 0
    if output.opcode == "dynamic-update-slice":
        update = inner.get(output.operands[1])
        return update.arrays()[0].num_bytes if update else whole
    return whole


def _in_hbm(line: hlo.Instruction) -> int:
    return sum(array.num_bytes for array in line.arrays() if array.in_hbm)


def _operand(
    computation: hlo.Computation, line: hlo.Instruction, place: int
) -> hlo.Array | None:
    known = (
        computation.get(line.operands[place]) if len(line.operands) > place else None
    )
    return known.arrays()[0] if known is not None and known.arrays() else None
