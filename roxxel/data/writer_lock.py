"""One writer of a data set at a time: a lock that ends with the process holding it."""

import contextlib
import fcntl
import os
from collections.abc import Generator
from io import FileIO

from roxxel.data import paths


@contextlib.contextmanager
def alone(target: paths.Target) -> Generator[None]:
    """Holds the lock of the data set that `target` names.

    The kernel lets go of it when the process ends, however it ends. On a file system
    without locks nothing is held, and names are still only given where there are none.

    Raises:
        paths.ShardsExistError: Another writer, of this process or another, holds it.
    """
    with _acquire(target):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(target.lock)  # before the lock goes, so that it is still ours


def _acquire(target: paths.Target) -> FileIO:
    while True:
        file = FileIO(target.lock, "ab")  # closed with the last who holds it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            file.close()
            raise paths.ShardsExistError(
                f"{target.path(0)} and its further shards are being written by another"
                " writer of the same data set; wait for it, stop it, or write to"
                " another place."
            ) from err
        except OSError:
            return file
        if _is_at(file.fileno(), target.lock):
            return file
        file.close()  # the one who held it has removed it: take part in a new one


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
