"""One run at a time in a work directory."""

import contextlib
import fcntl
import os
import pathlib
import time
from collections.abc import Generator
from typing import TextIO

from roxxel.errors import ConfigError

FILE_NAME = ".lock"

# Who only looks whether a run goes on holds the lock for a moment.
_ATTEMPTS, _PAUSE_SECS = 10, 0.05


@contextlib.contextmanager
def hold(workdir: pathlib.Path) -> Generator[None]:
    """Holds `workdir` while the block runs; the system lets go when a process dies.

    File systems without locks are not guarded.

    Raises:
      ConfigError: another process runs there; names it.
    """
    with open(workdir / FILE_NAME, "a+", encoding="utf-8") as file:
        try:
            _take(file)
        except BlockingIOError as err:
            file.seek(0)
            raise ConfigError(
                f"{workdir}: process {file.read().strip() or 'unknown'} runs there. "
                "Wait for it, end it, or choose another --workdir."
            ) from err
        except OSError:  # no locks here, as on some network file systems
            pass
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(file: TextIO) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_SECS)
