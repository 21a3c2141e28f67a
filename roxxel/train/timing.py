"""Where the wall time of a run goes, and the rate at which tokens pass."""

import array
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator

from roxxel.goodput import PHASES

WINDOW_STEPS = 50

# Time in which steps go on; the rest does not slow the reported rate.
_TRAINING = ("data", "step", "other")
_STEPS_KEPT = 10_000  # of the step times, for the percentiles


def process_age() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            started = int(file.read().rpartition(")")[2].split()[19])
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(now - started / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


class StepClock:
    """Seconds spent by phase, tokens a second, and how long steps take.

    The phases exclude each other: one inside another stops the outer's time, so that
    `seconds` sums to the time since the clock was made. `tick` is called as steps
    complete; time in other phases than data, step and other is no part of the rate.

    Args:
      before: seconds that the process has been starting already.
      clock: monotonic seconds.

    Attributes:
      current: the phase that runs now.
      since: when it began, or last showed a sign of life (`beat`), by `clock`.
      warm: phases that are not about to compile: all but step and evaluation from the
        beginning, these once they made progress.
    """

    def __init__(
        self, before: float = 0.0, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(PHASES, 0.0) | {"start": before}
        self.current = "start"
        self.warm = set(PHASES) - {"step", "evaluation"}
        self.since = self._counted = clock()
        self._ticks: deque[tuple[float, int]] = deque(maxlen=WINDOW_STEPS + 1)
        self._step_secs = array.array("f")
        self._num_steps = 0

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, up to now; those of no time at all are left out."""
        found = dict(self._seconds)
        found[self.current] += self._clock() - self._counted
        return {name: spent for name, spent in found.items() if spent}

    @property
    def total(self) -> float:
        """Seconds of all phases, up to now."""
        return sum(self._seconds.values()) + self._clock() - self._counted

    @contextlib.contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Counts the time of the block under `name`, one of `PHASES`."""
        outer = self.switch(name)
        try:
            yield
        finally:
            self.switch(outer)

    def switch(self, name: str) -> str:
        """Counts the time from now on under `name`; returns what it was before."""
        self._count()
        before, self.current = self.current, name
        self.since = self._counted
        return before

    def beat(self) -> None:
        """A sign of life inside of a phase, such as one more batch evaluated."""
        self.warm.add(self.current)
        self.since = self._clock()

    def move(self, seconds: float, source: str, target: str) -> None:
        """Counts time under `target` that was counted under `source`."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def tick(self, tokens: int) -> None:
        """One more step has completed, `tokens` since the beginning of the run."""
        self.warm.add("step")
        self._count()
        now = sum(self._seconds[name] for name in _TRAINING)
        if self._ticks:
            self._keep(now - self._ticks[-1][0])
        self._ticks.append((now, tokens))

    @property
    def tokens_per_sec(self) -> float:
        """Mean rate over the last `WINDOW_STEPS` completed steps; 0 before two."""
        if len(self._ticks) < 2:
            return 0.0
        (start, before), (end, after) = self._ticks[0], self._ticks[-1]
        return (after - before) / (end - start) if end > start else 0.0

    def step_percentiles(self) -> dict[str, float]:
        """Seconds a step, as p50, p90 and p99 of the last steps; empty before two."""
        ordered = sorted(self._step_secs)
        if not ordered:
            return {}
        last = len(ordered) - 1
        return {f"p{part}": ordered[round(last * part / 100)] for part in (50, 90, 99)}

    def _keep(self, seconds: float) -> None:
        if len(self._step_secs) < _STEPS_KEPT:
            self._step_secs.append(seconds)
        else:
            self._step_secs[self._num_steps % _STEPS_KEPT] = seconds
        self._num_steps += 1

    def _count(self) -> None:
        now = self._clock()
        self._seconds[self.current] += now - self._counted
        self._counted = now
