"""Batches of a data set by their step; no thread, no jax, nothing kept."""

import dataclasses
import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import numpy as np

from roxxel.data import dtypes, order, steps
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.data.placement import Placement
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
    item_shape: tuple[int, ...] = ()

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
                if self.place is not None:
                    yield self.place(window.read, begin)
                    continue
                rows = window.read(begin, begin + batch_size)
                yield rows.reshape(-1, *self.item_shape) if self.item_shape else rows
            start += count


def fixed_shape(dataset: "Roxxel") -> tuple[int, ...]:
    """Shape of the items where all have the same, else ()."""
    shape = dataset.item_shape
    return () if None in shape else shape  # pyrefly: ignore[bad-return]


def row_elements(dataset: "Roxxel", seq_len: int | None, overlap: int) -> int:
    """Elements from the start of a row to that of the next: of an item, or `seq_len`.

    Raises:
        ConfigError: It is not given, or given for items.
    """
    shape = fixed_shape(dataset)
    if not shape:
        if seq_len is None and dataset.item_shape:
            raise ConfigError(
                f"the data are items of any length (item_shape {dataset.item_shape}),"
                " which make no batches: read them by index, data[i], or give seq_len"
                " to stream their elements as one sequence."
            )
        if seq_len is None:
            raise ConfigError("seq_len is needed: the data are sequences, not items.")
        return steps.positive("seq_len", seq_len)
    if seq_len not in (None, math.prod(shape)) or overlap:
        raise ConfigError(
            f"the data are items of shape {shape}, streamed whole; leave seq_len and"
            f" overlap out, got {seq_len!r} and {overlap!r}."
        )
    return math.prod(shape)


def placement_of(
    sharding,
    *,
    batch_size: int,
    seq_len: int,
    overlap: int,
    item_shape: tuple[int, ...],
    dtype: np.dtype,
) -> "Placement":
    """How batches get on the devices of a jax sharding.

    Raises:
        ConfigError: They do not divide over the devices.
    """
    from roxxel.data import placement  # needs jax

    names = [f"batch {batch_size}"]
    width = seq_len + overlap
    if item_shape:
        names += [f"item dimension of {size}" for size in item_shape]
    else:
        row = f"(seq_len {seq_len} + overlap {overlap})"
        names.append(f"row of {width} elements {row}")
    shape = (batch_size, *(item_shape or (width,)))
    placement.check_divides(sharding, names, shape)
    return placement.Placement(sharding, shape, dtype)


def resolve_dtype(dataset: "Roxxel", dtype) -> np.dtype:
    """Dtype of batches: int32 for integers of sequences when None, else as stored.

    Raises:
        ConfigError: The data cannot be read as that; names value and dtypes.
    """
    stored = dataset.dtype
    if dtype is None:
        wanted = stored if fixed_shape(dataset) else dtypes.batch_dtype(stored)
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
