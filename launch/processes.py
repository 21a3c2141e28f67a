"""Signals, and processes by an identity that a used-again number does not have."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def on_stop_signals(handler: Callable[[int, Any], None]) -> dict[int, Any]:
    """Handle the signals that ask a process to stop; the handlers before, by signal.

    One that is ignored, as nohup does with SIGHUP, stays so.
    """
    before: dict[int, Any] = {n: signal.getsignal(n) for n in _STOP_SIGNALS}
    before = {n: old for n, old in before.items() if old != signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    return before


def identity(pid: int) -> str:
    """`pid:start`, where start is when the process began, in the system's own words."""
    return f"{pid}:{_start_of(pid)}"


def terminate(identified: object) -> bool:
    """Ask the process of an `identity` to stop; False where it is gone."""
    pid, _, start = str(identified).partition(":")
    if not pid.isdigit() or not start or _start_of(int(pid)) != start:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGTERM)
        return True
    return False


def _start_of(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _start_by_ps(pid)
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]  # field 22 of proc(5): starttime


def _start_by_ps(pid: int) -> str:
    """For systems without /proc."""
    if os.path.isdir("/proc/self"):
        return ""
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
