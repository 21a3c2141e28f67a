"""The work directory of a run: checked before anything is built, written after."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from roxxel.errors import ConfigError

DEFAULT_ROOT = "runs"
CONFIG_JSON = "config.json"
CONFIG_TEXT = "config.txt"
RUN_JSON = "run.json"
UNCOMMITTED = "uncommitted.diff"
METRICS = "roxxel_metrics.csv"
_DESCRIBING = (CONFIG_JSON, CONFIG_TEXT, RUN_JSON, UNCOMMITTED)
_STARTED = (
    *_DESCRIBING,
    "budget.json",
    "roxxel_system.log",
    ".lock",
    ".goodput.json",
    "goodput.jsonl",
    "ended.json",
)


def choose(given: str | None, experiment: str) -> Path:
    """The absolute work directory: as given, or `runs/<experiment>`."""
    path = os.path.expanduser(given) if given else Path(DEFAULT_ROOT) / experiment
    return Path(os.path.abspath(path))


def check_writable(path: Path, flag: str) -> None:
    """Check that a work directory exists or can be made; creates nothing.

    Raises:
      ConfigError: a file is in the way, or the place cannot be written to.
    """
    try:
        if path.exists():
            _check_directory(path, flag)
            return
        parent = next(parent for parent in path.parents if os.path.lexists(parent))
    except OSError as err:
        raise ConfigError(f"{flag}: {path} cannot be used: {err.strerror}.") from err
    if os.path.lexists(path):
        raise ConfigError(f"{flag}: {path} is a link that leads nowhere.")
    if not parent.is_dir():
        raise ConfigError(f"{flag}: {parent} is a file; expected a directory.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag}: {parent} is not writable.")


def check_same_experiment(path: Path, experiment: str, source: str, flag: str) -> None:
    """Check that a work directory holds no run of another experiment.

    Raises:
      ConfigError: it does, naming both.
    """
    section = _section(path)
    other, other_source = section.get("experiment"), section.get("source")
    if not other or other == experiment:
        return
    raise ConfigError(
        f"{flag}: {path} holds a run of the experiment {other!r} ({other_source}), not "
        f"of {experiment!r} ({source}); choose another --workdir."
    )


def make(path: Path, flag: str) -> None:
    """Make a work directory and its parents.

    Raises:
      ConfigError: the system refuses.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ConfigError(f"{flag}: cannot make {path}: {err.strerror}.") from err


def write_text(path: Path, content: str) -> Path:
    """Replace a file in one step: readers see the old or the new text, never part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def snapshot(path: Path) -> dict[str, bytes]:
    """The files that describe the run in a work directory, by name."""
    return {
        name: (path / name).read_bytes()
        for name in _DESCRIBING
        if (path / name).exists()
    }


def restore(path: Path, before: dict[str, bytes]) -> None:
    """Put back the files of a `snapshot`; does nothing where it held none."""
    for name in _DESCRIBING if before else ():
        if name in before:
            (path / name).write_bytes(before[name])
        else:
            (path / name).unlink(missing_ok=True)


def remove_started(path: Path) -> None:
    """Take away a directory in which a run was refused before its first step.

    Only what a start writes is removed, so a directory that holds more stays.
    """
    for name in _STARTED:
        (path / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it
        path.rmdir()


def read_text(path: Path) -> str | None:
    """The flat text of the run that a work directory holds, or None."""
    try:
        return (path / CONFIG_TEXT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _check_directory(path: Path, flag: str) -> None:
    if not path.is_dir():
        raise ConfigError(f"{flag}: {path} is a file; expected a directory.")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag}: {path} is not writable.")


def _section(path: Path) -> dict[str, Any]:
    """The part of a run's config.json that names its experiment."""
    try:
        data = json.loads((path / CONFIG_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    section = data.get("roxxel") if isinstance(data, dict) else None
    return section if isinstance(section, dict) else {}
