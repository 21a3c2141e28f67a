"""`AlignedStream`: data sets whose rows belong together, streamed as one."""

import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel.data import batches, order, origins, steps
from roxxel.data.batches import fixed_shape, resolve_dtype, row_elements
from roxxel.data.streaming import StepStream, check_same
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.data.placement import Placement
    from roxxel.dataset import Roxxel

_SAME_ON_RESUME = ("seed", "seq_len", "overlap", "num_rows", "fingerprint")
_ORDER_WINDOW = 8192  # positions that are permuted at once


class AlignedStream(StepStream):
    """Batches as a dict of arrays, row i of all of them from row i of each data set.

    Of data sets of items (`item_shape`) rows are items, [batch_size, *item_shape]; of
    the others rows are windows [batch_size, seq_len + overlap], as in `RoxxelStream`.
    All have as many rows and one order, the same as each data set has streamed alone
    with this seed. Steps, epochs, placement and prefetch are those of `RoxxelStream`.

    Args:
        datasets: By name, the key of their arrays; opened if they are not yet.
        batch_size: Rows of the global batch, over all processes.
        seq_len: Elements from the start of a row to that of the next in data sets of
            sequences, or a dict of them by name.
        rows: None needs all data sets to have the same number of rows. "min", or a
            number that all of them have, uses the first rows of each.
        overlap: Elements that a row of a sequence shares with the next.
        seed: Any int; with the epoch it fixes the order.
        start_step: First step of the iteration.
        epoch: Number of the epoch that steps count from.
        epochs: How many epochs iteration covers.
        dtype: Of the batches, or a dict by name; None as in `RoxxelStream`.
        mesh: Mesh to place batches on, rows over its first axis.
        data_sharding: In its place a jax sharding, or a PartitionSpec over `mesh`, for
            all arrays or as a dict by name.
        prefetch: Batches made ahead while iterating; as in `RoxxelStream`.

    Raises:
        ConfigError: The data sets have other numbers of rows, records of any length, or
            an argument is wrong.
        TypeError: The seed is no int.
    """

    def __init__(
        self,
        datasets: Mapping[str, "Roxxel"],
        *,
        batch_size: int = 32,
        seq_len: int | Mapping[str, int] | None = None,
        rows: int | str | None = None,
        overlap: int = 0,
        seed: int = 42,
        start_step: int = 0,
        epoch: int = 0,
        epochs: int = 1,
        dtype=None,
        mesh=None,
        data_sharding=None,
        prefetch: int | None = None,
    ):
        self.datasets = _checked_datasets(datasets)
        self.seed = order.check_seed(seed)
        self.overlap = steps.not_negative("overlap", overlap)
        lengths = _lengths(self.datasets, seq_len)
        dtypes = _by_name("dtype", dtype, list(self.datasets))
        self._parts = [
            _part(name, data, lengths[name], self.overlap, dtypes[name])
            for name, data in self.datasets.items()
        ]
        self._grid = steps.Grid(
            num_rows=_common_rows(self._parts, rows, self.overlap),
            batch_size=steps.positive("batch_size", batch_size),
            epoch=steps.not_negative("epoch", epoch),
            epochs=steps.positive("epochs", epochs),
            start_step=steps.not_negative("start_step", start_step),
        )
        self._placements: dict[str, Placement] | None = None
        if mesh is not None or data_sharding is not None:
            self._put_on(mesh, data_sharding)
        super().__init__(
            start_step=self._grid.start_step,
            end_step=self._grid.end_step,
            prefetch=prefetch,
        )

    @property
    def batch_size(self) -> int:
        """Rows of the global batch."""
        return self._grid.batch_size

    @property
    def seq_len(self) -> int:
        """Elements predicted in a row: of all sequences, 1 where there are items only.

        `tokens` and `spans` count these.
        """
        sequences = [part.seq_len for part in self._parts if not part.item_shape]
        return sum(sequences) or 1

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return self._grid.steps_per_epoch

    @property
    def num_elements(self) -> int:
        """Elements of all data sets together."""
        return sum(data.num_elements for data in self.datasets.values())

    def spans(self) -> tuple[steps.Span, ...]:
        """The steps of one batch shape each; here a single one without end."""
        return (steps.Span(0, None, self.batch_size, self.seq_len),)

    @property
    def sharding(self) -> Any:
        """The jax sharding of the arrays by name, None for numpy arrays."""
        if self._placements is None:
            return None
        return {name: place.sharding for name, place in self._placements.items()}

    def position(self, step: int) -> dict:
        """Where the data stand after `step` completed steps, as plain JSON values.

        As `RoxxelStream.position`; `seq_len` and `fingerprint` are dicts by name.
        """
        step = steps.not_negative("step", step)
        epoch, rows_in_epoch = self._grid.locate(step)
        return {
            "step": step,
            "seed": self.seed,
            "epoch": epoch,
            "rows_in_epoch": rows_in_epoch,
            "batch_size": self.batch_size,
            "seq_len": {part.name: part.seq_len for part in self._parts},
            "overlap": self.overlap,
            "num_rows": self._grid.num_rows,
            "rows": step * self.batch_size,
            "elements": self.tokens(step),
            "fingerprint": {k: v.fingerprint() for k, v in self.datasets.items()},
        }

    def step_of(self, position: dict) -> int:
        """The step of this stream that begins at a saved `position`.

        With another batch_size it is the step of the first row not yet seen.

        Raises:
            ConfigError: No step begins there, or seed, lengths or data are others;
                names what was saved and what is now.
        """
        check_same(position, self.position(0), _SAME_ON_RESUME)
        return self._grid.step_at(position["epoch"], position["rows_in_epoch"])

    def origins(self, step: int) -> list[origins.Origin]:
        """Where each row of a step's batch comes from, data set after data set."""
        epoch, first = self._grid.locate(steps.not_negative("step", step))
        permutation = order.Permutation(self._grid.num_rows, self.seed, epoch)
        ids = permutation(np.arange(first, first + self.batch_size))
        found = []
        for part in self._parts:
            found += origins.of_ids(
                ids, name=part.name, dataset=part.dataset, seq_len=part.seq_len
            )
        return found

    def _runner(self) -> Callable[[int, int], Generator]:
        places = self._placements
        return AlignedBatches(
            parts=self._parts,
            grid=self._grid,
            seed=self.seed,
            overlap=self.overlap,
            places={k: p.put for k, p in places.items()} if places else None,
        ).run

    def _put_on(self, mesh, data_sharding) -> None:
        from roxxel.data import placement

        given = _by_name("data_sharding", data_sharding, list(self.datasets))
        self._placements = {
            part.name: batches.placement_of(
                placement.resolve_sharding(mesh, given[part.name]),
                batch_size=self.batch_size,
                seq_len=part.seq_len,
                overlap=0 if part.item_shape else self.overlap,
                item_shape=part.item_shape,
                dtype=part.dtype,
            )
            for part in self._parts
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One of the aligned data sets and how its rows are read."""

    name: str
    dataset: "Roxxel"
    seq_len: int
    item_shape: tuple[int, ...]
    dtype: np.dtype

    def num_rows(self, overlap: int) -> int:
        """Items, or windows with `overlap`."""
        overlap = 0 if self.item_shape else overlap
        return steps.num_rows(self.dataset.num_elements, self.seq_len, overlap)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlignedBatches:
    """Makes batches; what a thread holds, so that the stream can be collected."""

    parts: list[Part]
    grid: steps.Grid
    seed: int
    overlap: int
    places: Mapping[str, Callable] | None

    def run(self, start: int, stop: int) -> Generator:
        """The batches of steps [start, stop)."""
        size = self.grid.batch_size
        while start < stop:
            epoch, first = self.grid.locate(start)
            left_in_epoch = self.grid.steps_per_epoch - first // size
            count = min(stop - start, left_in_epoch, max(1, _ORDER_WINDOW // size))
            permutation = order.Permutation(self.grid.num_rows, self.seed, epoch)
            ids = permutation(np.arange(first, first + count * size))
            windows = [self._locate(part, ids) for part in self.parts]
            for begin in range(0, count * size, size):
                yield {
                    part.name: self._batch(part, window, begin)
                    for part, window in zip(self.parts, windows, strict=True)
                }
            start += count

    def _locate(self, part: Part, ids: np.ndarray):
        overlap = 0 if part.item_shape else self.overlap
        window = part.dataset.locate(ids, part.seq_len, overlap, part.dtype)
        window.batch_size = self.grid.batch_size
        return window

    def _batch(self, part: Part, window, begin: int):
        if self.places is not None:
            return self.places[part.name](window.read, begin)
        rows = window.read(begin, begin + self.grid.batch_size)
        return rows.reshape(-1, *part.item_shape) if part.item_shape else rows


def _checked_datasets(datasets) -> dict[str, "Roxxel"]:
    if not isinstance(datasets, Mapping) or not datasets:
        raise ConfigError(f"datasets must be a dict of name: data set: {datasets!r}.")
    for name, data in datasets.items():
        if not hasattr(data, "num_elements"):
            raise ConfigError(f"datasets[{name!r}] is {data!r}, not a Roxxel.")
        if None in data.item_shape:
            raise ConfigError(
                f"data set {name!r} has records of any length, {data.item_shape}, which"
                " make no batch: read them by index (data[i]) or write items of one"
                " shape."
            )
    return dict(datasets)


def _by_name(what: str, given, names: list[str]) -> dict[str, Any]:
    """One value for each data set, from one for all or from a dict."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, given)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ConfigError(
            f"{what} names {unknown[0]!r}, the data sets are {', '.join(names)}."
        )
    return {name: given.get(name) for name in names}


