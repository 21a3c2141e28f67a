"""What chips of a compiled program send to each other.

XLA cuts one collective into pieces that run beside other work, a chain; it is counted
once, where it starts. A channel tells nothing: a loop and its last trip, which XLA may
take out of it, have the same. Two forms are told by the name of the computation they
are in: a product whose operand or result goes round a ring in parts ("windowed"), and
an all-reduce of which each chip keeps its part ("all-reduce-scatter").
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

from roxxel.topology import hlo

KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)
_RING = {"body_ag": "all-gather", "body_rs": "reduce-scatter"}
# Between slices chips hand their part to the host, which says what becomes of it.
_NETWORK = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_CHAIN = re.compile(r'chain_id="(\d+)"')
_GROUPS = re.compile(r"replica_groups=(.*?\}\}|mesh\[.*?\] \{.*?\}|\[.*?\]<=\S+|\{\})")
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One operation of a program.

    Attributes:
      kind: of `KINDS`.
      runs: how often it runs in a step.
      operand_bytes: what each chip puts in, each time.
      groups: partitions that take part together; empty for a permutation.
      in_ring: it is a step of a product in parts.
      is_network: it goes between slices, through the hosts.
    """

    kind: str
    runs: int
    operand_bytes: int
    groups: tuple[tuple[int, ...], ...] = ()
    in_ring: bool = False
    is_network: bool = False

    def sent_bytes(self, slices: Sequence[int]) -> tuple[float, float]:
        """What a chip sends in a step at least, (between chips, between slices).

        Of a group of h chips in each of s slices, rings inside the slices carry
        `b (h-1)/h` for a reduce-scatter of b bytes, twice that for an all-reduce, and
        `b (h-1)` for an all-gather of b bytes a chip (over all slices `s b (h-1)`);
        between slices go `(s-1)/s` of what is left for a chip.

        Args:
          slices: the slice of each partition.
        """
        if not self.groups and not self.is_network:
            return float(self.operand_bytes * self.runs), 0.0
        group = max(self.groups, key=len, default=())
        spread = len({slices[member] for member in group} or set(slices))
        size = len(group) or spread
        inner = size // spread
        whole = self.operand_bytes * (size if self.kind == "all-gather" else 1)
        passes = 2 if self.kind == "all-reduce" else 1
        near = passes * whole * (inner - 1) / inner
        far = passes * whole / inner * (spread - 1) / spread
        return near * self.runs, far * self.runs


def find(program: hlo.Program, num_partitions: int) -> list[Collective]:
    """The collectives of a program that run, each once."""
    found: dict[object, Collective] = {}
    for name, computation in program.computations.items():
        runs = program.runs.get(name, 0)
        for line in computation.values() if runs else ():
            kind, is_network = _kind(line)
            if kind not in KINDS:
                continue
            one = _collective(kind, name, computation, line, runs, num_partitions)
            if is_network:
                one = dataclasses.replace(one, groups=(), is_network=True)
            chain = _CHAIN.search(line.attributes)
            key = chain[1] if chain else (name, line.name)
            # Pieces may lie in inner loops, but the start is where it runs.
            if key not in found or one.runs < found[key].runs:
                found[key] = one
    return [one for one in found.values() if one.operand_bytes]


def _kind(line: hlo.Instruction) -> tuple[str, bool]:
    network = _NETWORK.search(line.attributes)
    if line.opcode != "send" or network is None:
        return line.opcode.removesuffix("-start"), False
    kind = network[1].lower().replace("_", "-")
    return kind if kind in KINDS else "collective-permute", True


def _collective(kind, where, computation, line, runs, num_partitions) -> Collective:
    operands = [computation[name] for name in line.operands if name in computation]
    num_bytes = sum(a.num_bytes for operand in operands for a in operand.arrays())
    in_ring = kind == "collective-permute" and "windowed_dot_general" in where
    groups = () if kind == "collective-permute" else _groups(line, num_partitions)
    if in_ring:
        kind = next((k for part, k in _RING.items() if part in where), kind)
    elif kind == "all-reduce" and "all-reduce-scatter" in where:
        kind = "reduce-scatter"
    if groups and max(map(len, groups)) == 1:
        num_bytes = 0  # nobody to talk to
    return Collective(
        kind=kind,
        runs=runs,
        operand_bytes=num_bytes,
        groups=groups,
        in_ring=in_ring,
    )


def _groups(line: hlo.Instruction, num_partitions: int) -> tuple[tuple[int, ...], ...]:
    match = _GROUPS.search(line.attributes)
    text = match[1] if match else ""
    everyone = (tuple(range(num_partitions)),)
    if text.startswith("{{"):
        rows = re.findall(r"\{([\d,]+)\}", text)
        return tuple(tuple(map(int, row.split(","))) for row in rows)
    if iota := _IOTA.match(text):
        shape, dims = (_ints(iota[1]), _ints(iota[2]))
        order = _ints(iota[3]) if iota[3] else tuple(range(len(dims)))
        ids = _transposed(dims, order)
        return _rows(ids, math.prod(shape[1:])) or everyone
    if text.startswith("mesh["):
        return _mesh_groups(text) or everyone
    return everyone


def _mesh_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Of `mesh['a'=2,'b'=4] {'b'}`: along the axes named last, in the mesh's order."""
    mesh, _, chosen = text.partition("] {")
    axes = [(name, int(size)) for name, size in _MESH_AXIS.findall(mesh)]
    names = set(re.findall(r"'([^']+)'", chosen))
    along = [i for i, (name, _) in enumerate(axes) if name in names]
    across = [i for i in range(len(axes)) if i not in along]
    dims = tuple(size for _, size in axes)
    ids = _transposed(dims, (*across, *along))
    return _rows(ids, math.prod(dims[i] for i in along))


def _rows(ids: list[int], length: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(ids[at : at + length]) for at in range(0, len(ids), length))


def _transposed(dims: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """Row-major numbers of a grid of `dims`, read with its axes in another order."""
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    ranges = (range(dims[axis]) for axis in order)
    return [
        sum(step * strides[axis] for step, axis in zip(index, order, strict=True))
        for index in itertools.product(*ranges)
    ]


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
