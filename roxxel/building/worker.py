"""A process that turns parts into spooled pieces; `workers` starts it and feeds it.

Messages from there: first the recipe and the folder of the spool, then parts with
their numbers. Messages back: `(number, amount)` of a part that is being read, and
`(number, Spooled)` or `(number, exception)` when it is over.
"""

import os
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from roxxel.building import encode, spool
from roxxel.building.recipe import Recipe
from roxxel.building.source import Part
from roxxel.errors import ConfigError

_REPORT_EVERY_SECS = 0.5
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


def main(fd: int) -> None:
    """Works on the parts that come through `fd` until it is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection = Connection(fd)
    try:
        recipe, folder = _unpickled(connection.recv_bytes())
        while True:
            number, raw = connection.recv()
            connection.send((number, _result(raw, recipe, folder, number, connection)))
    except _GONE:
        return  # the process that started this one is gone, or has all it wants


def _end_with_parent() -> None:
    """Standard input is held open by the process that started this one."""
    os.read(0, 1)
    os._exit(1)


def _result(raw: bytes, recipe: Recipe, folder: str, number: int, connection) -> Any:
    try:
        part = _unpickled(raw)
        pieces = _reported(part, recipe, number, connection)
        return spool.write(pieces, recipe, os.path.join(folder, str(number)))
    except _GONE:
        raise
    except Exception as err:
        return _portable(err)


def _reported(
    part: Part, recipe: Recipe, number: int, connection: Connection
) -> Iterator[encode.Piece]:
    """The pieces; says now and then how far it is, and so that the parent lives."""
    due = time.monotonic() + _REPORT_EVERY_SECS
    for piece in encode.pieces(part, recipe):
        yield piece
        if time.monotonic() >= due:
            connection.send((number, int(getattr(part, "done", 0))))
            due = time.monotonic() + _REPORT_EVERY_SECS


def _unpickled(raw: bytes) -> Any:
    try:
        return pickle.loads(raw)
    except (AttributeError, ImportError) as err:
        raise ConfigError(
            f"a worker process cannot load a source or tokenizer: {err}. Define its "
            "classes in a module that can be imported, or give processes=1."
        ) from err


def _portable(err: Exception) -> Exception:
    """`err` as it is where it survives the way, with its traceback as a note."""
    err.add_note("".join(traceback.format_exception(err)).rstrip())
    try:
        pickle.loads(pickle.dumps(err))
    except Exception:
        return RuntimeError(f"{type(err).__name__}: {err}")
    return err
