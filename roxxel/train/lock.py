"""One run at a time in a work directory."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Generator

from roxxel.errors import ConfigError

FILE_NAME = ".lock"


@contextlib.contextmanager
def hold(workdir: pathlib.Path) -> Generator[None]:
    """Holds `workdir` while the block runs; the system lets go when a process dies.

    File systems without locks are not guarded.

    Raises:
      ConfigError: another process runs there; names it.
    """
    with open(workdir / FILE_NAME, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
