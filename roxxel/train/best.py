"""Which checkpoint is the best: the metric that ranks them, and in which direction."""

import dataclasses
import difflib
import math
from collections.abc import Sequence

from roxxel.errors import ConfigError

_HIGHER_IS_BETTER = ("_accuracy",)
_MODES = ("min", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranking:
    """A metric and whether the lowest (`min`) or the highest (`max`) value is best."""

    metric: str
    mode: str

    def is_better(self, value: float, than: float, *, by: float = 0.0) -> bool:
        """Whether `value` beats `than` by more than `by`; NaN never does.

        Anything that is a number beats a NaN.
        """
        if math.isnan(value):
            return False
        if math.isnan(than):
            return True
        return value < than - by if self.mode == "min" else value > than + by


def parse(text: str, *, field: str, known: Sequence[str] | None) -> Ranking:
    """`eval_loss`, or `max:eval_accuracy` with the direction in front.

    Of `known` names it must be one. Without a direction, accuracies are better when
    higher and all else when lower.

    Raises:
      ConfigError: the direction is another, or no evaluation tells the metric.
    """
    mode, colon, metric = text.rpartition(":")
    if not colon:
        mode = "max" if metric.endswith(_HIGHER_IS_BETTER) else "min"
    if mode not in _MODES:
        raise ConfigError(
            f"trainer: {field}={text!r}: expected a metric, or min: or max: before it."
        )
    if known is not None and metric not in known:
        close = difflib.get_close_matches(metric, known, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        there = ", ".join(known) or "none, for there is no evaluation"
        raise ConfigError(
            f"trainer: {field}={text!r}: no evaluation tells {metric!r}.{hint} "
            f"Known: {there}."
        )
    return Ranking(metric=metric, mode=mode)
