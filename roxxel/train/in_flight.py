"""Steps that the device was given and whose results the host has not looked at."""

import collections
import contextlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from roxxel.progress import PLAIN_SILENCE_SECS, Progress

if TYPE_CHECKING:
    from roxxel.train.loop import Run

# Steps that may be dispatched ahead of the one whose results the host has seen. Two
# keep the device busy; more would only delay the sight of a loss that is not finite.
MAX_STEPS_AHEAD = 2


class InFlight:
    """Looks at the results of steps, in order, some steps after they were dispatched.

    Args:
      run: whose steps they are.
      progress: the line on the terminal; None without one.
    """

    def __init__(self, run: "Run", progress: Progress | None):
        self._run, self._progress = run, progress
        self._steps: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """One more step was dispatched; waits for the oldest where it is too many."""
        self._steps.append((step, metrics))
        if len(self._steps) > MAX_STEPS_AHEAD:
            self._see(*self._steps.popleft())

    def see_all(self) -> None:
        """Waits for all that were dispatched.

        Raises:
          Rewind: one is refused, and the run goes back.
          DivergedError: one is refused, and the run ends.
        """
        with self._run.clock.phase("step"):
            while self._steps:
                self._see(*self._steps.popleft())

    def is_device_busy(self) -> bool:
        """Whether the newest step is still being computed."""
        return bool(self._steps) and not self._steps[-1][1]["loss"].is_ready()

    def _see(self, step: int, metrics: dict[str, Any]) -> None:
        """Waits for a step, logs its metrics, and judges it."""
        run = self._run
        assert run.accounts is not None
        finite, alive = (
            bool(np.asarray(metrics.pop(name))) for name in ("finite", "alive")
        )
        update_norm = metrics.pop("update_norm")
        run.clock.tick(run.stream.tokens(step))
        run.logger.log_metrics_summary(step, **metrics, **run.accounts.row(step))
        if not finite:
            numbers = metrics | {"update_norm": update_norm}
            run.refusals.see(step, numbers, alive=alive)
        if self._progress is not None:
            loss = float(np.asarray(metrics["loss"]))
            saved = f"  saved {run.saved_step:,}" if run.saved_step > 0 else ""
            note = f"step {step:,}  loss {loss:.4f}{saved}"
            self._progress.set(run.stream.tokens(step), note=note)


def progress(run: "Run", start: int) -> contextlib.AbstractContextManager:
    """The lead's line of progress; None in other processes."""
    if jax.process_index():
        return contextlib.nullcontext()
    return contextlib.closing(
        Progress(
            run.stream.tokens(run.last_step),
            label="train",
            unit="tokens",
            initial=run.stream.tokens(start),
            plain_after=PLAIN_SILENCE_SECS,
        )
    )
