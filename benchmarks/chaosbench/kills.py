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
_STEP_SECS = 0.3  # and others so long after a batch was given, at most
_AT_START = 0.25  # of all kills
_SIGNALS = (signal.SIGKILL, signal.SIGTERM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """A signal to one process or to all, at some moment of an attempt.

    Attributes:
      number: SIGKILL or SIGTERM.
      target: index of the process; None for all.
      batches: the attempt's batches that come before; None for a kill at the start.
      secs: seconds after that.
    """

    number: signal.Signals
    target: int | None
    batches: int | None
    secs: float

    def __str__(self):
        whom = "all" if self.target is None else f"process {self.target}"
        since = "the start" if self.batches is None else f"{self.batches} batches"
        return f"{self.number.name} to {whom} {self.secs:.2f} s after {since}"


def plan(seed: int, count: int, processes: int, steps: int) -> list[Kill]:
    """`count` kills that together leave a run of `steps` steps unfinished, nearly."""
    random_ = random.Random(seed)
    targets = [None, *range(processes)]
    return [
        Kill(
            number=random_.choice(_SIGNALS),
            target=random_.choice(targets),
            batches=None
            if at_start
            else random_.randint(1, max(2, 2 * steps // count)),
            secs=random_.uniform(0, _START_SECS if at_start else _STEP_SECS),
        )
        for at_start in (random_.random() < _AT_START for _ in range(count))
    ]


def carry_out(
    kill: Kill, launcher: subprocess.Popen, rows: pathlib.Path, processes: int
) -> bool:
    """Waits for the moment, and kills; False where the run had ended before it."""
    before = results.attempts(rows)

    def is_time() -> bool:
        if len(_children(launcher.pid)) < processes:
            return False
        if kill.batches is None:
            return True
        begun = results.attempts(rows) > before
        return begun and results.batches_of_last(rows) >= kill.batches

    while not is_time():
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
    children = _children(launcher.pid)
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
