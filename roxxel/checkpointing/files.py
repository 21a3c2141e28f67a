"""Step folders of a checkpoint directory: which are complete, and how one becomes so.

    <root>/100/state/...        arrays, written by Orbax
    <root>/100/roxxel.json      record: written last, so its presence means complete
    <root>/100/evaluation.json  metrics that came later, see `add_metrics`
    <root>/100.new/...          a save of step 100 on its way to its final name
    <root>/100.old/...          on its way out

A save goes to `N.new`, gets its record, and only then takes the place of an older `N`:
at every moment one complete version of the step is on the disk. The record lists the
size of every file, which is how a cut file is noticed without reading the arrays.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Generator
from typing import Any

from roxxel.checkpointing import holds
from roxxel.checkpointing.record import checked_step, plain_metrics
from roxxel.errors import ConfigError

FORMAT = 1
RECORD = "roxxel.json"
STATE = "state"
LATER = "evaluation.json"

_STEP_NAME = re.compile(r"(\d+)(\.new)?")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or not be read; names step and place."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keep:
    """What stays: the newest `newest` (None: all), the best by `metric`, milestones."""

    newest: int | None
    metric: str | None
    mode: str

    def __post_init__(self):
        if self.newest is not None and self.newest < 1:
            raise ConfigError(
                f"max_to_keep must be at least 1, or None for all; got {self.newest!r}."
            )
        if self.mode not in ("min", "max"):
            raise ConfigError(f"best_mode must be 'min' or 'max', got {self.mode!r}.")

    def best(self, steps: list["Step"]) -> "Step | None":
        """The step with the best finite metric; the newest of equals."""
        sign = 1 if self.mode == "min" else -1
        known = [
            (sign * step.metric(self.metric), -step.serial, step) for step in steps
        ]
        return min((k for k in known if math.isfinite(k[0])), default=(None,))[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One complete checkpoint: its number, its folder and its record."""

    number: int
    path: pathlib.Path
    record: dict

    @property
    def serial(self) -> int:
        """Order of saving: the newest checkpoint is the one saved last."""
        return self.record["serial"]

    def metric(self, name: str | None) -> float:
        """Value of metric `name`; NaN where it was not recorded."""
        return float(self.record["metrics"].get(name, math.nan))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken:
    """An entry that looks like a step and is not a complete checkpoint."""

    path: pathlib.Path
    why: str
    has_record: bool

    def __str__(self):
        return f"{self.path.name} ({self.why})"


def scan(root: pathlib.Path) -> tuple[list[Step], list[Broken]]:
    """Complete steps, newest (saved last) first, and what was passed over."""
    steps: dict[int, Step] = {}
    broken = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if not path.name[:1].isdigit() or path.name.endswith(".old"):
            continue
        found = inspect(path)
        if isinstance(found, Broken):
            broken.append(found)
        elif found.number not in steps or found.serial > steps[found.number].serial:
            steps[found.number] = found
    newest_first = sorted(steps.values(), key=lambda step: step.serial, reverse=True)
    return newest_first, broken


def inspect(path: pathlib.Path) -> Step | Broken:
    """The complete checkpoint at `path`, or why it is none.

    Raises:
      ConfigError: it was written by a newer roxxel.
    """
    match = _STEP_NAME.fullmatch(path.name)
    if match is None:
        return Broken(path=path, why="an unfinished save", has_record=False)
    if not path.is_dir():
        return Broken(path=path, why="a file, not a folder", has_record=False)
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        why = f"no readable {RECORD}: {type(err).__name__}"
        return Broken(path=path, why=why, has_record=False)
    if record["format"] > FORMAT:
        raise ConfigError(
            f"{path} has checkpoint format {record['format']}; this roxxel reads "
            f"up to {FORMAT}. Upgrade roxxel to use this directory."
        )
    if why := _wrong_size(path, record["files"]):
        return Broken(path=path, why=why, has_record=True)
    record["metrics"] |= _later_metrics(path, record["serial"])
    return Step(number=int(match[1]), path=path, record=record)


