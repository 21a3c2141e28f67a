"""The arguments of a mixture, checked and resolved to a plan."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roxxel.data import mixture, order, steps
from roxxel.data.batches import fixed_shape, resolve_dtype, row_elements
from roxxel.data.phases import Phase, Stage, check_weights, exact_weights, resolve
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.dataset import Roxxel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """A mixture without devices: everything that makes its host batches.

    Attributes:
        datasets: By name, in the order of names.
        sources: The same as the plan sees them.
        stages: The phases as asked for.
        legs: The phases in their places, as far as the data go.
        unit: Elements that orders are made of; all row lengths divide it.
        item_shape: Of the items where rows are items, else ().
    """

    datasets: dict[str, "Roxxel"]
    seed: int
    overlap: int
    exhaustion: str
    dtype: np.dtype
    item_shape: tuple[int, ...]
    unit: int
    sources: list[mixture.Source]
    stages: list[Stage]

    @property
    def names(self) -> list[str]:
        """Names of the data sets, sorted."""
        return list(self.datasets)

    def legs(self, stages: Sequence[Stage], exhaustion: str) -> list[mixture.Leg]:
        """The phases in their places."""
        return mixture.plan(
            [(stage, exact_weights(stage.weights, self.names)) for stage in stages],
            sizes=[source.units for source in self.sources],
            unit=self.unit,
            exhaustion=exhaustion,
        )


def prepare(
    mix: Mapping[str, "Roxxel"],
    *,
    weights: Mapping[str, float] | None,
    phases: Sequence[Phase] | None,
    seq_len: int | None,
    batch_size: int,
    seed: int,
    exhaustion: str,
    tokens: int | None,
    overlap: int,
    dtype,
) -> Setup:
    """Arguments and errors are those of `MixtureStream`."""
    if exhaustion not in mixture.EXHAUSTION:
        raise ConfigError(
            f"exhaustion must be one of {', '.join(mixture.EXHAUSTION)}, got"
            f" {exhaustion!r}."
        )
    datasets, given = _checked_mix(mix), _checked_phases(phases)
    overlap = steps.not_negative("overlap", overlap)
    seed = order.check_seed(seed)
    item_shape = _common_shape(datasets)
    lengths = _lengths(datasets, given, seq_len, overlap)
    unit = math.lcm(*lengths)
    sizes = {
        name: steps.num_rows(data.num_elements, unit, overlap)
        for name, data in datasets.items()
    }
    if weights is None:  # a data set without a whole unit is refused, not left out
        weights = {name: max(1, units) for name, units in sizes.items()}
    check_weights(weights)
    default = Stage(
        steps=None,
        batch_size=steps.positive("batch_size", batch_size),
        seq_len=lengths[0] if seq_len is None else steps.positive("seq_len", seq_len),
        weights=dict(weights),
    )
    if tokens is not None:
        tokens = steps.positive("tokens", tokens)
    setup = Setup(
        datasets=datasets,
        seed=seed,
        overlap=overlap,
        exhaustion=exhaustion,
        dtype=_common_dtype(datasets, dtype),
        item_shape=item_shape,
        unit=unit,
        sources=mixture.sources(sizes, seed),
        stages=resolve(given, default, tokens),
    )
    _check_sizes(setup, lengths)
    return setup


def _checked_mix(mix) -> dict[str, "Roxxel"]:
    if not isinstance(mix, Mapping) or not mix:
        raise ConfigError(f"mix must be a dict of name: data set, got {mix!r}.")
    for name, data in mix.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"mix has the name {name!r}, expected a str.")
        if not hasattr(data, "num_elements"):
            raise ConfigError(f"mix[{name!r}] is {data!r}, not a Roxxel.")
    return {name: mix[name] for name in sorted(mix)}


def _checked_phases(phases) -> list[Phase]:
    phases = [] if phases is None else phases
    if isinstance(phases, Phase) or not isinstance(phases, Sequence):
        raise ConfigError(f"phases must be a list of Phase, got {phases!r}.")
    for i, phase in enumerate(phases):
        if not isinstance(phase, Phase):
            raise ConfigError(f"phase {i} is {phase!r}, expected a Phase.")
    return list(phases)


def _lengths(
    datasets: Mapping[str, "Roxxel"],
    phases: Sequence[Phase],
    seq_len: int | None,
    overlap: int,
) -> list[int]:
    """Elements of a row in each phase."""
    data = next(iter(datasets.values()))
    wanted = [p.seq_len or seq_len for p in phases] or [seq_len]
    return [row_elements(data, length, overlap) for length in wanted]


def _common_shape(datasets: Mapping[str, "Roxxel"]) -> tuple[int, ...]:
    """Shape of the items of all data sets, () for sequences."""
    shapes = {name: fixed_shape(data) for name, data in datasets.items()}
    (first, shape), *rest = shapes.items()
    for name, other in rest:
        if other != shape:
            raise ConfigError(
                f"data sets of a mixture must hold rows of one shape: {first!r} has"
                f" items of shape {shape}, {name!r} of {other} (() is a sequence)."
            )
    return shape


def _common_dtype(datasets: Mapping[str, "Roxxel"], dtype) -> np.dtype:
    found = {}
    for name, data in datasets.items():
        try:
            found[name] = resolve_dtype(data, dtype)
        except ConfigError as err:
            raise ConfigError(f"data set {name!r}: {err}") from err
    (first, wanted), *rest = found.items()
    for name, other in rest:
        if other != wanted:
            raise ConfigError(
                f"data set {first!r} makes batches of {wanted.name}, {name!r} of"
                f" {other.name}; pass dtype= to have one for both."
            )
    return wanted


def _check_sizes(setup: Setup, lengths: Sequence[int]) -> None:
    """Refuses what is too small to draw from."""
    for i, stage in enumerate(setup.stages):
        weights = exact_weights(stage.weights, setup.names)
        drawn = [s for s, w in zip(setup.sources, weights, strict=True) if w]
        for source in drawn:
            if not source.units:
                raise ConfigError(_too_small(setup, source.name, lengths))
        rows = sum(s.units for s in drawn) * (setup.unit // stage.seq_len)
        if rows < stage.batch_size:
            raise ConfigError(
                f"{rows} windows < batch {stage.batch_size} in phase {i}: the data sets"
                " are too small for one batch; use a smaller batch_size or seq_len, or"
                " more data."
            )


def _too_small(setup: Setup, name: str, lengths: Sequence[int]) -> str:
    elements = setup.datasets[name].num_elements
    needed = f"{setup.unit + setup.overlap}"
    different = sorted(set(lengths))
    if len(different) == 1:
        row = f"seq_len {setup.unit} + overlap {setup.overlap}"
        return (
            f"data set {name!r} has {elements} elements, a row needs {needed} ({row});"
            " leave it out, or use a smaller seq_len."
        )
    return (
        f"data set {name!r} has {elements} elements, fewer than the {needed} that hold"
        f" whole rows of all seq_lens ({', '.join(map(str, different))}: least common"
        f" multiple {setup.unit}, overlap {setup.overlap}); use seq_lens that divide"
        " each other."
    )
