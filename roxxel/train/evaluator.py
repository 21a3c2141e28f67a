"""The evaluation sets of a run: which are due, what they found, what is best."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx
from jax.sharding import Mesh

from roxxel import sharding
from roxxel.errors import ConfigError
from roxxel.train import best
from roxxel.train.early_stopping import EarlyStopping, Stopper
from roxxel.train.evaluation import Evaluation, evaluate, make_eval_step
from roxxel.train.step import LossFn

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer


def known_metrics(sets: Mapping[str, Evaluation]) -> list[str]:
    """Names of all that the sets tell."""
    return [name for one in sets.values() for name in one.metric_names()]


def ranking(spec: "Trainer") -> best.Ranking | None:
    """What ranks the checkpoints of a trainer, None where its checkpointer says.

    A run that may stop early keeps the best by the metric that stops it.

    Raises:
      ConfigError: no evaluation tells the metric.
    """
    if spec.best is None and spec.early_stopping is None:
        return None
    known = known_metrics(spec.evaluations)
    return declared(spec.best, spec.early_stopping, known)


def declared(
    best_metric: str | None,
    early_stopping: EarlyStopping | None,
    known: Sequence[str] | None = None,
) -> best.Ranking | None:
    """The ranking that the two fields of a trainer say.

    Raises:
      ConfigError: the metric is none of those `known`; None knows all.
    """
    if best_metric is not None:
        return best.parse(best_metric, field="best", known=known)
    if early_stopping is None:
        return None
    field = "early_stopping.metric"
    return best.parse(early_stopping.metric, field=field, known=known)


def stopper(spec: "Trainer") -> Stopper | None:
    """What may end a trainer's run early.

    Raises:
      ConfigError: no evaluation of the run itself tells the metric.
    """
    options = spec.early_stopping
    if options is None:
        return None
    own = own_sets(spec.evaluations)
    field = "early_stopping.metric"
    rank = best.parse(options.metric, field=field, known=known_metrics(own))
    return Stopper(options, rank)


def own_sets(sets: Mapping[str, Evaluation]) -> dict[str, Evaluation]:
    """The sets that the run looks at itself."""
    return {name: one for name, one in sets.items() if not one.by_follower}


class Sets:
    """Evaluates sets with one model; each way to evaluate is compiled once."""

    def __init__(
        self,
        sets: Mapping[str, Evaluation],
        model: nnx.Module,
        loss: LossFn,
        mesh: Mesh | None,
        rules: sharding.AxisRules,
    ):
        self._sets, self._mesh, self._rules = sets, mesh, rules
        self._steps = {
            accuracy: make_eval_step(model, loss, accuracy=accuracy)
            for accuracy in {one.accuracy for one in sets.values()}
        }

    def run(
        self, names: Sequence[str], leaves: list[jax.Array], **options: Any
    ) -> dict[str, float]:
        """The metrics of the named sets; `options` as of `evaluate`."""
        metrics = {}
        for name in names:
            one = self._sets[name]
            step = self._steps[one.accuracy]
            metrics |= evaluate(
                one, step, leaves, self._mesh, rules=self._rules, **options
            )
        return metrics


class Evaluator:
    """What a training run does with its sets.

    Attributes:
      results: the newest value of each metric.
      stopper: early stopping, or None.
    """

    def __init__(self, spec: "Trainer", model: nnx.Module, mesh: Mesh | None):
        sets = own_sets(spec.evaluations)
        self._names = list(sets)
        self._sets = Sets(sets, model, spec.loss, mesh, spec.axis_rules)
        self._num_leaves = len(jax.tree.leaves(nnx.state(model)))
        self._ranking = ranking(spec)
        self._best: tuple[int | None, float] = (None, math.nan)
        self._improved_at: int | None = None
        self.stopper = stopper(spec)
        self.results: dict[str, float] = {}

    @property
    def is_incomplete(self) -> bool:
        """Whether a set has not been looked at since the start."""
        return not all(f"{name}_loss" in self.results for name in self._names)

    @property
    def stops_early(self) -> bool:
        """Whether the run is to end here."""
        return self.stopper is not None and self.stopper.is_over

    def run(
        self,
        step: int,
        leaves: list[jax.Array],
        names: Sequence[str] | None = None,
        **options: Any,
    ) -> dict[str, float]:
        """Evaluates sets (None: all) after `step` steps.

        `leaves` begin with those of the model; `options` as of `evaluate`.
        """
        names = self._names if names is None else names
        metrics = self._sets.run(names, leaves[: self._num_leaves], **options)
        self.results |= metrics
        if self.stopper is not None:
            self.stopper.update(step, metrics)
        rank = self._ranking
        value = math.nan if rank is None else metrics.get(rank.metric, math.nan)
        if rank is not None and rank.is_better(value, self._best[1]):
            self._best, self._improved_at = (step, value), step
        return metrics

    def improved_at(self, step: int) -> bool:
        """Whether the evaluation after `step` gave the best value: it is saved."""
        return self._improved_at == step

    def verdict(self) -> dict[str, Any]:
        """What the summary says of the best value, and of an early end."""
        told: dict[str, Any] = {}
        step, value = self._best
        if self._ranking is not None and step is not None:
            metric = self._ranking.metric
            told["best"] = {"metric": metric, "step": step, "value": value}
        if self.stopper is not None and self.stopper.is_over:
            told["stopped_early"] = self.stopper.describe()
        return told

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values; {} where there is nothing."""
        kept: dict[str, Any] = {}
        if self.stopper is not None:
            kept["early_stopping"] = self.stopper.state()
        step, value = self._best
        if self._ranking is not None and step is not None:
            kept["best"] = [self._ranking.metric, step, value]
        return kept

    def restore(self, position: Mapping[str, Any] | None) -> None:
        """Goes on from what `state` put into a checkpoint's position."""
        kept = (position or {}).get("evaluation") or {}
        if self.stopper is not None:
            self.stopper.restore(kept.get("early_stopping"))
        metric, step, value = kept.get("best") or (None, None, math.nan)
        if self._ranking is not None and metric == self._ranking.metric:
            self._best = (step, value)


def ended_early(spec: "Trainer", position: Mapping[str, Any] | None) -> bool:
    """Whether the run of a checkpoint's position was ended by early stopping."""
    found = stopper(spec)
    if found is None:
        return False
    kept = (position or {}).get("evaluation") or {}
    found.restore(kept.get("early_stopping"))
    return found.is_over


def check(spec: "Trainer") -> None:
    """Raises a ConfigError where sets, best and early stopping do not go together."""
    for name in spec.evaluations:
        if not name.isidentifier():
            raise ConfigError(
                f"trainer: evaluation has a set {name!r}; expected letters, digits "
                "and _, for it begins the names of metrics."
            )
    ranking(spec)
    stopper(spec)