def add_metrics(step: Step, metrics: dict[str, Any]) -> bool:
    """Adds metrics to a complete checkpoint, as if they had been saved with it.

    They count for the best checkpoint from then on, in any process. False where it has
    been deleted, or another was saved under its number.
    """
    now = inspect(step.path) if step.path.is_dir() else None
    if not isinstance(now, Step) or now.serial != step.serial:
        return False
    part = step.path / f"{LATER}.tmp"
    try:
        with _locked(step.path):
            later = _later_metrics(step.path, step.serial) | plain_metrics(metrics)
            part.write_text(json.dumps({"serial": step.serial, "metrics": later}))
            os.replace(part, step.path / LATER)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Generator[None]:
    """One process at a time adds to what another added, where there are locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _later_metrics(path: pathlib.Path, serial: int) -> dict[str, Any]:
    try:
        found = json.loads((path / LATER).read_text(encoding="utf-8"))
        return found["metrics"] if found["serial"] == serial else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _wrong_size(path: pathlib.Path, sizes: dict[str, int]) -> str | None:
    for name, expected in sizes.items():
        try:
            actual = (path / name).stat().st_size
        except FileNotFoundError:
            return f"{name} is missing"
        if actual != expected:
            return f"{name} has {actual} bytes, expected {expected}"
    return None


def staging(root: pathlib.Path, number: int) -> pathlib.Path:
    """Where a save of step `number` is written before it is complete."""
    return root / f"{number}.new"


def commit(root: pathlib.Path, number: int, record: dict) -> None:
    """Completes the save in `staging(root, number)` and gives it its final name."""
    folder = staging(root, number)
    files = [path for path in folder.rglob("*") if path.is_file()]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    serial = 1 + max((step.serial for step in scan(root)[0]), default=0)
    record = {"format": FORMAT, "serial": serial, **record, "files": sizes}
    with open(folder / f"{RECORD}.tmp", "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / f"{RECORD}.tmp", folder / RECORD)
    _sync_folder(folder)
    _promote(root, number)


def _promote(root: pathlib.Path, number: int) -> None:
    """Renames `N.new` to `N`, whatever bears that name."""
    final = root / str(number)
    if final.is_dir():
        _remove(final, keep_until=lambda: os.replace(staging(root, number), final))
    else:
        if final.exists():  # somebody's file: moved aside, never deleted
            os.replace(final, root / f"{number}.not-a-checkpoint")
        os.replace(staging(root, number), final)
    _sync_folder(root)


def _remove(folder: pathlib.Path, keep_until=lambda: None) -> None:
    """Deletes a step so that no half-deleted one ever bears a step's name."""
    doomed = folder.with_name(f"{folder.name}.old")
    if doomed.exists():
        shutil.rmtree(doomed)
    os.replace(folder, doomed)
    keep_until()
    shutil.rmtree(doomed)


def prune(root: pathlib.Path, keep: Keep) -> None:
    """Deletes all complete steps but those to keep, and those that somebody holds."""
    held = holds.lowest(root)
    steps, _ = scan(root)
    best = keep.best(steps)
    for step in [] if keep.newest is None else steps[keep.newest :]:
        is_kept = step is best or step.record.get("milestone") or step.serial >= held
        if not is_kept:
            _remove(step.path)


def clean(root: pathlib.Path) -> None:
    """Finishes or removes what a killed process or a failed save left."""
    for path in list(root.iterdir()) if root.is_dir() else []:
        unfinished = re.fullmatch(r"\d+(\.new)?\.orbax-checkpoint-tmp.*", path.name)
        if unfinished or re.fullmatch(r"\d+(\.new)?\.old", path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif match := re.fullmatch(r"(\d+)\.new", path.name):
            if isinstance(inspect(path), Step):
                _promote(root, int(match[1]))
            else:
                shutil.rmtree(path)


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find(root: pathlib.Path, wanted: int | str, keep: Keep) -> Step:
    """The complete checkpoint of a step number, or of "best".

    Raises:
      CheckpointError: there is none; tells what there is.
      ConfigError: `wanted` is neither.
    """
    steps, broken = scan(root)
    by_number: dict[int | str, Step] = {step.number: step for step in steps}
    if wanted == "best":
        found = keep.best(steps)
    else:
        found = by_number.get(checked_step(wanted))
    if found is None:
        why = [f"; {b}" for b in broken if b.path.name.split(".")[0] == str(wanted)]
        there = ", ".join(map(str, sorted(step.number for step in steps))) or "none"
        raise CheckpointError(
            f"no complete checkpoint of step {wanted} in {root}{''.join(why)}; "
            f"complete: {there}."
        )
    return found
