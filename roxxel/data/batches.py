"""Batches of a data set by their step; no thread, no jax, nothing kept."""

import dataclasses
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import numpy as np

from roxxel.data import dtypes, order, steps
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.dataset import Roxxel

_ORDER_WINDOW = 8192  # positions that are permuted at once: 0.3 ms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches:
    """Makes batches; what a thread holds, so that the stream can be collected.

    `place(read, begin)` makes the batch whose rows i to j are what
    `read(begin + i, begin + j)` returns; None leaves batches on the host.
    """

    dataset: "Roxxel"
    grid: steps.Grid
    seed: int
    seq_len: int
    overlap: int
    dtype: np.dtype
    place: Callable | None

    def run(self, start: int, stop: int) -> Generator:
        """The batches of steps [start, stop)."""
        batch_size = self.grid.batch_size
        while start < stop:
            epoch, first = self.grid.locate(start)
            count = min(
                stop - start,
                self.grid.steps_per_epoch - first // batch_size,
                max(1, _ORDER_WINDOW // batch_size),
            )
            permutation = order.Permutation(self.grid.num_rows, self.seed, epoch)
            ids = permutation(np.arange(first, first + count * batch_size))
            window = self.dataset.locate(ids, self.seq_len, self.overlap, self.dtype)
            window.batch_size = batch_size
            for begin in range(0, count * batch_size, batch_size):
                if self.place is None:
                    yield window.read(begin, begin + batch_size)
                else:
                    yield self.place(window.read, begin)
            start += count


def resolve_dtype(dataset: "Roxxel", dtype) -> np.dtype:
    """Dtype of batches: int32 for integers when `dtype` is None, else as stored.

    Raises:
        ConfigError: The data cannot be read as that; names value and dtypes.
    """
    stored = dataset.dtype
    if dtype is None:
        wanted = dtypes.batch_dtype(stored)
    else:
        try:
            wanted = dtypes.parse(dtype)
        except ValueError as err:
            raise ConfigError(f"{err}.") from err
    try:
        dtypes.check_castable(stored, wanted)
    except ValueError as err:
        raise ConfigError(f"{err}.") from err
    for value in dataset.value_range():
        if dtypes.first_misfit(np.array([value], stored), wanted) is not None:
            x64 = " and enable x64 (jax_enable_x64)" if stored.itemsize == 8 else ""
            raise ConfigError(
                f"the data hold {value} of dtype {stored.name}, which does not fit"
                f" batches of {wanted.name}; pass dtype={stored.name!r}{x64}, or store"
                " int32."
            )
    return wanted
