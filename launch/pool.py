"""Runs trials on this machine, so many at a time, until a planner has no more."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from launch import processes
from launch.folder import Folder, is_locked
from launch.problems import SweepError
from launch.trial import LOCK

_POLL_SECS = 0.05
_MAX_STARTS = 5  # of one job by one driver; a supervisor itself never fails so often


@dataclasses.dataclass(frozen=True)
class Job:
    """A trial to be run to the end, or to a step."""

    trial_id: str
    stop_after: int | None = None


class Planner(Protocol):
    """Decides what runs next; all it knows comes from the files of the trials."""

    def waiting(self) -> list[Job]:
        """The jobs that could start now, in order, those that run now included."""
        ...


class Pool:
    """The running trials of a sweep; each slot has its own environment."""

    def __init__(
        self,
        folder: Folder,
        slots: Sequence[Mapping[str, str]],
        on_end: Callable[[str], None],
    ):
        """`on_end` is called with the id of a trial whose process has ended."""
        self.folder, self.slots, self.on_end = folder, slots, on_end
        self.running: dict[int, tuple[Job, subprocess.Popen]] = {}
        self.starts: dict[Job, int] = {}
        self.told = False

    def run(self, planner: Planner) -> bool:
        """Runs until nothing is left; False where a signal stopped it."""
        before = processes.on_stop_signals(self._on_signal)
        try:
            self._loop(planner)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return not self.told

    def _loop(self, planner: Planner) -> None:
        is_new = True
        while True:
            if is_new and not self.told:
                self._fill(planner.waiting())
            if not self.running:
                return
            is_new = False
            for slot, (job, process) in list(self.running.items()):
                if process.poll() is not None:
                    del self.running[slot]
                    self.on_end(job.trial_id)
                    is_new = True
            if not is_new:
                time.sleep(_POLL_SECS)

    def _fill(self, jobs: Iterable[Job]) -> None:
        busy = {job.trial_id for job, _ in self.running.values()}
        left = [job for job in jobs if job.trial_id not in busy]
        for job in sorted(left, key=self._is_free):
            free = [n for n in range(len(self.slots)) if n not in self.running]
            if not free or self.told:
                return
            self._start(job, free[0])

    def _is_free(self, job: Job) -> bool:
        """Trials that a killed driver left running come first: they hold a worker."""
        return not is_locked(self.folder.state(job.trial_id) / LOCK)

    def _start(self, job: Job, slot: int) -> None:
        self.starts[job] = self.starts.get(job, 0) + 1
        if self.starts[job] > _MAX_STARTS:
            raise SweepError(
                f"trial {job.trial_id} ends without a record; see "
                f"{self.folder.state(job.trial_id) / 'output.log'}."
            )
        command = [sys.executable, "-m", "launch.trial", f"--id={job.trial_id}"]
        command.append(f"--sweep_dir={self.folder.path}")
        if job.stop_after is not None:
            command.append(f"--stop_after={job.stop_after}")
        process = subprocess.Popen(
            command,
            env={**os.environ, **self.slots[slot]},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver, which passes it on
        )
        self.running[slot] = (job, process)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self.told = True
        for _, process in self.running.values():
            if process.poll() is None:
                process.terminate()


def slot_environments(
    workers: int, threads: int, gpus: Sequence[str]
) -> list[dict[str, str]]:
    """What each worker's runs see: `threads` CPU threads and a share of the GPUs.

    Without it every run takes all cores, and two of them slow each other down.
    """
    limits = {
        name: str(threads)
        # NPROC sets the size of XLA's CPU thread pools, the others those of BLAS.
        for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    }
    shared = [{**limits} for _ in range(workers)]
    for slot, environment in enumerate(shared):
        if gpus:
            mine = gpus[slot::workers] or [gpus[slot % len(gpus)]]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    return shared
