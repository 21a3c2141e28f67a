"""What a sweep's search asks Optuna, which is imported here only (extra `sweeps`).

The study lies in one file of the sweep's folder, so that a search goes on where it was.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

from roxxel import extras

try:
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ImportError as err:
    raise extras.missing("configs.search", "sweeps", err) from err

_KINDS = "log:LOW:HIGH, linear:LOW:HIGH, int:LOW:HIGH, logint:LOW:HIGH or choice:A,B"

_SEED_STEP = 1_000_003  # more trials than a search has


class Sampler:
    """Optuna's tree-structured Parzen estimator over ranges of overrides.

    Args:
      path: the file of the study, made when it is first asked.
      ranges: by key of an override, `kind:low:high` or `choice:a,b`.
      trials: how many trials the search has in all.
      metric: what is searched for.
      goal: "min" or "max".
      seed: of the sampler. What it proposes also depends on the order of the results.

    Raises:
      ValueError: a range cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        ranges: Mapping[str, str],
        *,
        trials: int,
        metric: str,
        goal: str,
        seed: int,
    ):
        self.path, self.trials, self.metric = path, trials, metric
        self._space = {key: distribution(key, text) for key, text in ranges.items()}
        directions = optuna.study.StudyDirection
        self._direction = directions.MINIMIZE if goal == "min" else directions.MAXIMIZE
        self._seed = seed
        self._opened: Any = None

    def corners(self) -> list[dict[str, str]]:
        """Overrides that together hold the ends of every range, to be checked."""
        ends = {key: _ends(dist) for key, dist in self._space.items()}
        count = max(map(len, ends.values()))
        return [
            {key: e[min(i, len(e) - 1)] for key, e in ends.items()}
            for i in range(count)
        ]

    def ask(self) -> dict[str, str] | None:
        """Overrides of the next trial; None once all were asked for."""
        study = self._study
        if len(self._complete(study.get_trials(deepcopy=False))) >= self.trials:
            return None
        return self._overrides(study.ask(self._space).params)

    def open(self) -> list[tuple[int, dict[str, str]]]:
        """Number and overrides of the trials whose result has not been told."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for trial in running:  # a kill came while it was asked for
            if len(trial.params) < len(self._space):
                self._study.tell(trial.number, state=TrialState.FAIL)
        return [(t.number, self._overrides(t.params)) for t in self._complete(running)]

    def tell(self, number: int, status: str, value: float) -> None:
        """What became of a trial: its status, and the metric or NaN."""
        if status == "done" and math.isfinite(value):
            self._study.tell(number, value)
            return
        # Pruned without a value counts as bad; a failure says nothing about the values.
        state = TrialState.PRUNED if status == "diverged" else TrialState.FAIL
        self._study.tell(number, state=state)

    @property
    def _study(self) -> Any:
        if self._opened is None:
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            self._opened = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(os.fspath(self.path))),
                study_name="sweep",
                direction=self._direction,
                load_if_exists=True,
            )
            # A sampler that starts again must not propose again what it did before.
            seed = self._seed * _SEED_STEP + len(self._opened.trials)
            self._opened.sampler = optuna.samplers.TPESampler(
                seed=seed, constant_liar=True
            )
        return self._opened

    def _complete(self, found: list[Any]) -> list[Any]:
        return [trial for trial in found if len(trial.params) == len(self._space)]

    def _overrides(self, params: Mapping[str, Any]) -> dict[str, str]:
        return {key: _text(params[key]) for key in self._space}


def distribution(key: str, text: str) -> BaseDistribution:
    """Optuna's distribution of a range such as `log:1e-4:1e-2`.

    Raises:
      ValueError: the text is no range.
    """
    kind, _, rest = text.partition(":")
    try:
        if kind == "choice":
            return CategoricalDistribution([part.strip() for part in rest.split(",")])
        low, high = map(float, rest.split(":"))
        if kind in ("log", "linear"):
            return FloatDistribution(low, high, log=kind == "log")
        if kind in ("int", "logint") and low == int(low) and high == int(high):
            return IntDistribution(int(low), int(high), log=kind == "logint")
    except ValueError as err:
        raise ValueError(f"--range.{key}={text}: {err}; expected {_KINDS}.") from err
    raise ValueError(f"--range.{key}={text}: expected {_KINDS}.")


def _ends(dist: Any) -> list[str]:
    if isinstance(dist, CategoricalDistribution):
        return [str(choice) for choice in dist.choices]
    return [_text(dist.low), _text(dist.high)]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
