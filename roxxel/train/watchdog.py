"""Deadlines of a run's phases, and the stacks of all threads as text."""

import dataclasses
import os
import pathlib
import socket
import sys
import threading
import time
import traceback

from roxxel.errors import ConfigError

FOLDER = "stacks"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds without progress after which a run counts as hung; None: never.

    A run that hangs writes the stacks of all its processes to `stacks/` in the work
    directory and ends with exit code 42, to be started again. Compiling has no
    deadline; that of a step and of an evaluation counts from the second one on, as the
    first compiles.

    Attributes:
      data: to get one batch.
      step: to finish one step.
      evaluation: for one batch of an evaluation.
      save: to copy the state, or to wait for the write before.
      sample: for the text at the end.
      stop: from a signal to the end of what runs then; the last save comes on top.
    """

    data: float | None = 1800.0
    step: float | None = 1800.0
    evaluation: float | None = 1800.0
    save: float | None = 3600.0
    sample: float | None = 1800.0
    stop: float = 25.0

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value is not None and not value > 0:
                raise ConfigError(f"deadlines: {name} must be positive, got {value}.")

    def of(self, phase: str) -> float | None:
        """Seconds for a phase of `roxxel.train.timing`; None without a deadline."""
        return getattr(self, phase, None) if phase != "stop" else None


NO_DEADLINES = Deadlines(
    data=None, step=None, evaluation=None, save=None, sample=None, stop=float("inf")
)


def where(thread_id: int | None) -> str:
    """`file.py:12 in function` where a thread is now; empty if it is gone."""
    frame = sys._current_frames().get(thread_id or 0)
    if frame is None:
        return ""
    place = traceback.extract_stack(frame)[-1]
    return f"{place.filename}:{place.lineno} in {place.name}"


def dump(workdir: pathlib.Path, *, process: int, why: str) -> pathlib.Path:
    """Writes the stacks of all threads of this process; where to.

    Raises:
      OSError: the file cannot be written.
    """
    folder = workdir / FOLDER
    folder.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / f"{stamp}_process_{process}_{socket.gethostname()}.txt"
    head = f"process {process}, host {socket.gethostname()}, pid {os.getpid()}, {stamp}"
    path.write_text(f"{head}\n{why}\n\n{stacks()}", encoding="utf-8")
    return path


def stacks() -> str:
    """The stacks of all threads, innermost call last, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(
        sys._current_frames().items(),
        key=lambda item: item[0] != threading.main_thread().ident,
    )
    parts = [
        f"thread {names.get(ident, 'unknown')} ({ident})\n"
        + "".join(traceback.format_stack(frame))
        for ident, frame in frames
        if ident != threading.get_ident()
    ]
    return "\n".join(parts)