def _lengths(datasets: Mapping[str, "Roxxel"], seq_len) -> dict[str, int | None]:
    """The seq_len of each data set; one for all is that of the sequences."""
    given = _by_name("seq_len", seq_len, list(datasets))
    if isinstance(seq_len, Mapping):
        return given
    return {n: None if fixed_shape(datasets[n]) else given[n] for n in datasets}


def _part(name: str, data: "Roxxel", seq_len: int | None, overlap: int, dtype) -> Part:
    shape = fixed_shape(data)
    overlap = 0 if shape else overlap
    try:
        return Part(
            name=name,
            dataset=data,
            seq_len=row_elements(data, seq_len, overlap),
            item_shape=shape,
            dtype=resolve_dtype(data, dtype),
        )
    except ConfigError as err:
        raise ConfigError(f"data set {name!r}: {err}") from err


def _common_rows(parts: list[Part], rows: int | str | None, overlap: int) -> int:
    counts = {part.name: part.num_rows(overlap) for part in parts}
    least = min(counts.values())
    listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
    if rows is None:
        if len(set(counts.values())) > 1:
            raise ConfigError(
                f"aligned data sets need equal numbers of rows, got {listed} (with"
                f" overlap {overlap}); pass rows='min' for the first {least} of each."
            )
        return least
    if rows == "min":
        return least
    wanted = steps.positive("rows", rows)
    if wanted > least:
        raise ConfigError(f"rows {rows} are more than there are: {listed}.")
    return wanted
