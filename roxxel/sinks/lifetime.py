"""Nothing is lost when the process ends: exit hooks and signals of live loggers.

Loggers are known here by their folder from construction to `close`. One exit hook
closes those that are left. SIGTERM and SIGHUP, where they would just kill the process,
let the loggers finish first and then kill it all the same, with the same exit status;
a handler of somebody else, set before or after, stays in place.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Protocol

from roxxel.errors import ConfigError


class Closable(Protocol):
    """What a logger shows to this module."""

    def close(self) -> None:
        """Writes everything and ends."""

    def drain_before_death(self, cause: str) -> None:
        """Logs `cause` and writes everything."""

    def at_exit(self) -> None:
        """Logs an exception that ended the main thread, then closes."""


_SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_live: dict[str, Closable] = {}


def enter(folder: str, logger: Closable) -> None:
    """Registers `logger`; one that still writes to the same folder is closed first."""
    previous = _live.get(folder)
    if previous is not None:
        previous.close()
    _live[folder] = logger
    hook_exit()
    if threading.current_thread() is threading.main_thread() and not _jax_has_sigterm():
        for signum in _SIGNALS:
            if signal.getsignal(signum) is signal.SIG_DFL:
                signal.signal(signum, _finish_and_die)


def leave(folder: str, logger: Closable) -> None:
    """Forgets `logger`; the last one takes the hooks away."""
    if _live.get(folder) is logger:
        del _live[folder]
    if _live:
        return
    atexit.unregister(_at_exit)
    if threading.current_thread() is threading.main_thread() and not _jax_has_sigterm():
        for signum in _SIGNALS:
            if signal.getsignal(signum) is _finish_and_die:
                signal.signal(signum, signal.SIG_DFL)


def hook_exit() -> None:
    """Puts the exit hook before those registered so far.

    Called again with the first device value: jax clears its backends in a hook of its
    own, and the values have to be read before.
    """
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def process_index() -> int:
    """The number of this process, found without initialising a jax backend.

    Taken from `jax.distributed`, else from a backend that is up already, else from
    the environment variable ROXXEL_PROCESS_ID, else 0.
    """
    distributed = sys.modules.get("jax._src.distributed")
    if distributed is not None and distributed.global_state.client is not None:
        return distributed.global_state.process_id
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_up = bridge is not None and bridge.backends_are_initialized()
    if is_up and bridge.process_count() > 1:
        return bridge.process_index()
    return _index_from_environment()


def uncaught_exception() -> BaseException | None:
    """What ended the main thread, once the interpreter has printed it."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _index_from_environment() -> int:
    text = os.environ.get("ROXXEL_PROCESS_ID", "0")
    if not text.isdecimal():
        raise ConfigError(
            f"environment variable ROXXEL_PROCESS_ID is {text!r}, expected the number "
            "of this process, counted from 0."
        )
    return int(text)


def _at_exit() -> None:
    for logger in list(_live.values()):
        logger.at_exit()


def _finish_and_die(signum: int, frame: FrameType | None) -> None:
    for logger in list(_live.values()):
        with contextlib.suppress(Exception):
            logger.drain_before_death(signal.Signals(signum).name)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _jax_has_sigterm() -> bool:
    """Whether jax's preemption service listens, which Python cannot see."""
    distributed = sys.modules.get("jax._src.distributed")
    state = getattr(distributed, "global_state", None)
    return getattr(state, "preemption_sync_manager", None) is not None
