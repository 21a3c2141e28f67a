"""How a process of several ends when the others do not end with it.

jax's own exit waits minutes for processes that may be stuck, and ends this one from C++
when they are gone.
"""

import atexit
import contextlib
import ctypes
import socket
import sys
import time

from roxxel import notices

# How long process 0, with which the coordination service goes, waits for the others.
_LEAVE_SECS = 6.0


def leave_at_exit() -> None:
    """This process failed: at its exit it does not wait for the others."""
    atexit.unregister(_leave)
    atexit.register(_leave)  # the last one registered is the first to run


def tell_failure(error: BaseException) -> None:
    """Tells the other processes of an error that ends this one before or in its run."""
    board = notices.board("failed")
    if board is None:
        return
    leave_at_exit()
    text = str(error).strip().splitlines()[:1] or [""]
    with contextlib.suppress(Exception):
        board.post(
            str(board.index),
            f"on {socket.gethostname()}: {type(error).__name__}: {text[0][:500]}",
        )


def tell_leaving() -> None:
    """Before a process ends on its own account; process 0 waits for the others.

    With process 0 goes the service, without which jax ends the others.
    """
    board = notices.board("leaving")
    if board is None:
        return
    board.post(str(board.index), "")
    until = time.monotonic() + _LEAVE_SECS
    while board.index == 0 and time.monotonic() < until:
        if len(board.read()) == board.count:
            return
        time.sleep(0.1)


def _leave() -> None:
    with contextlib.suppress(Exception):
        tell_leaving()
    state = sys.modules["jax._src.distributed"].global_state
    for name in ("preemption_sync_manager", "client", "service"):
        kept = getattr(state, name)
        if kept is not None:  # never destroyed: that would wait, too
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            setattr(state, name, None)
