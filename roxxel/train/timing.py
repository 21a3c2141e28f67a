"""Where the wall time of a run goes, and the rate at which tokens pass."""

import contextlib
import time
from collections import deque
from collections.abc import Generator

WINDOW_STEPS = 50


class StepClock:
    """Tokens a second over the last steps, and seconds spent by phase.

    `tick` is called as steps complete; time spent inside `phase` (evaluation, save)
    is not counted as training time.
    """

    def __init__(self, tokens_per_step: int):
        self.seconds: dict[str, float] = {}
        self._tokens_per_step = tokens_per_step
        self._paused = 0.0
        self._ticks: deque[float] = deque(maxlen=WINDOW_STEPS + 1)

    @contextlib.contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Counts the time of the block under `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self._paused += spent

    def tick(self) -> None:
        """One more step has completed."""
        self._ticks.append(time.perf_counter() - self._paused)

    @property
    def tokens_per_sec(self) -> float:
        """Mean rate over the last `WINDOW_STEPS` completed steps; 0 before two."""
        if len(self._ticks) < 2:
            return 0.0
        elapsed = self._ticks[-1] - self._ticks[0]
        steps = len(self._ticks) - 1
        return steps * self._tokens_per_step / elapsed if elapsed > 0 else 0.0
