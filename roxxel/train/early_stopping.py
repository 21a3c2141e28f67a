"""Ends a run whose metric has stopped to improve."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from roxxel.errors import ConfigError
from roxxel.train.best import Ranking


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """After `patience` evaluations in a row without an improvement the run ends.

    It ends well: exit code 0, a checkpoint of the last step, the summary says so and
    names the best checkpoint, which is kept. The same command then has nothing left to
    train; with more patience it goes on.

    Attributes:
      metric: that an evaluation of the run tells, as in `Trainer.best`.
      patience: evaluations of that metric.
      min_delta: an improvement is larger than this.
    """

    metric: str = "eval_loss"
    patience: int = 5
    min_delta: float = 0.0

    def __post_init__(self):
        if not isinstance(self.patience, int) or self.patience < 1:
            raise ConfigError(
                f"early_stopping: patience is {self.patience!r}; expected a number of "
                "evaluations, at least 1."
            )
        if not 0 <= self.min_delta < math.inf:
            raise ConfigError(
                f"early_stopping: min_delta must be 0 or more, got {self.min_delta}."
            )


class Stopper:
    """What has been seen of the metric, which a checkpoint carries on.

    Attributes:
      step: completed steps at the best value; None before any.
      value: the best one so far.
      since: evaluations after it.
      seen: completed steps at the last one.
    """

    def __init__(self, options: EarlyStopping, ranking: Ranking):
        self._options, self._ranking = options, ranking
        self.step: int | None = None
        self.value = math.nan
        self.since = 0
        self.seen = -1

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Looks at the results of an evaluation after `step` steps."""
        if self._ranking.metric not in metrics or step <= self.seen:
            return
        self.seen = step
        value = metrics[self._ranking.metric]
        if self._ranking.is_better(value, self.value, by=self._options.min_delta):
            self.step, self.value, self.since = step, value, 0
        else:
            self.since += 1

    @property
    def is_over(self) -> bool:
        """Whether the run ends here."""
        return self.since >= self._options.patience

    def state(self) -> dict[str, Any]:
        """As JSON values, for a checkpoint."""
        return {
            "metric": self._ranking.metric,
            "step": self.step,
            "value": None if self.step is None else self.value,
            "since": self.since,
            "seen": self.seen,
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Takes what a checkpoint has; that of another metric begins anew."""
        if not state or state["metric"] != self._ranking.metric:
            return
        self.step, self.since, self.seen = state["step"], state["since"], state["seen"]
        self.value = math.nan if self.step is None else state["value"]

    def describe(self) -> str:
        """Why the run ended."""
        return (
            f"{self._ranking.metric} has not improved for {self.since} evaluations; "
            f"best {self.value:.6g} after step {self.step}"
        )
