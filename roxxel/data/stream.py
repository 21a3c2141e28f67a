"""`RoxxelStream`: shuffled batches of a data set, on the host or on a mesh.

A batch is a function of (data, seed, epoch, step) and of the sizes: never of processes,
devices, threads or prefetch. jax is imported only when batches are placed on devices.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel.data import batches, order, origins, steps
from roxxel.data.batches import Batches, fixed_shape, resolve_dtype, row_elements
from roxxel.data.streaming import StepStream, check_same
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.data.placement import Placement
    from roxxel.dataset import Roxxel

_SAME_ON_RESUME = ("seed", "seq_len", "overlap", "fingerprint")


class RoxxelStream(StepStream):
    """Batches [batch_size, seq_len + overlap] in a shuffled order that needs no memory.

    Row i of the data is elements [i * seq_len, (i + 1) * seq_len + overlap); in every
    epoch each row comes at most once, in another order. Step s counts from the start of
    `epoch` and lies in epoch `epoch + s // steps_per_epoch`. Iterating covers steps
    [start_step, epochs * steps_per_epoch) once; `len` is what remains of them.

    Of data written with a fixed item_shape the rows are items, and batches
    [batch_size, *item_shape].

    Without `mesh` and `data_sharding` batches are numpy arrays of the whole batch,
    fresh each time. With either they are global `jax.Array`s, for which a process reads
    only the rows of its own devices. Constructing starts no thread and no jax backend.

    Args:
        dataset: A `Roxxel`; opened if it is not yet.
        seq_len: Elements from the start of a row to that of the next; left out for
            items.
        batch_size: Rows of the global batch, over all processes.
        seed: Any int; with the epoch it fixes the order.
        start_step: First step of the iteration.
        epoch: Number of the epoch that steps count from.
        epochs: How many epochs iteration covers.
        overlap: Elements that a row shares with the next; 1 gives every input a target.
        dtype: Of the batches. None: int32 for integers of any width, else (and for
            items) as stored. A value that does not fit is an error, never wrapped.
        mesh: Mesh to place batches on, rows over its first axis.
        data_sharding: A jax sharding, or a PartitionSpec over `mesh`, in its place.
        prefetch: Batches made ahead on a thread while iterating; 0 for no thread. None
            makes 2 ahead on devices and none on the host, where handing a batch over
            costs as much as gathering it from the page cache.

    Raises:
        ConfigError: A size is wrong, the data hold less than one batch, start_step lies
            behind the end, or the batch does not divide over the devices.
        TypeError: The seed is no int.
    """

    def __init__(
        self,
        dataset: "Roxxel",
        *,
        seq_len: int | None = None,
        batch_size: int = 32,
        seed: int = 42,
        start_step: int = 0,
        epoch: int = 0,
        epochs: int = 1,
        overlap: int = 0,
        dtype=None,
        mesh=None,
        data_sharding=None,
        prefetch: int | None = None,
    ):
        if not hasattr(dataset, "num_elements"):
            raise ConfigError(f"the stream's dataset is {dataset!r}, not a Roxxel.")
        self.dataset = dataset
        self.seed = order.check_seed(seed)
        self.overlap = steps.not_negative("overlap", overlap)
        self.seq_len = row_elements(dataset, seq_len, self.overlap)
        self._item_shape = fixed_shape(dataset)
        self._grid = steps.Grid(
            num_rows=steps.num_rows(dataset.num_elements, self.seq_len, self.overlap),
            batch_size=steps.positive("batch_size", batch_size),
            epoch=steps.not_negative("epoch", epoch),
            epochs=steps.positive("epochs", epochs),
            start_step=steps.not_negative("start_step", start_step),
        )
        self.dtype = resolve_dtype(dataset, dtype)
        self._placement: Placement | None = None
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
    def epoch(self) -> int:
        """Number of the epoch that steps count from."""
        return self._grid.epoch

    @property
    def epochs(self) -> int:
        """How many epochs iteration covers."""
        return self._grid.epochs

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return self._grid.steps_per_epoch

    def spans(self) -> tuple[steps.Span, ...]:
        """The steps of one batch shape each; here a single one without end."""
        return (steps.Span(0, None, self.batch_size, self.seq_len),)

    @property
    def sharding(self) -> Any:
        """The jax sharding of the batches, None for numpy batches."""
        return self._placement.sharding if self._placement else None

    def position(self, step: int) -> dict:
        """Where the data stand after `step` completed steps, as plain JSON values.

        `epoch` and `rows_in_epoch` say where the next batch begins; `rows` and
        `elements` are what was consumed since step 0 (an element that two rows share
        counts once); `fingerprint` is that of the data.
        """
        step = steps.not_negative("step", step)
        epoch, rows_in_epoch = self._grid.locate(step)
        rows = step * self.batch_size
        return {
            "step": step,
            "seed": self.seed,
            "epoch": epoch,
            "rows_in_epoch": rows_in_epoch,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "overlap": self.overlap,
            "rows": rows,
            "elements": rows * self.seq_len,
            "fingerprint": self.dataset.fingerprint(),
        }

    def step_of(self, position: dict) -> int:
        """The step of this stream that begins at a saved `position`.

        With another batch_size it is the step of the first row not yet seen.

        Raises:
            ConfigError: No step begins there, or seed, seq_len, overlap or data are
                others; names what was saved and what is now.
        """
        check_same(position, self.position(0), _SAME_ON_RESUME)
        return self._grid.step_at(position["epoch"], position["rows_in_epoch"])

    def origins(self, step: int) -> list[origins.Origin]:
        """Where each row of a step's batch comes from, in the order of the batch."""
        epoch, first = self._grid.locate(steps.not_negative("step", step))
        permutation = order.Permutation(self._grid.num_rows, self.seed, epoch)
        ids = permutation(np.arange(first, first + self.batch_size))
        return origins.of_ids(ids, name="", dataset=self.dataset, seq_len=self.seq_len)

    def _runner(self) -> Callable[[int, int], Generator]:
        return Batches(
            dataset=self.dataset,
            grid=self._grid,
            seed=self.seed,
            seq_len=self.seq_len,
            overlap=self.overlap,
            dtype=self.dtype,
            place=self._placement.put if self._placement else None,
            item_shape=self._item_shape,
        ).run

    def _put_on(self, mesh, data_sharding) -> None:
        from roxxel.data import placement

        self._placement = batches.placement_of(
            placement.resolve_sharding(mesh, data_sharding),
            batch_size=self.batch_size,
            seq_len=self.seq_len,
            overlap=self.overlap,
            item_shape=self._item_shape,
            dtype=self.dtype,
        )
