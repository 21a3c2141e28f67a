"""The folder of a sweep: all that a driver knows, so that another one can go on.

sweep.json           what all trials share; another sweep's folder is refused
trials/<id>/         work directories, written by the runs themselves
state/<id>/          of one trial: trial.json, attempts.jsonl, output.log, lock
leaderboard.csv      the results so far
driver.lock          held while a driver runs
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from launch.problems import SweepError

SPEC_FILE = "sweep.json"
_DRIVER_LOCK = "driver.lock"


class Folder:
    """Paths in the folder of a sweep; making one creates nothing."""

    def __init__(self, path: Path):
        self.path = path

    def workdir(self, trial_id: str) -> Path:
        """The work directory of a trial; the run makes it."""
        return self.path / "trials" / trial_id

    def state(self, trial_id: str) -> Path:
        """What the driver keeps of a trial."""
        return self.path / "state" / trial_id

    def ids(self) -> list[str]:
        """The trials that the folder holds, in the order in which they came."""
        found = [read_json(p) for p in (self.path / "state").glob("*/trial.json")]
        found = [record for record in found if record]
        return [r["id"] for r in sorted(found, key=lambda r: (r["number"], r["id"]))]

    def record(self, trial_id: str) -> dict[str, Any]:
        """`trial.json`: id, number, overrides and flags."""
        return read_json(self.state(trial_id) / "trial.json") or {}

    def add(self, trial_id: str, overrides: dict[str, str], flags: list[str]) -> None:
        """Record a trial, unless the folder has it."""
        file = self.state(trial_id) / "trial.json"
        if file.exists():
            return
        record = {
            "id": trial_id,
            "number": len(self.ids()),
            "overrides": overrides,
            "flags": flags,
        }
        write_json(file, record)

    def check_spec(self, spec: dict[str, Any]) -> None:
        """Check that the folder is new or of the same sweep.

        Raises:
          SweepError: it holds something else; says what differs.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise SweepError(f"{self.path} is a file; expected a sweep folder.")
        old = read_json(self.path / SPEC_FILE)
        if old is None:
            if any(self.path.iterdir()):
                raise SweepError(
                    f"{self.path} holds no sweep but is not empty; choose another "
                    "--sweep_dir."
                )
            return
        for key, value in spec.items():
            if old.get(key) != value:
                raise SweepError(
                    f"{self.path} holds another sweep: {key} was {old.get(key)!r} and "
                    f"is now {value!r}. Set it back, or choose another --sweep_dir. "
                    "(More values, axes or trials may be added.)"
                )

    @contextlib.contextmanager
    def driven(self) -> Generator[None]:
        """Holds the folder for one driver while the block runs.

        Raises:
          SweepError: another driver runs there, or the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / _DRIVER_LOCK, "a+")  # noqa: SIM115 - closed below
        except OSError as err:
            raise SweepError(f"{self.path}: {err.strerror}.") from err
        with file:
            if not try_lock(file.fileno()):
                raise SweepError(f"{self.path}: another driver runs this sweep.")
            yield


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process and its children; False: another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock file at `path`."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a file in one step, after its folder exists."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, content: str) -> None:
    """Replace a file in one step, after its folder exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(content, encoding="utf-8")
    os.replace(part, path)
