"""No save is lost when the interpreter ends, whichever way it does.

Python shuts thread pools down before `atexit` hooks run, and Orbax writes with thread
pools: a hook of `atexit` comes too late. Hooks of the `threading` module run first, in
reverse order of registration; this one is registered after the thread pools' own.
"""

import atexit
import concurrent.futures.thread as thread_pools
import logging
import os
import pathlib
import sys
import threading
from typing import Protocol

from absl import logging as absl_logging


class Writer(Protocol):
    """What this module knows of one that writes to the directory `root`."""

    root: pathlib.Path

    def wait(self) -> None:
        """Waits for the write in progress and raises its error."""

    def join(self) -> None:
        """Waits for the write in progress."""


_LOOK_SECS = 0.1

_pending: set[Writer] = set()


def track(writer: Writer) -> None:
    """Keeps `writer` alive and waited for until `untrack`."""
    _pending.add(writer)


def untrack(writer: Writer) -> None:
    """Its write has ended and the outcome was reported."""
    _pending.discard(writer)


def pending() -> list[Writer]:
    """Writers of this process with a write in progress, or an error not yet told."""
    return list(_pending)


def _finish() -> None:
    _join_user_threads()
    failed = False
    for writer in pending():
        try:
            writer.wait()
        except Exception as err:
            absl_logging.error("At exit: %s", err)
            failed = True
    if failed:
        atexit.register(_exit_with_failure)  # the last registered is the first to run


def _join_user_threads() -> None:
    """Waits for threads that may still save, as the interpreter is about to do anyway.

    They are looked at again and again: a thread pool starts its workers before it
    lists them, and a write in the background starts pools at any time.
    """
    while threads := _user_threads():
        threading.Thread.join(threads[0], _LOOK_SECS)  # Orbax's own raises errors


def _user_threads() -> list[threading.Thread]:
    """All but this one, daemons, and workers of pools.

    Workers wait for the interpreter, not the other way round.
    """
    threads = threading.enumerate()  # before the workers: a new one is no user's
    workers = set(getattr(thread_pools, "_threads_queues", ()))
    return [
        thread
        for thread in threads
        if not (
            thread is threading.current_thread()
            or thread.daemon
            or thread in workers
            or type(thread).__module__.startswith("concurrent.futures")
        )
    ]


def _exit_with_failure() -> None:
    """Ends the process with exit code 1: a checkpoint that it asked for is missing."""
    atexit.unregister(_exit_with_failure)
    atexit._run_exitfuncs()  # all other hooks, in their order
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)


# Not public, yet the only hook before the thread pools stop; without it, the next best.
getattr(threading, "_register_atexit", atexit.register)(_finish)
