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

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._paused = 0.0
        self._ticks: deque[tuple[float, int]] = deque(maxlen=WINDOW_STEPS + 1)

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

    def tick(self, tokens: int) -> None:
        """One more step has completed, `tokens` since the beginning of the run."""
        self._ticks.append((time.perf_counter() - self._paused, tokens))

    @property
    def tokens_per_sec(self) -> float:
        """Mean rate over the last `WINDOW_STEPS` completed steps; 0 before two."""
        if len(self._ticks) < 2:
            return 0.0
        (start, before), (end, after) = self._ticks[0], self._ticks[-1]
        return (after - before) / (end - start) if end > start else 0.0
