"""Processes that belong together: they start, fail and end as one."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

from launch.problems import EXIT_CONFIG, EXIT_DIVERGED, EXIT_OK, EXIT_RESTART

_POLL_SECS = 0.05
# After one failed, the others may still say why they cannot go on: at most so long.
_LAST_WORDS_SECS = 2.0
_READERS_SECS = 5.0  # for output that is still in a pipe when its process has ended
_PR_SET_PDEATHSIG = 1  # prctl(2)
# Which code of several that came at once is the cause.
_CAUSES = (EXIT_CONFIG, EXIT_DIVERGED, EXIT_RESTART)


class Group:
    """Runs commands side by side; every line they write gets `[index]` in front.

    Attributes:
      processes: those that were started, by index.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        envs: Sequence[Mapping[str, str]],
        *,
        grace_secs: float,
    ):
        """`grace_secs`: how long the others get to end once one has failed."""
        self.commands, self.envs, self.grace_secs = commands, envs, grace_secs
        self.processes: list[subprocess.Popen] = []
        self._readers: list[threading.Thread] = []
        self._codes: dict[int, int] = {}
        self._verdict = EXIT_OK
        self._failed_at = 0.0
        self._terminated = self._killed = False
        self._asked: list[int] = []  # signals that came while processes still started

    def run(self) -> int:
        """Starts all, waits for all; the exit code of the one that failed first."""
        for command, env in zip(self.commands, self.envs, strict=True):
            self._start(command, env)
        while len(self._codes) < len(self.processes):
            self._collect()
            if self._verdict != EXIT_OK:
                self._end_the_rest()
            time.sleep(_POLL_SECS)
        deadline = time.monotonic() + _READERS_SECS
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        return self._verdict

    def signal(self, number: int) -> None:
        """Passes a signal on to all, those included that are yet to be started."""
        self._asked.append(number)
        for process in self.processes:
            _send(process, number)

    def _start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        asked = len(self._asked)
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the launcher, which passes it on
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        index = len(self.processes)
        for source, target in (
            (process.stdout, sys.stdout),
            (process.stderr, sys.stderr),
        ):
            assert source is not None
            args = (source, target, f"[{index}] ".encode())
            reader = threading.Thread(target=_copy, args=args, daemon=True)
            reader.start()
            self._readers.append(reader)
        self.processes.append(process)
        missed = self._asked if index == 0 else self._asked[asked:]
        for number in missed:
            _send(process, number)

    def _collect(self) -> None:
        ended = []
        for index, process in enumerate(self.processes):
            if index not in self._codes and process.poll() is not None:
                code = process.returncode
                self._codes[index] = 128 - code if code < 0 else code
                ended.append(self._codes[index])
        failed = [code for code in ended if code != EXIT_OK]
        if failed and self._verdict == EXIT_OK:
            causes = [code for code in _CAUSES if code in failed]
            self._verdict = (causes or failed)[0]
            self._failed_at = time.monotonic()

    def _end_the_rest(self) -> None:
        """Asks the others to end, and then makes them; saving ones are let alone."""
        waited = time.monotonic() - self._failed_at
        words_secs = min(_LAST_WORDS_SECS, self.grace_secs / 2)
        saves = self._verdict == EXIT_RESTART
        if not self._terminated and waited > (self.grace_secs if saves else words_secs):
            self._terminated = True
            self.signal(signal.SIGTERM)
        last = self.grace_secs + (words_secs if saves else 0)
        if not self._killed and waited > last:
            self._killed = True
            for process in self.processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)


def _send(process: subprocess.Popen, number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _end_with_parent() -> None:
    """A launcher that is killed leaves no processes behind: they stop after saving."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _copy(source: IO[bytes], target: IO[str], prefix: bytes) -> None:
    for text in iter(source.readline, b""):
        end = b"" if text.endswith(b"\n") else b"\n"
        line = (prefix + text + end).decode(errors="replace")
        with contextlib.suppress(OSError, ValueError):  # whoever reads has gone
            target.write(line)
            target.flush()
