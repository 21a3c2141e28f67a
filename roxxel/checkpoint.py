"""Checkpoints of NNX model, optimizer and run position, written in the background.

    with Checkpointer("./checkpoints", model, optimizer) as checkpointer:
        start_step = checkpointer.restore()  # 0 when there is nothing yet
        ...
        checkpointer.save(step, {"loss": loss})  # back as soon as values are copied

`step` counts completed steps. The folder of a step is readable by plain Orbax (item
`state`); `roxxel.json` in it records metrics, position, and the arrays to expect.
"""

import os
import pathlib
import threading
from collections.abc import Sequence
from typing import Any, Literal

from absl import logging

from roxxel.checkpointing import comparison, files, place, record, renaming
from roxxel.checkpointing.files import CheckpointError as CheckpointError
from roxxel.errors import ConfigError

try:
    import jax
    import numpy as np

    from roxxel.checkpointing import restoring, state, writing
except ImportError as err:
    raise ImportError(
        "roxxel.checkpoint needs orbax-checkpoint: pip install 'roxxel[checkpoint]'."
    ) from err


class Checkpointer:
    """Saves and restores the state of an NNX model and optimizer.

    Kept are the newest `max_to_keep` checkpoints, the best by `best_metric` and those
    saved as a milestone. Newest means saved last; best the lowest (`best_mode="min"`)
    or highest (`"max"`) finite value: a save without the metric, or with NaN, is never
    best. Older ones go only after a newer one is complete. Saving a step that exists
    replaces it.

    Closing, leaving the with-block and the end of the interpreter wait for the write in
    progress. A write that failed is raised by the next call that waits (`save`,
    `restore`, `wait`, `close` and the like); where none comes, the process ends with
    exit code 1. A signal with Python's default handling (SIGTERM) ends the process at
    once: it loses the write in progress, not the checkpoints before it.

    One process, or one group of processes under `jax.distributed`, writes to a
    directory at a time; every process of a group makes the same calls.
    """

    def __init__(
        self,
        checkpoint_path: str | os.PathLike,
        model: Any = None,
        optimizer: Any = None,
        *,
        max_to_keep: int | None = 3,
        best_metric: str | None = "loss",
        best_mode: Literal["min", "max"] = "min",
        trust_labels: bool = False,
        read_only: bool = False,
    ):
        """Checks the place and the options; creates nothing, touches no device.

        Args:
          checkpoint_path: directory, created by the first save; relative paths and `~`
            are resolved here, for good.
          model: NNX module to save and restore, concrete or abstract
            (`nnx.eval_shape`). None for reading positions and step numbers only.
          optimizer: `nnx.Optimizer`, or None to save and restore the model alone.
          max_to_keep: how many of the newest to keep; None keeps all.
          best_metric: key of `metrics_dict` to rank by; None ranks nothing.
          best_mode: "min" or "max".
          trust_labels: store every step under the label given to `save`, whatever the
            optimizer's update count says.
          read_only: accept a directory that cannot be written; `save` is refused.

        Raises:
          ConfigError: an option is wrong, a file is in the way, or no permission.
        """
        self._keep = files.Keep(newest=max_to_keep, metric=best_metric, mode=best_mode)
        self._root = place.resolve(checkpoint_path, writable=not read_only)
        given = {"model": model, "optimizer": optimizer}
        self._objects = {name: item for name, item in given.items() if item is not None}
        self._trust_labels = trust_labels
        self._read_only = read_only
        self._writer = writing.Writer(self._root, self._keep)
        self._lock = threading.RLock()
        self._last: tuple[int, int | None] | None = None
        self._told = False
        self._closed = False
        self._restored: comparison.Comparison | None = None

    @property
    def path(self) -> pathlib.Path:
        """The directory of the checkpoints, absolute."""
        return self._root

    @property
    def restored(self) -> comparison.Comparison | None:
        """What the last `restore` matched, missed and left; None when it found none."""
        return self._restored

    def save(
        self,
        step: int,
        metrics_dict: dict | None = None,
        *,
        position: dict | None = None,
        milestone: bool = False,
    ) -> int:
        """Saves the state after `step` completed steps; returns the step stored.

        Returns once the values are copied, so that the arrays may be donated to the
        next training step; the files are written in the background. A write still in
        progress is waited for first.

        The step stored is `step`, except where the optimizer's update count shows that
        the label is something else: `updates == step + 1` is the index of the step just
        done, and a label below the step stored last, with more updates than it, comes
        from a loop that counts from 0 in every epoch. Both are stored under the number
        of updates, and the log says so once.

        Args:
          step: number of completed steps.
          metrics_dict: scalars by name: Python, numpy or jax, finished or not.
          position: JSON values that `read_position` gives back, such as
            `stream.position(step)`.
          milestone: keep this checkpoint whatever comes after it.

        Raises:
          ConfigError: step, a metric or the position is unfit; nothing is written.
          CheckpointError: the write before this one failed; names its step.
        """
        with self._lock:
            self._check_writable()
            step = record.checked_step(step)
            entry = {
                "label": step,
                "metrics": record.plain_metrics(metrics_dict),
                "position": record.checked_position(position),
                "milestone": milestone,
            }
            leaves = state.named_leaves(self._objects)
            entry["arrays"] = {n: state.describe(n, leaf) for n, leaf in leaves.items()}
            self.wait()
            updates = self._updates()
            number = self._number(step, updates)
            entry |= {"step": number, "updates": updates}
            self._writer.start(number, entry, state.snapshot(leaves))
            self._last = (number, updates)
            return number

    def _check_writable(self) -> None:
        if self._closed:
            raise CheckpointError(f"the Checkpointer of {self._root} is closed.")
        if self._read_only:
            raise ConfigError(f"the Checkpointer of {self._root} is read_only.")
        self._check_objects(self._objects)

    def _check_objects(self, objects: dict[str, Any]) -> None:
        if not objects:
            raise ConfigError(
                f"the Checkpointer of {self._root} has no model: "
                "Checkpointer(path, model, optimizer)."
            )

    def _updates(self) -> int | None:
        """The optimizer's own count of updates; None where there is none."""
        count = getattr(self._objects.get("optimizer"), "step", None)
        count = getattr(count, "get_value", lambda: count)()
        if count is None or isinstance(count, jax.ShapeDtypeStruct):
            return None
        return int(np.asarray(count))

    def _number(self, step: int, updates: int | None) -> int:
        if self._trust_labels:
            return step
        number, why = record.completed_steps(step, updates, self._last)
        if why and not self._told and jax.process_index() == 0:
            self._told = True
            logging.warning("%s is stored as %s completed steps.", why, number)
        return number

    def restore(
        self,
        step: int | Literal["best"] | None = None,
        *,
        partial: bool = False,
        model_only: bool = False,
        rules: renaming.Rules | None = None,
        cast: comparison.Cast = "none",
        resize: Sequence[str] = (),
        part: str = "model",
        optional: Sequence[str] = (),
        release: bool = False,
    ) -> int:
        """Restores model and optimizer; returns the number of completed steps.

        Every array comes to lie where the model's own lies now, whatever mesh wrote it.
        Without an optimizer, the optimizer's part of a checkpoint is left alone.
        Entries that are no complete checkpoint are passed over with a warning.

        Args:
          step: None for the newest, "best", or a number.
          partial: restore the arrays of same path, shape and dtype; the others keep
            their values, and `restored` and the log list them.
          model_only: leave the optimizer as it is.
          rules: names of arrays in the checkpoint to names in the model, or to None to
            leave them out: `{"old.*": "new.*"}`, see `roxxel.checkpointing.renaming`.
          cast: take floating-point arrays of other types too: "widen" where the
            model's type holds every value, "any" with rounding.
          resize: names in the model (`*` is any text) of arrays that may have another
            number of rows: those in common are taken, the model keeps its others.
          part: what of the checkpoint is restored into the model: "model", or the
            beginning of the names of another copy of the parameters; needs
            `model_only` where there is an optimizer.
          optional: beginnings of names (`optimizer/ema/`) of arrays that may be
            missing, extra or different; the objects' own keep their values then.
          release: give up the arrays that are replaced before their values are read: a
            state of more than half of a device's memory has no room twice. They are
            deleted for whoever else holds them, too; those that are `optional` stay.
            Should the files turn out unreadable, model and optimizer hold nothing.

        Returns:
          Completed steps of the restored checkpoint; 0, with nothing restored, when
          `step` is None and the directory holds no checkpoint.

        Raises:
          ConfigError: arrays are missing, extra or different (all are listed), or none
            matches; model and optimizer are as they were.
          CheckpointError: the step is not there or cannot be read; model and optimizer
            are as they were, unless they were to be released.
        """
        with self._lock:
            self.wait()
            objects = {
                name: item
                for name, item in self._objects.items()
                if name == "model" or not model_only
            }
            self._check_objects(objects)
            how = restoring.How(
                partial=partial,
                rules=rules,
                allowed=comparison.Allowed(cast=cast, resize=resize, optional=optional),
                part=part,
            )
            found, self._restored = self._restore(step, objects, how, release)
            if found is None:
                return 0
            self._last = (found.number, self._updates())
            self._report(found)
            return found.number

    def _restore(self, step, objects, how, release):
        if step is None:
            result = restoring.newest_readable(
                self._root, objects, how, release=release
            )
            return result or (None, None)
        found = files.find(self._root, step, self._keep)
        source = restoring.StepSource(found)
        return found, restoring.into_objects(source, objects, how, release=release)

    def compare(
        self,
        model: Any,
        step: int | Literal["best"] | None = None,
        how: restoring.How = restoring.EXACT,
    ) -> comparison.Comparison:
        """What `restore` would take for `model`, which may be abstract; reads no array.

        Raises:
          ConfigError: as `restore`.
          CheckpointError: the step is not there.
        """
        step = self.latest_step() if step is None else step
        found = files.find(self._root, 0 if step is None else step, self._keep)
        source = restoring.StepSource(found)
        return restoring.compare(source, {"model": model}, how).found

    def _report(self, step: files.Step) -> None:
        if jax.process_index() != 0 or self._restored is None:
            return
        count, folder = len(self._restored.taken), step.path
        logging.info("restored %d arrays of step %d: %s", count, step.number, folder)
        if not self._restored.complete:
            text = "partial restore of step %d, %d arrays; %s"
            logging.warning(text, step.number, count, self._restored)

    def all_steps(self) -> list[int]:
        """Complete steps in ascending order."""
        return sorted(step.number for step in self._steps())

    def latest_step(self) -> int | None:
        """The newest complete step, the one saved last; None when there is none."""
        return next((step.number for step in self._steps()), None)

    def best_step(self) -> int | None:
        """The complete step with the best finite `best_metric`; None without one."""
        best = self._keep.best(self._steps())
        return None if best is None else best.number

    def read_position(self, step: int | Literal["best"] | None = None) -> dict | None:
        """What `save(position=)` recorded with a step (default: the newest).

        Needs no model and reads no arrays; None when nothing is there or recorded.

        Raises:
          CheckpointError: there is no complete checkpoint of the step asked for.
        """
        steps = self._steps()
        if step is not None:
            steps = [files.find(self._root, step, self._keep)]
        return steps[0].record["position"] if steps else None

    def _steps(self) -> list[files.Step]:
        with self._lock:
            self.wait()
            return files.scan(self._root)[0]

    def wait(self) -> None:
        """Waits for the write in progress.

        Raises:
          CheckpointError: it failed; names its step. Raised once.
        """
        with self._lock:
            self._writer.wait()

    def close(self) -> None:
        """Waits for the write in progress; then `save` is refused.

        Raises:
          CheckpointError: the last write failed; names its step.
        """
        with self._lock:
            self._closed = True
            self._writer.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is None:
            self.close()
        else:
            writing.report_instead_of_raising(self.close)
