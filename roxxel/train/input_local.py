"""The batches of one process, as its source gives them, all of one shape."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from roxxel.errors import ConfigError
from roxxel.train import input_batches
from roxxel.train.feeds import Feed, Mark
from roxxel.train.input_batches import Array


class LocalBatches:
    """Ids `[rows, width]` of this process by step, with the mark behind each.

    Attributes:
      feed: of an iterable; None where `source` has `batch(step)`.
    """

    def __init__(
        self,
        source: Any,
        *,
        key: str | None,
        epochs: int | None,
        seq_len: int | None,
        batch_size: int | None,
        num_parts: Callable[[], int],
    ):
        by_step = callable(getattr(source, "batch", None))
        by_step = by_step and not hasattr(source, "__iter__")
        if not by_step and not _is_iterable(source):
            raise ConfigError(
                f"trainer: stream is {source!r}, not a stream, an iterable of batches "
                "or an object with batch(step)."
            )
        self.feed = None if by_step else Feed(source, epochs)
        self._source = source
        self._key = key
        self._seq_len, self._batch_size = seq_len, batch_size
        self._num_parts = num_parts
        self._shape: tuple[int, int] | None = None
        self._is_masked: bool | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of this process, and elements a row; looks at the first batch."""
        if self._shape is None:
            self._shape = self._checked_shape(self.first())
        return self._shape

    def first(self) -> Array:
        """The first batch, or the first row; the next `read` gives it again."""
        first = self._source.batch(0) if self.feed is None else self.feed.peek()
        return self._to_ids(first, "the input's first batch")

    def read(self, step: int) -> tuple[Array, Mark | None]:
        """The batch of `step`, which for an iterator must be the next.

        Raises:
          InputEnded: there is none.
          ConfigError: it is no batch, or of another shape than the first.
        """
        where = f"batch {step} of the input"
        shape = self.shape  # looks at the first item, so before any is taken
        if self.feed is None:
            batch = self._to_ids(self._source.batch(step), where)
            return _checked(batch, shape, where), None
        item, mark = self.feed.next()
        batch = self._to_ids(item, where)
        if batch.ndim == 1:
            batch, mark = self._collected(batch, mark, where)
        return _checked(batch, shape, where), mark

    def parted(self, batch: Any) -> Any:
        """What was read, its mask beside the ids where the source brings one."""
        return input_batches.parted(np.asarray(batch)) if self._is_masked else batch

    def _to_ids(self, item: Any, where: str) -> Array:
        masked = input_batches.is_masked(item)
        if self._is_masked not in (None, masked):
            name = input_batches.MASK_KEY
            raise ConfigError(f"{where}: all batches, or none, must have a {name}.")
        self._is_masked = masked
        return input_batches.to_masked_ids(item, self._key, where)

    def _collected(self, row: Array, mark: Mark, where: str) -> tuple[Array, Mark]:
        """A batch of single rows, the first of which is `row`."""
        rows = [row]
        while len(rows) < self.shape[0]:
            assert self.feed is not None
            item, mark = self.feed.next()
            rows.append(self._to_ids(item, where))
        shapes = {row.shape for row in rows}
        if len(shapes) > 1:
            raise ConfigError(f"{where} has rows of shapes {sorted(shapes)}.")
        return np.stack(rows), mark

    def _checked_shape(self, first: Array) -> tuple[int, int]:
        if first.ndim == 1 and self._batch_size is None:
            raise ConfigError(
                f"the input yields rows of {first.size} elements; say how many make a "
                "batch: Input(..., batch_size=)."
            )
        rows = self._local_rows()
        found = (rows or 0, *first.shape) if first.ndim == 1 else first.shape
        rows = found[0] if rows is None else rows
        width = found[1] if self._seq_len is None else self._seq_len + 1
        if found != (rows, width) or rows < 1 or width < 2:
            raise ConfigError(
                f"the input's first batch is {list(found)}; expected [{rows}, {width}],"
                f" rows of seq_len + 1 (batch_size {self._batch_size}, seq_len "
                f"{self._seq_len}, {self._num_parts()} process(es) with their parts)."
            )
        return rows, width

    def _local_rows(self) -> int | None:
        parts = self._num_parts()
        if self._batch_size is not None and self._batch_size % parts:
            raise ConfigError(
                f"input: batch_size {self._batch_size} not divisible by {parts} "
                "processes."
            )
        return None if self._batch_size is None else self._batch_size // parts


def _checked(batch: Array, shape: tuple[int, int], where: str) -> Array:
    if batch.shape != shape:
        raise ConfigError(
            f"{where} is {list(batch.shape)}, the first was {list(shape)}; all must "
            "have one shape: drop a short tail (drop_remainder=True) or pad it."
        )
    return batch


def _is_iterable(source: Any) -> bool:
    if isinstance(source, str | bytes | dict | np.ndarray | jax.Array):
        return False
    return isinstance(source, Iterable) or hasattr(source, "__next__")
