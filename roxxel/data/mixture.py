"""Which row of which data set a batch holds: phases and weights as pure integers.

Each data set is cut into *units* of `unit` elements, the least common multiple of all
row lengths, so that a unit is a whole number of rows in every phase. A pass over a data
set takes its units in the order of a keyed permutation, another one each pass. A phase
owns the next run of units; its rows are all rows of these units, shuffled once more
where a unit is more than one row. The next phase begins at the next whole unit: no
element comes twice in a pass, whatever the lengths of rows.

Everything is computed from the position itself; nothing is remembered of the steps
before, and no size grows with the data.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from roxxel.data import order
from roxxel.data.apportion import Apportionment
from roxxel.data.phases import Stage

EXHAUSTION = ("repeat", "stop", "renormalise")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A data set as the plan sees it: its name, and the units of one pass."""

    name: str
    seed: int
    units: int


@dataclasses.dataclass(frozen=True)
class Shares:
    """From draw `start` of a phase on, draws are shared out by `apportionment`.

    `counts` are the draws of each source before `start`.
    """

    start: int
    counts: tuple[int, ...]
    apportionment: Apportionment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leg:
    """A phase in its place: what it draws, from where.

    Attributes:
        start_step: Its first step.
        steps: Its length, None without end.
        rows_per_unit: Rows of this phase in a unit.
        firsts: Of each source the unit that it begins at, counted over all passes.
        units: Of each source how many units it owns, None for all that follow.
        shares: How its draws are shared out; more than one where sources run out.
    """

    start_step: int
    steps: int | None
    batch_size: int
    seq_len: int
    rows_per_unit: int
    firsts: tuple[int, ...]
    units: tuple[int | None, ...]
    shares: tuple[Shares, ...]

    @property
    def stop_step(self) -> int | None:
        """The step behind its last."""
        return None if self.steps is None else self.start_step + self.steps

    def counts(self, draw: int) -> list[int]:
        """Draws of each source among the first `draw` of the phase."""
        shares = [s for s in self.shares if s.start <= draw][-1]
        more = shares.apportionment.counts(draw - shares.start)
        return [a + b for a, b in zip(shares.counts, more, strict=True)]

    def sources(self, start: int, stop: int) -> np.ndarray:
        """The source of each of draws [start, stop), int64."""
        ends = [s.start for s in self.shares[1:]] + [stop]
        out = []
        for shares, end in zip(self.shares, ends, strict=True):
            begin, end = max(start, shares.start), min(end, stop)
            if begin < end:
                run = begin - shares.start, end - shares.start
                out.append(shares.apportionment.parts(*run))
        return np.concatenate(out)

    def row_ids(self, number: int, source: Source, start: int, stop: int) -> np.ndarray:
        """Rows at the phase's draws [start, stop) of source `number`, int64.

        They count rows of `seq_len` elements from the start of the source.
        """
        rows = source.units * self.rows_per_unit  # of a pass
        shift = self.firsts[number] * self.rows_per_unit
        out, at, end = [], shift + start, shift + stop
        while at < end:
            passes, first = divmod(at, rows)
            count = min(end - at, rows - first)
            out.append(self._pass_rows(number, source, passes, first, count))
            at += count
        return out[0] if len(out) == 1 else np.concatenate(out)

    def _pass_rows(
        self, number: int, source: Source, passes: int, first: int, count: int
    ) -> np.ndarray:
        """`count` rows of one pass, from row `first` in the pass's order of units."""
        outer = order.Permutation(source.units, source.seed, passes)
        places, per_unit = np.arange(first, first + count), self.rows_per_unit
        if per_unit == 1:
            return outer(places)
        begin, end = self._owned(number, source.units, passes)
        seed = _derived(source.seed, f"rows {self.firsts[number]} {per_unit}")
        inner = order.Permutation((end - begin) * per_unit, seed, passes)
        places = inner(places - begin * per_unit)
        units, rows = np.divmod(places, per_unit)
        return outer(units + begin) * per_unit + rows

    def _owned(self, number: int, units: int, passes: int) -> tuple[int, int]:
        """The places in the order of one pass that belong to this phase."""
        first, owned = self.firsts[number], self.units[number]
        begin = max(0, first - passes * units)
        if owned is None:
            return begin, units
        return begin, min(units, first + owned - passes * units)


