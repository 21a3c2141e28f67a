"""Checkpoints that somebody reads and that must not be deleted meanwhile.

    <root>/.holds/<name>.json    {"serial": 12}: those saved as the 12th or later stay

The holder keeps its file locked, and the system unlocks it when the process dies: what
is not locked is stale and goes. Where another machine's lock does not show, a file that
was touched in the last ten minutes counts; its holder touches it every minute.
"""

import contextlib
import fcntl
import json
import math
import os
import pathlib
import socket
import threading
import time
from typing import TextIO

FOLDER = ".holds"
_FRESH_SECS = 600.0
_TOUCH_SECS = 60.0


class Hold:
    """A hold on the checkpoints of a directory, while its context is open."""

    def __init__(self, root: pathlib.Path):
        name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}.json"
        self._path = root / FOLDER / name
        self._ended = threading.Event()

    def __enter__(self) -> "Hold":
        self._path.parent.mkdir(exist_ok=True)
        self._file = open(self._path, "w+", encoding="utf-8")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self.keep_from(0)
        self._thread = threading.Thread(target=self._touch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)
        self._file.close()
        with contextlib.suppress(OSError):  # others hold as well
            self._path.parent.rmdir()

    def keep_from(self, serial: int) -> None:
        """Checkpoints saved as number `serial` or later stay, also those to come."""
        self._file.seek(0)
        self._file.truncate()
        json.dump({"serial": serial, "host": socket.gethostname()}, self._file)
        self._file.flush()

    def _touch(self) -> None:
        while not self._ended.wait(_TOUCH_SECS):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def lowest(root: pathlib.Path) -> float:
    """The serial number from which checkpoints are held; inf where none are.

    Stale holds are removed.
    """
    found = (_serial(path) for path in sorted((root / FOLDER).glob("*.json")))
    return min((serial for serial in found if serial is not None), default=math.inf)


def _serial(path: pathlib.Path) -> float | None:
    """The serial number of a hold; None of a stale one, which goes."""
    try:
        with open(path, encoding="utf-8") as file:
            is_free, age = _is_free(file), time.time() - path.stat().st_mtime
            serial, host = _read(file)
    except FileNotFoundError:  # it was let go
        return None
    if not is_free or (host != socket.gethostname() and age <= _FRESH_SECS):
        return serial
    path.unlink(missing_ok=True)
    return None


def _read(file: TextIO) -> tuple[float, str | None]:
    try:
        told = json.load(file)
        return float(told["serial"]), told["host"]
    except (ValueError, KeyError, TypeError):  # it is being written
        return 0.0, None


def _is_free(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
