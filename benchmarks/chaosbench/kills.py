"""When and how a run is killed: drawn in advance from a seed, then carried out."""

import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import time

from chaosbench import results

_POLL_SECS = 0.02
_START_SECS = 8.0  # a kill at the start comes within so many seconds
_STEP_SECS = 0.5  # and one at a step so long after its batch was given, at most
_SIGNALS = (signal.SIGKILL, signal.SIGTERM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """A signal to one process or to all, so long after a start or a step.

    Attributes:
      number: SIGKILL or SIGTERM.
      target: index of the process; None for all.
      step: the step that has to be reached; None for a kill at the start.
      secs: seconds after that.
    """

    number: signal.Signals
    target: int | None
    step: int | None
    secs: float

    def __str__(self):
        whom = "all" if self.target is None else f"process {self.target}"
        since = "the start" if self.step is None else f"batch {self.step}"
        return f"{self.number.name} to {whom} {self.secs:.2f} s after {since}"


def plan(seed: int, count: int, processes: int, steps: int) -> list[Kill]:
    """`count` kills, the ones at steps in the order in which a run gets there."""
    random_ = random.Random(seed)
    points = sorted(random_.randrange(steps) for _ in range(count))
    targets = [None, *range(processes)]
    return [
        Kill(
            number=random_.choice(_SIGNALS),
            target=random_.choice(targets),
            step=None if at_start else point,
            secs=random_.uniform(0, _START_SECS if at_start else _STEP_SECS),
        )
        for point in points
        for at_start in [random_.random() < 0.25]
    ]


def carry_out(kill: Kill, launcher: subprocess.Popen, rows: pathlib.Path) -> bool:
    """Waits for the moment, and kills; False where the run had ended before it."""
    began = time.monotonic()
    if kill.step is not None:
        while results.last_step(rows) < kill.step:
            if launcher.poll() is not None:
                return False
            time.sleep(_POLL_SECS)
        began = time.monotonic()
    while time.monotonic() - began < kill.secs:
        if launcher.poll() is not None:
            return False
        time.sleep(_POLL_SECS / 4)
    return _send(kill, launcher)


def _send(kill: Kill, launcher: subprocess.Popen) -> bool:
    if kill.target is None and kill.number == signal.SIGTERM:
        launcher.terminate()  # as a scheduler does; it passes the signal on
        return True
    while not (children := _children(launcher.pid)):
        if launcher.poll() is not None:
            return False
        time.sleep(_POLL_SECS)
    chosen = children if kill.target is None else children[kill.target :][:1]
    sent = False
    for pid in chosen:
        try:
            os.kill(pid, kill.number)
            sent = True
        except ProcessLookupError:
            continue
    return sent


def _children(pid: int) -> list[int]:
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return sorted(map(int, text.split()))
