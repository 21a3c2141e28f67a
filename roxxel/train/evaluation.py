"""Metrics over a whole held-out set: every element predicted once, no dropped tail."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from roxxel import sharding
from roxxel.budget import Length
from roxxel.errors import ConfigError
from roxxel.models.losses import next_token_loss
from roxxel.models.scores import next_token_scores
from roxxel.train import heldout
from roxxel.train.step import LossFn

_LARGEST_EXPONENT = 700.0  # the exponential of a larger float64 is inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A named held-out set, cut into windows of `seq_len` predictions in order.

    Each window predicts elements [i*seq_len + 1, (i+1)*seq_len] of the set from those
    before them in the window; the last window is padded and the padding not counted.
    The numbers do not depend on `batch_size`, processes or devices: a batch that does
    not divide over them is filled up.

    Its metrics are `<name>_loss` in nats, `_perplexity`, `_accuracy` (the part of the
    targets that the largest logit names) and, where bytes per token are known,
    `_bits_per_byte`.

    Attributes:
      dataset: a `roxxel.Roxxel`, or a `roxxel.tasks.TaskSet`, which brings rows of its
        own length.
      seq_len: predictions a window; None where the set has rows.
      batch_size: windows a batch over all processes.
      every: how often, as a `roxxel.budget.Length` (steps, a fraction of the run, text
        with a unit); one more evaluation comes at the end of the run.
      max_batches: look at the first so many only; None for the whole set.
      name: prefix of the metrics; the key where a trainer has several sets.
      accuracy: whether to tell it; a loss of one's own pays another forward pass.
      bytes_per_token: of the text behind the tokens; None asks the data set, whose
        metadata may hold it (1 for bytes).
      by_follower: left to `--mode=eval --follow`; the run does not look at it.
    """

    dataset: Any
    seq_len: int | None = None
    batch_size: int = 8
    every: Length | None = None
    max_batches: int | None = None
    name: str = "eval"
    accuracy: bool = True
    bytes_per_token: float | None = None
    by_follower: bool = False

    def __post_init__(self):
        for field in ("seq_len", "batch_size", "max_batches", "every"):
            self._check_positive(field)
        self._check_positive("bytes_per_token")
        if not self.name.isidentifier():
            raise ConfigError(
                f"evaluation: name is {self.name!r}; expected letters, digits and _, "
                "for it begins the names of metrics."
            )
        if hasattr(self.dataset, "read"):
            self._check_own_rows()
        elif self.seq_len is None:
            raise ConfigError("evaluation: give seq_len, the predictions of a window.")
        elif np.dtype(self.dataset.dtype).kind not in "iu":
            raise ConfigError(
                f"evaluation: token ids are whole numbers, the data set holds "
                f"{self.dataset.dtype}."
            )

    def _check_positive(self, field: str) -> None:
        value = getattr(self, field)
        if isinstance(value, int | float) and not value > 0:
            raise ConfigError(f"evaluation: {field} must be positive, got {value}.")

    def _check_own_rows(self) -> None:
        if self.seq_len not in (None, self.dataset.seq_len):
            raise ConfigError(
                f"evaluation: seq_len is {self.seq_len}, the rows of the set have "
                f"{self.dataset.seq_len}; leave it out."
            )

    @property
    def rows(self) -> heldout.Rows:
        """The set as rows."""
        if self.seq_len is None or hasattr(self.dataset, "read"):
            return self.dataset
        return heldout.Windows(self.dataset, self.seq_len)

    @property
    def num_targets(self) -> int:
        """Predictions that count: of a data set all elements but the first."""
        return self.rows.num_targets

    def metric_names(self) -> list[str]:
        """What an evaluation tells, with the name of the set in front."""
        kinds = ["loss", "perplexity"]
        kinds += ["accuracy"] if self.accuracy else []
        kinds += ["bits_per_byte"] if self._bytes_per_token() else []
        return [f"{self.name}_{kind}" for kind in kinds]

    def describe(self) -> str:
        """What one evaluation looks at, in words."""
        rows, windows = self.rows, self._num_windows()
        counted = min(rows.num_targets, windows * rows.seq_len)
        cut = "" if counted == rows.num_targets else f" of {rows.num_targets:,}"
        return f"{self.name}: {counted:,}{cut} elements in {windows:,} windows"

    def _bytes_per_token(self) -> float | None:
        return self.bytes_per_token or heldout.bytes_per_token(self.dataset)

    def _num_windows(self) -> int:
        windows = self.rows.num_rows
        if self.max_batches is None:
            return windows
        return min(windows, self.max_batches * self.batch_size)

    def batches(
        self, mesh: Mesh | None, rules: sharding.AxisRules = sharding.DEFAULT_RULES
    ) -> Iterator[tuple[jax.Array, jax.Array]]:
        """Yields (tokens [rows, seq_len + 1] int32, loss mask of the same shape).

        `rows` is `batch_size`, made larger where it does not divide over the mesh.
        """
        shards = 1 if mesh is None else sharding.batch_shards(mesh, rules)
        size = -(-self.batch_size // shards) * shards
        total = self._num_windows()
        for first in range(0, total, size):
            placement = sharding.batch_sharding(mesh, rules)
            yield _placed(self.rows, first, size, total, placement)


def sets_of(given: Evaluation | Mapping[str, Evaluation] | None) -> dict[str, Any]:
    """The evaluation sets of a trainer by name; keys of a mapping name its sets.

    Raises:
      ConfigError: a value of the mapping is no evaluation.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {given.name: given}
    for key, value in given.items():
        if not isinstance(value, Evaluation):
            raise ConfigError(f"trainer: evaluation[{key!r}] is {value!r:.80}, no set.")
    return {key: dataclasses.replace(one, name=key) for key, one in given.items()}


def _placed(
    rows: heldout.Rows, first: int, size: int, total: int, placement: Any
) -> tuple[jax.Array, jax.Array]:
    """Global arrays of `size` rows from `first`; a process reads its own."""

    def local(part: int, index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(size)
        pair = heldout.padded(rows, first + start, first + stop)
        pair[1][np.arange(first + start, first + stop) >= total] = 0.0
        return pair[part]

    if placement is None:
        whole = (slice(None),)
        return jnp.asarray(local(0, whole)), jnp.asarray(local(1, whole))
    shape = (size, rows.seq_len + 1)
    make = functools.partial(jax.make_array_from_callback, shape, placement)
    return make(functools.partial(local, 0)), make(functools.partial(local, 1))


def make_eval_step(
    model: nnx.Module, loss_fn: LossFn, *, accuracy: bool = True
) -> Callable:
    """A jitted `(model leaves, tokens, mask) -> (mean loss, counted, correct)`.

    Without `accuracy` the third is NaN and `loss_fn` is all that the model is asked.
    """
    graphdef, treedef = nnx.graphdef(model), jax.tree.structure(nnx.state(model))

    @jax.jit
    def run(leaves, tokens, mask):
        model = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        model.eval()
        if not accuracy:
            return *loss_fn(model, tokens, mask), jnp.float32(jnp.nan)
        scores = next_token_scores(model, tokens, mask)
        if loss_fn is next_token_loss:
            return scores
        return *loss_fn(model, tokens, mask), scores[2]

    return run


def evaluate(
    evaluation: Evaluation,
    eval_step: Callable,
    model_leaves: list[jax.Array],
    mesh: Mesh | None = None,
    *,
    rules: sharding.AxisRules = sharding.DEFAULT_RULES,
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The metrics of `evaluation.metric_names()`; NaN where nothing counts.

    The sums of the batches are added in float64 on the host.

    Args:
      evaluation: the set.
      eval_step: of `make_eval_step`.
      model_leaves: leaves of the model's state.
      mesh: that they lie on.
      rules: say over which of its axes the rows of a batch lie.
      on_batch: called after each batch; what it raises ends the evaluation.
    """
    rows = []
    for batch in evaluation.batches(mesh, rules):
        # One at a time: each that is dispatched ahead would hold its own memory.
        rows.append(jax.device_get(eval_step(model_leaves, *batch)))
        on_batch()
    means, weights, correct = np.asarray(rows, np.float64).reshape(-1, 3).T
    total = weights.sum()
    loss = float(means @ weights / total) if total else math.nan
    metrics = {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf,
    }
    if evaluation.accuracy:
        metrics["accuracy"] = float(correct.sum() / total) if total else math.nan
    length = evaluation._bytes_per_token()
    if length:
        metrics["bits_per_byte"] = loss / math.log(2) / length
    return {f"{evaluation.name}_{key}": value for key, value in metrics.items()}
