"""Which trial runs next: all of a grid, the best of a rung, or what a search asks."""

import math
from collections.abc import Sequence
from typing import Any

from launch import attempts, results
from launch.folder import Folder
from launch.pool import Job
from launch.trials import Trial


class Grid:
    """Every trial once, to its end."""

    def __init__(self, folder: Folder, trial_ids: Sequence[str]):
        self.folder, self.trial_ids = folder, trial_ids

    def waiting(self) -> list[Job]:
        """The trials that are not over."""
        states = {i: attempts.read(self.folder, i) for i in self.trial_ids}
        return [Job(i) for i, state in states.items() if not state.is_over]


class Halving:
    """Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943).

    All trials run to the first rung; the best 1/eta of them, at least one, go on from
    their checkpoints to the next, and those of the last rung to the end. Trials are
    compared at the rung's own step, so a restarted driver decides as the first one did.
    A run's schedule is that of its whole length at every rung.
    """

    def __init__(
        self,
        folder: Folder,
        rungs: dict[str, Sequence[int | None]],
        *,
        eta: int,
        metric: str,
        goal: str,
    ):
        """`rungs`: by trial, the step at which each rung stops; None for its end."""
        self.folder, self.rungs, self.eta = folder, rungs, eta
        self.metric, self.goal = metric, goal
        self.notes: list[str] = []

    def waiting(self) -> list[Job]:
        """The trials of the first rung that is not complete."""
        members = list(self.rungs)
        for rung in range(max(map(len, self.rungs.values()))):
            jobs = [Job(i, self.rungs[i][rung]) for i in members]
            states = {job: attempts.read(self.folder, job.trial_id) for job in jobs}
            left = [job for job in jobs if not states[job].has_run(job.stop_after)]
            if left:
                return left
            alive = [
                job.trial_id
                for job in jobs
                if states[job].status not in ("failed", "diverged")
            ]
            members = self._best(alive, rung)
        return []

    def _best(self, members: list[str], rung: int) -> list[str]:
        if not members:
            return []
        values = self._values(members, rung, self.metric)
        if all(math.isnan(value) for value in values.values()):
            note = f"no {self.metric} at rung {rung + 1}; ranked by the training loss."
            self.notes += [note] if note not in self.notes else []
            values = self._values(members, rung, "loss")
        goal = self.goal
        ranked = sorted(members, key=lambda i: results.rank(values[i], goal))
        return ranked[: max(1, len(ranked) // self.eta)]

    def _values(self, members: list[str], rung: int, metric: str) -> dict[str, float]:
        return {
            i: results.metric_of(
                self.folder.workdir(i), metric, step=self.rungs[i][rung]
            )
            for i in members
        }


class Search:
    """Trials that a sampler proposes from the results so far.

    The sampler is `configs.search.Sampler`: it keeps what it asked and was told in the
    sweep's folder.
    """

    def __init__(
        self, folder: Folder, sampler: Any, words: Sequence[str], *, workers: int
    ):
        self.folder, self.sampler, self.words = folder, sampler, words
        self.workers = workers

    def waiting(self) -> list[Job]:
        """Trials that are open, and new ones up to one for each worker."""
        while True:
            jobs = [Job(i) for i in self._open()]
            if len(jobs) >= self.workers:
                return jobs
            overrides = self.sampler.ask()
            if overrides is None:
                return jobs
            self._add(overrides)

    def _add(self, overrides: dict[str, str]) -> None:
        trial = Trial(tuple(overrides.items()))
        self.folder.add(trial.id, overrides, trial.flags(self.words))

    def _open(self) -> list[str]:
        """Ids of trials that were asked for and are not over; tells of the others."""
        ids = []
        for number, overrides in self.sampler.open():
            self._add(overrides)  # a kill may have come between asking and adding
            trial_id = Trial(tuple(overrides.items())).id
            state = attempts.read(self.folder, trial_id)
            if not state.is_over:
                ids.append(trial_id)
                continue
            value = results.metric_of(
                self.folder.workdir(trial_id), self.sampler.metric
            )
            self.sampler.tell(number, state.status, value)
        return list(dict.fromkeys(ids))
