"""Loss over a whole held-out set: every element predicted once, no dropped tail."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from roxxel import sharding
from roxxel.budget import Length
from roxxel.data.placement import check_divides
from roxxel.errors import ConfigError
from roxxel.train.step import LossFn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A named held-out set, cut into windows of `seq_len` predictions in order.

    Each window predicts elements [i*seq_len + 1, (i+1)*seq_len] of the set from those
    before them in the window; the last window is padded and the padding not counted.

    Attributes:
      dataset: a `roxxel.Roxxel`.
      seq_len: predictions a window.
      batch_size: windows a batch over all processes.
      every: how often, as a `roxxel.budget.Length` (steps, a fraction of the run, text
        with a unit); one more evaluation comes at the end of the run.
      max_batches: look at the first so many only; None for the whole set.
      name: prefix of the metrics.
    """

    dataset: Any
    seq_len: int
    batch_size: int = 8
    every: Length | None = None
    max_batches: int | None = None
    name: str = "eval"

    def __post_init__(self):
        for field in ("seq_len", "batch_size", "max_batches", "every"):
            value = getattr(self, field)
            if isinstance(value, int | float) and value <= 0:
                raise ConfigError(f"evaluation: {field} must be positive, got {value}.")
        if np.dtype(self.dataset.dtype).kind not in "iu":
            raise ConfigError(
                f"evaluation: token ids are whole numbers, the data set holds "
                f"{self.dataset.dtype}."
            )

    @property
    def num_targets(self) -> int:
        """Elements that get predicted: all but the first of the set."""
        return max(0, self.dataset.num_elements - 1)

    def check_divides(self, mesh: Mesh | None) -> None:
        """Raises a ConfigError unless the batch divides over the mesh's data axes."""
        placement = sharding.batch_sharding(mesh)
        if placement is not None:
            name = f"evaluation: batch_size {self.batch_size}"
            check_divides(placement, [name], (self.batch_size,))

    def describe(self) -> str:
        """What one evaluation looks at, in words."""
        windows = self._num_windows()
        counted = min(self.num_targets, windows * self.seq_len)
        cut = "" if counted == self.num_targets else f" of {self.num_targets:,}"
        return f"{self.name}: {counted:,}{cut} elements in {windows:,} windows"

    def _num_windows(self) -> int:
        windows = -(-self.num_targets // self.seq_len)
        if self.max_batches is None:
            return windows
        return min(windows, self.max_batches * self.batch_size)

    def batches(self, mesh: Mesh | None) -> Iterator[tuple[jax.Array, jax.Array]]:
        """Yields (tokens [batch, seq_len + 1] int32, loss mask of the same shape)."""
        for first in range(0, self._num_windows(), self.batch_size):
            yield (
                _placed(self._tokens, first, self.batch_size, self.seq_len + 1, mesh),
                _placed(self._mask, first, self.batch_size, self.seq_len + 1, mesh),
            )

    def _window(self, index: int) -> np.ndarray:
        start = index * self.seq_len
        stop = min(start + self.seq_len + 1, self.dataset.num_elements)
        return np.asarray(self.dataset.elements(min(start, stop), stop))

    def _tokens(self, index: int) -> np.ndarray:
        row = np.zeros(self.seq_len + 1, np.int32)
        window = self._window(index)
        if not np.can_cast(window.dtype, np.int32) and window.size:
            _check_fits(window)
        row[: len(window)] = window
        return row

    def _mask(self, index: int) -> np.ndarray:
        left = self.num_targets - index * self.seq_len
        row = np.arange(self.seq_len + 1)
        return ((row >= 1) & (row <= left)).astype(np.float32)


def _check_fits(ids: np.ndarray) -> None:
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most > np.iinfo(np.int32).max:
        raise ConfigError(
            f"evaluation: ids from {least} to {most} do not fit int32; they are never "
            "wrapped. Store ids below 2**31."
        )


def _placed(
    row_fn: Callable[[int], np.ndarray],
    first: int,
    batch_size: int,
    width: int,
    mesh: Mesh | None,
) -> jax.Array:
    """A global array whose row i is `row_fn(first + i)`; a process makes its own."""

    def local(index):
        rows = range(*index[0].indices(batch_size))
        return np.stack([row_fn(first + row) for row in rows])

    placement = sharding.batch_sharding(mesh)
    if placement is None:
        return jnp.asarray(local((slice(None),)))
    return jax.make_array_from_callback((batch_size, width), placement, local)


def make_eval_step(model: nnx.Module, loss_fn: LossFn) -> Callable:
    """A jitted `(model leaves, tokens, mask) -> (mean loss, counted targets)`."""
    graphdef, treedef = nnx.graphdef(model), jax.tree.structure(nnx.state(model))

    @jax.jit
    def run(leaves, tokens, mask):
        model = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        model.eval()
        return loss_fn(model, tokens, mask)

    return run


def evaluate(
    evaluation: Evaluation,
    eval_step: Callable,
    model_leaves: list[jax.Array],
    mesh: Mesh | None = None,
) -> dict[str, float]:
    """Mean loss in nats, perplexity and, for byte data, bits per byte.

    The means of the batches are weighted and added in float64 on the host.
    """
    # One batch at a time: each that is dispatched ahead would hold its own memory.
    pairs = [
        jax.device_get(eval_step(model_leaves, *batch))
        for batch in evaluation.batches(mesh)
    ]
    means, weights = np.asarray(pairs, np.float64).reshape(-1, 2).T
    loss = float(means @ weights / weights.sum()) if weights.any() else math.nan
    metrics = {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
    }
    if np.dtype(evaluation.dataset.dtype) == np.uint8:
        metrics["bits_per_byte"] = loss / math.log(2)
    return {f"{evaluation.name}_{key}": value for key, value in metrics.items()}
