"""How the last attempt of a run ended, for whoever follows it.

    {"code": 0, "steps": 2800}

in `ended.json` of the work directory: written when an attempt ends, gone while one
runs. A process that is killed leaves none.
"""

import contextlib
import fcntl
import json
import pathlib
from collections.abc import Callable
from typing import Any

from roxxel.distributed import is_lead
from roxxel.errors import EXIT_ERROR, EXIT_RESTART
from roxxel.train import lock

FILE_NAME = "ended.json"


def recorded(
    workdir: pathlib.Path, run: Callable[[], int], steps: Callable[[], int]
) -> int:
    """What `run` returns, put on record by the lead, as is what it raises.

    Args:
      workdir: of the run.
      run: the attempt; returns its exit code.
      steps: completed steps when it has ended.
    """
    if not is_lead():
        return run()
    path = workdir / FILE_NAME
    path.unlink(missing_ok=True)
    code = EXIT_ERROR
    try:
        code = run()
        return code
    except BaseException as err:
        code = getattr(err, "exit_code", EXIT_ERROR)
        raise
    finally:
        part = workdir / f".{FILE_NAME}.part"
        with contextlib.suppress(OSError):  # a full disk: the attempt's end counts
            part.write_text(json.dumps({"code": code, "steps": steps()}))
            part.replace(path)


def read(workdir: pathlib.Path) -> dict[str, Any] | None:
    """What `recorded` left; None where an attempt runs, was killed, or none was."""
    try:
        found = json.loads((workdir / FILE_NAME).read_text())
        return found if isinstance(found["code"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_over(workdir: pathlib.Path) -> bool:
    """Whether the run has ended and nobody is asked to start it again."""
    found = read(workdir)
    return found is not None and found["code"] != EXIT_RESTART


def is_alive(workdir: pathlib.Path) -> bool:
    """Whether a process trains there; False where the file system has no locks."""
    try:
        with open(workdir / lock.FILE_NAME, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
