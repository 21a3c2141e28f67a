"""`MixtureStream`: shuffled batches of several data sets, by weights and phases."""

import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel.data import batches, mixture_position, mixture_setup, origins, steps
from roxxel.data.mixture_batches import MixtureBatches
from roxxel.data.streaming import StepStream, check_same
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.data.phases import Phase
    from roxxel.data.placement import Placement
    from roxxel.dataset import Roxxel

_SAME_ON_RESUME = ("seed", "overlap", "exhaustion", "fingerprint")


class MixtureStream(StepStream):
    """Batches [batch_size, seq_len + overlap] of rows of several data sets.

    Draw n of a phase goes to the data set that a tree of weights says: each node gives
    floor(n * share) of its first n draws to one half of its data sets and the others to
    the other half. So after any number of draws each data set has its weight's share of
    them, within log2 of the number of data sets, rounded up. Draw k of a data set is
    row k of passes over it, each pass in another shuffled order, every row once. Both
    are closed forms: any step costs the same, and nothing is remembered.

    Phases may change weights, batch_size and seq_len. Rows of several lengths are cut
    from units of the least common multiple of all seq_lens, and a phase begins at a
    unit that no phase before touched: in a pass no element comes twice (but for
    `overlap`), and every row is contiguous in its data set. What that leaves out is
    less than one unit of each data set at each end of a phase.

    A mixture of one data set and one phase has the batches of `dataset.stream` in the
    first pass; then it goes on with the next pass in the middle of a batch, where
    `dataset.stream` leaves the rows behind the last whole batch out.

    Args:
        mix: Data sets by name; opened if they are not yet.
        weights: How often each is drawn, all by name; 0 for never. None draws from each
            in proportion to its elements.
        phases: One after the other; what a `Phase` leaves out is as here. None is a
            single phase without end, or of `tokens`.
        seq_len: Elements from the start of a row to that of the next; left out where
            all phases have their own, and for items of one shape.
        batch_size: Rows of the global batch, over all processes.
        seed: Any int; with the names it fixes the orders.
        exhaustion: What happens when a data set has been seen once. "repeat" goes on
            with another pass over it. "stop" ends the stream with the last whole batch
            before. "renormalise" shares its weight out among the others, and ends with
            the last whole batch before all are out.
        tokens: Elements predicted in all phases: what fractions are of, and what a last
            phase without length fills up.
        overlap: Elements that a row shares with the next; 1 gives every input a target.
        dtype: Of the batches; as in `RoxxelStream`, one for all data sets.
        mesh: Mesh to place batches on, rows over its first axis.
        data_sharding: A jax sharding, or a PartitionSpec over `mesh`, in its place.
        prefetch: Batches made ahead while iterating; as in `RoxxelStream`.
        start_step: First step of the iteration, which ends where the phases do.

    Raises:
        ConfigError: A name, weight, size or length is wrong, a data set holds less than
            one unit, or the batch does not divide over the devices.
        TypeError: The seed is no int.
    """

    def __init__(
        self,
        mix: Mapping[str, "Roxxel"],
        *,
        weights: Mapping[str, float] | None = None,
        phases: Sequence["Phase"] | None = None,
        seq_len: int | None = None,
        batch_size: int = 32,
        seed: int = 42,
        exhaustion: str = "repeat",
        tokens: int | None = None,
        overlap: int = 0,
        dtype=None,
        mesh=None,
        data_sharding=None,
        prefetch: int | None = None,
        start_step: int = 0,
    ):
        setup = mixture_setup.prepare(
            mix,
            weights=weights,
            phases=phases,
            seq_len=seq_len,
            batch_size=batch_size,
            seed=seed,
            exhaustion=exhaustion,
            tokens=tokens,
            overlap=overlap,
            dtype=dtype,
        )
        self._setup = setup
        self.datasets = setup.datasets
        self.seed, self.overlap, self.dtype = setup.seed, setup.overlap, setup.dtype
        self._legs = setup.legs(setup.stages, exhaustion)
        if not self._legs:
            raise ConfigError(
                "a data set runs out before the first batch is whole, under"
                f" exhaustion={exhaustion!r}; use a smaller batch_size, 'repeat', or"
                f" more data: units are {self._units()}."
            )
        self._placements: list[Placement] | None = None
        super().__init__(
            start_step=self._checked(start_step, "start_step"),
            end_step=self.planned_steps,
            prefetch=prefetch,
        )
        if mesh is not None or data_sharding is not None:
            self._put_on(mesh, data_sharding)

    @property
    def batch_size(self) -> int:
        """Rows of the global batch in the first phase; `spans` tells all."""
        return self._legs[0].batch_size

    @property
    def seq_len(self) -> int:
        """Elements of a row in the first phase; `spans` tells all."""
        return self._legs[0].seq_len

    @property
    def num_elements(self) -> int:
        """Elements of all data sets together."""
        return sum(data.num_elements for data in self.datasets.values())

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """Steps in which no row comes twice, at least one.

        That is until the first data set has been seen once, or under "renormalise" the
        last one; the last phase going on until then.
        """
        *before, last = self._setup.stages
        stages = [*before, dataclasses.replace(last, steps=None)]
        exhaustion = self._setup.exhaustion
        policy = "stop" if exhaustion == "repeat" else exhaustion
        legs = self._setup.legs(stages, policy)
        return max(1, legs[-1].stop_step or 1) if legs else 1

    @functools.cached_property
    def _spans(self) -> tuple[steps.Span, ...]:
        spans: list[steps.Span] = []
        for leg in self._legs:
            span = steps.Span(
                leg.start_step, leg.stop_step, leg.batch_size, leg.seq_len
            )
            shape = (span.batch_size, span.seq_len)
            if spans and shape == (spans[-1].batch_size, spans[-1].seq_len):
                span = dataclasses.replace(span, start=spans.pop().start)
            spans.append(span)
        return tuple(spans)

    def spans(self) -> tuple[steps.Span, ...]:
        """The steps of one batch shape each; phases of one shape are one span."""
        return self._spans

    @property
    def sharding(self) -> Any:
        """The jax sharding of the batches, None for numpy batches."""
        return self._placements[0].sharding if self._placements else None

    def position(self, step: int) -> dict:
        """Where the data stand after `step` completed steps, as plain JSON values.

        `phase` and `draws_in_phase` say where the next batch begins, `phases` what made
        the batches so far, `elements` what was consumed since step 0 and `drawn` how
        much of each data set; `fingerprint` is that of each data set, `unit` the number
        of elements that orders are made of.
        """
        step = self._checked(step)
        number, draws = mixture_position.locate(self._legs, step)
        leg, setup = self._legs[number], self._setup
        drawn = mixture_position.drawn(self._legs, step, setup.names)
        return {
            "step": step,
            "seed": self.seed,
            "overlap": self.overlap,
            "exhaustion": setup.exhaustion,
            "batch_size": leg.batch_size,
            "seq_len": leg.seq_len,
            "unit": setup.unit,
            "phase": number,
            "draws_in_phase": draws,
            "phases": self._phases()[: number + 1],
            "elements": self.tokens(step),
            "drawn": drawn,
            "fingerprint": {k: v.fingerprint() for k, v in self.datasets.items()},
        }

    def step_of(self, position: dict) -> int:
        """The step of this stream that begins at a saved `position`.

        Phases that begin there or later may be others than when it was saved, as long
        as all seq_lens keep their least common multiple, `unit`. With another
        batch_size in the phase of the position it is the step of the first row not yet
        seen.

        Raises:
            ConfigError: No step begins there, or seed, data sets, weights or phases
                before it are others; names what was saved and what is now.
        """
        check_same(position, self.position(0), _SAME_ON_RESUME)
        step = mixture_position.step_at(position, self._legs, self._phases())
        if position["unit"] != self._setup.unit:
            raise ConfigError(
                f"the seq_lens of all phases had the least common multiple"
                f" {position['unit']} when the position was saved and have"
                f" {self._setup.unit} now, which orders all data anew; give phases"
                " behind the position other seq_lens."
            )
        return step

    def origins(self, step: int) -> list[origins.Origin]:
        """Where each row of a step's batch comes from, in the order of the batch."""
        step = self._checked(step)
        leg = next(leg for leg in reversed(self._legs) if leg.start_step <= step)
        first = (step - leg.start_step) * leg.batch_size
        stop = first + leg.batch_size
        drawn, found = leg.sources(first, stop), []
        before, after = leg.counts(first), leg.counts(stop)
        for k, (name, dataset) in enumerate(self.datasets.items()):
            if before[k] < after[k]:
                source = self._setup.sources[k]
                found += origins.of_ids(
                    leg.row_ids(k, source, before[k], after[k]),
                    name=name,
                    dataset=dataset,
                    seq_len=leg.seq_len,
                    positions=np.flatnonzero(drawn == k),
                )
        return sorted(found, key=lambda origin: origin.position)

    def _phases(self) -> list[dict]:
        weights = [stage.weights for stage in self._setup.stages]
        return mixture_position.described(self._legs, weights)

    def _runner(self) -> Callable[[int, int], Generator]:
        places = self._placements
        return MixtureBatches(
            datasets=list(self.datasets.values()),
            sources=self._setup.sources,
            legs=self._legs,
            overlap=self.overlap,
            dtype=self.dtype,
            places=[place.put for place in places] if places else None,
            item_shape=self._setup.item_shape,
        ).run

    def _put_on(self, mesh, data_sharding) -> None:
        from roxxel.data import placement

        sharding = placement.resolve_sharding(mesh, data_sharding)
        self._placements = [
            batches.placement_of(
                sharding,
                batch_size=leg.batch_size,
                seq_len=leg.seq_len,
                overlap=self.overlap,
                item_shape=self._setup.item_shape,
                dtype=self.dtype,
            )
            for leg in self._legs
        ]

    def _units(self) -> str:
        return ", ".join(f"{s.name}: {s.units}" for s in self._setup.sources)
