"""Runs one trial of a sweep to its end: `python -m launch.trial`.

A driver, or a job of an array, starts one of these for each trial. It holds the trial's
lock, which its run inherits: a run whose starter was killed keeps its trial until it
ends, and whoever comes next waits for it instead of starting it twice.
"""

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from launch import attempts, processes
from launch.folder import Folder, read_json, write_json
from launch.problems import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, EXIT_RESTART

LOCK = "lock"
HOLDER = "holder.json"
INDEX_FILE = "trials.txt"  # ids, one a line, for job arrays


class Supervisor:
    """One trial, its lock and its running process."""

    def __init__(self, folder: Folder, trial_id: str, stop_after: int | None):
        self.folder, self.id, self.stop_after = folder, trial_id, stop_after
        self.state_dir = folder.state(trial_id)
        self.process: subprocess.Popen | None = None
        self.told = False
        self.passed_on = False
        self.holds = False

    def run(self) -> int:
        """Waits for the lock, then runs the trial until it is over; the exit code."""
        processes.on_stop_signals(self._on_signal)
        with open(self.state_dir / LOCK, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.holds = True
            while not self.told:
                state = attempts.read(self.folder, self.id)
                if state.has_run(self.stop_after):
                    return (
                        EXIT_OK if state.status in ("done", "paused") else EXIT_FAILED
                    )
                self._attempt(lock)
        return EXIT_RESTART

    def command(self) -> list[str]:
        """The command line of the run."""
        flags = [*self.folder.record(self.id)["flags"]]
        flags.append(f"--workdir={self.folder.workdir(self.id)}")
        if self.stop_after is not None:
            flags.append(f"--fdl.stop_after={self.stop_after}")
        return [sys.executable, "-m", "roxxel.main", *flags]

    def _attempt(self, lock: IO[str]) -> None:
        start = time.time()
        with open(self.state_dir / "output.log", "ab") as output:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[lock.fileno()],
            )
        self._write_holder()
        if self.told and not self.passed_on:  # it came while the process started
            self._pass_on()
        code = self.process.wait()
        attempts.append(
            self.folder,
            self.id,
            code=code,
            stop_after=self.stop_after,
            told=self.told,
            start=round(start, 3),
            seconds=round(time.time() - start, 3),
        )

    def _write_holder(self) -> None:
        assert self.process is not None
        content = {
            "supervisor": processes.identity(os.getpid()),
            "run": processes.identity(self.process.pid),
        }
        write_json(self.state_dir / HOLDER, content)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self.told = True
        if self.holds:
            self._pass_on()
        else:
            self._stop_holder()

    def _pass_on(self) -> None:
        """Asks the run to stop; asked a second time, a run ends without saving."""
        if self.process is not None and self.process.poll() is None:
            self.passed_on = True
            self.process.terminate()

    def _stop_holder(self) -> None:
        """Tells whoever runs the trial while this process waits for it."""
        holder = read_json(self.state_dir / HOLDER) or {}
        for name in ("supervisor", "run"):
            if processes.terminate(holder.get(name)):
                return


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trial that `argv` names by its id, or by its line in `trials.txt`."""
    parser = argparse.ArgumentParser(prog="python -m launch.trial", allow_abbrev=False)
    parser.add_argument("--sweep_dir", type=Path, required=True)
    parser.add_argument("--id")
    parser.add_argument("--index", type=int, help="line of trials.txt, from 0")
    parser.add_argument("--stop_after", type=int)
    given = parser.parse_args(argv)
    trial_id = given.id
    if given.index is not None:
        with contextlib.suppress(OSError, IndexError):
            lines = (given.sweep_dir / INDEX_FILE).read_text().split()
            trial_id = lines[given.index]
    folder = Folder(given.sweep_dir)
    if not trial_id or not folder.record(trial_id):
        sys.stderr.write(
            f"trial: error: {given.sweep_dir} has no trial "
            f"{trial_id or given.index!r}.\n"
        )
        return EXIT_CONFIG
    return Supervisor(folder, trial_id, given.stop_after).run()


if __name__ == "__main__":
    sys.exit(main())
