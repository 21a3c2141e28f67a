"""One writer of a data set at a time: a lock that ends with the process holding it."""

import contextlib
import fcntl
import os
from collections.abc import Generator

from roxxel.data import paths


@contextlib.contextmanager
def alone(target: paths.Target) -> Generator[None]:
    """Holds the lock of the data set that `target` names.

    The kernel lets go of it when the process ends, however it ends. On a file system
    without locks nothing is held, and names are still only given where there are none.

    Raises:
        paths.ShardsExistError: Another writer, of this process or another, holds it.
    """
    fd = _acquire(target)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(target.lock)  # before the lock goes, so that it is still ours
        os.close(fd)


def _acquire(target: paths.Target) -> int:
    while True:
        fd = os.open(target.lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            os.close(fd)
            raise paths.ShardsExistError(
                f"{target.path(0)} and its further shards are being written by another"
                " writer of the same data set; wait for it, stop it, or write to"
                " another place."
            ) from err
        except OSError:
            return fd
        if _is_at(fd, target.lock):
            return fd
        os.close(fd)  # the one who held it has removed it: take part in a new one


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