def sources(sizes: dict[str, int], seed: int) -> list[Source]:
    """Sources by name, each with an order of its own; a single one has `seed`'s.

    Args:
        sizes: Units of a pass.
        seed: Of the mixture.
    """
    alone = len(sizes) == 1
    return [
        Source(
            name=name,
            seed=seed if alone else _derived(seed, f"source {name}"),
            units=sizes[name],
        )
        for name in sorted(sizes)
    ]


def plan(
    stages: Sequence[tuple[Stage, Sequence[Fraction]]],
    *,
    sizes: Sequence[int],
    unit: int,
    exhaustion: str,
) -> list[Leg]:
    """The phases in their places; ends early where the policy says so.

    Args:
        stages: Phases and the weights of the sources in each.
        sizes: Units of a pass of each source.
        unit: Elements of a unit.
        exhaustion: One of `EXHAUSTION`.
    """
    legs, firsts, start_step = [], [0] * len(sizes), 0
    for stage, weights in stages:
        per_unit = unit // stage.seq_len
        room = [(n - first) * per_unit for n, first in zip(sizes, firsts, strict=True)]
        shares, end = _shares(weights, room, exhaustion)
        steps = stage.steps
        if end is not None:
            steps = min(x for x in (steps, end // stage.batch_size) if x is not None)
        leg = Leg(
            start_step=start_step,
            steps=steps,
            batch_size=stage.batch_size,
            seq_len=stage.seq_len,
            rows_per_unit=per_unit,
            firsts=tuple(firsts),
            units=(None,) * len(sizes),
            shares=shares,
        )
        if steps is None:
            return [*legs, leg]
        owned = [-(-n // per_unit) for n in leg.counts(steps * stage.batch_size)]
        if steps:
            legs.append(dataclasses.replace(leg, units=tuple(owned)))
        if steps != stage.steps:
            break
        firsts = [a + b for a, b in zip(firsts, owned, strict=True)]
        start_step += steps
    return legs


def _shares(
    weights: Sequence[Fraction], room: Sequence[int], exhaustion: str
) -> tuple[tuple[Shares, ...], int | None]:
    """How draws are shared out, and after how many there are no more."""
    counts = (0,) * len(weights)
    if exhaustion != "renormalise":
        apportionment = Apportionment(weights)
        end = None
        if exhaustion == "stop":
            too_many = [apportionment.fewest(i, n + 1) for i, n in enumerate(room)]
            end = min((n - 1 for n in too_many if n is not None), default=None)
        return (Shares(0, counts, apportionment),), end
    return _renormalised(weights, room)


def _renormalised(
    weights: Sequence[Fraction], room: Sequence[int]
) -> tuple[tuple[Shares, ...], int | None]:
    """A source that has run out has weight 0 from the next draw on."""
    out, start, counts = [], 0, [0] * len(room)
    while True:
        left = [n - count for n, count in zip(room, counts, strict=True)]
        weights = [w if n else Fraction(0) for w, n in zip(weights, left, strict=True)]
        if not any(weights):
            break
        apportionment = Apportionment(weights)
        out.append(Shares(start, tuple(counts), apportionment))
        ends = [apportionment.fewest(i, n) for i, n in enumerate(left) if weights[i]]
        length = min((n for n in ends if n is not None), default=None)
        if length is None:
            return tuple(out), None
        more = apportionment.counts(length)
        counts = [a + b for a, b in zip(counts, more, strict=True)]
        start += length
    if not out:  # all had run out before
        out = [Shares(0, tuple(counts), Apportionment([Fraction(1)] * len(room)))]
    return tuple(out), start


def _derived(seed: int, use: str) -> int:
    text = f"roxxel mixture 1 {seed} {use}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")
