"""From a step folder into the NNX objects of this process group."""

import json
import pathlib
from typing import Any, TypedDict

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from roxxel.checkpointing import comparison, files, renaming, state
from roxxel.errors import ConfigError

# What a damaged file raises. Not RuntimeError: out of memory must not look like damage.
_DAMAGE = (ValueError, OSError, KeyError, TypeError)
_MESSAGE_BYTES = 4096


class How(TypedDict):
    """What may differ between a checkpoint and the objects."""

    partial: bool
    rules: renaming.Rules | None


def newest_readable(
    root: pathlib.Path,
    objects: dict[str, Any],
    *,
    partial: bool,
    rules: renaming.Rules | None,
) -> tuple[files.Step, comparison.Comparison] | None:
    """Restores the newest complete step that can be read; None if nothing is there.

    Raises:
      CheckpointError: there are checkpoints, and none can be read.
      ConfigError: the newest does not fit the objects.
    """
    steps, broken = files.scan(root)
    skipped = [str(entry) for entry in broken]
    for name in _from_lead([step.path.name for step in steps]):
        step = files.inspect(root / name)
        assert isinstance(step, files.Step)
        try:
            matched = into_objects(step, objects, partial=partial, rules=rules)
        except files.CheckpointError as err:
            skipped.append(str(err))
            continue
        _warn_of(root, skipped)
        return step, matched
    if steps or any(entry.has_record for entry in broken):
        raise files.CheckpointError(
            f"no checkpoint in {root} can be read: {'; '.join(skipped)}. "
            "Use another directory to start again."
        )
    _warn_of(root, skipped)
    return None


def _warn_of(root: pathlib.Path, skipped: list[str]) -> None:
    if skipped and jax.process_index() == 0:
        logging.warning("skipped in %s: %s", root, "; ".join(skipped))


def into_objects(
    step: files.Step,
    objects: dict[str, Any],
    *,
    partial: bool,
    rules: renaming.Rules | None,
) -> comparison.Comparison:
    """Restores one step; on any error the objects are as they were.

    Raises:
      CheckpointError: the files cannot be read.
      ConfigError: the arrays differ from those of the objects and `partial` is false,
        or none is the same.
    """
    targets = state.named_leaves(objects)
    wanted = {name: state.describe(name, leaf) for name, leaf in targets.items()}
    recorded = step.record["arrays"]
    names = [name for name in recorded if name.split("/")[0] in objects]
    origins = renaming.origins(names, rules)
    stored = {name: recorded[old] for name, old in origins.items()}
    found = comparison.compare(wanted, stored)
    if not found.matching or not (partial or found.complete):
        partly = (
            " Checkpointer.restore(partial=True) takes the arrays that match; so does"
            " a new run with init_from."
        )
        hint = "" if partial else partly
        raise ConfigError(
            f"the checkpoint of step {step.number} ({step.path}) does not fit: "
            f"{found}.{hint}"
        )
    wanted_by_old = {origins[name]: targets[name] for name in found.matching}
    values = _read(step, wanted_by_old)
    state.assign(objects, {name: values[origins[name]] for name in found.matching})
    return found


def _read(step: files.Step, targets: dict[str, Any]) -> dict[str, Any]:
    damage, values = None, {}
    try:
        values = state.read(step.path / files.STATE, targets)
        jax.block_until_ready([v for v in values.values() if isinstance(v, jax.Array)])
    except _DAMAGE as err:
        damage = err
    if not _on_all_processes(damage is None):
        raise files.CheckpointError(
            f"step {step.number} ({step.path}) cannot be read: "
            f"{damage or 'damage seen by another process'}"
        ) from damage
    return values


def _on_all_processes(okay: bool) -> bool:
    if jax.process_count() == 1:
        return okay
    return bool(multihost_utils.process_allgather(np.array(okay)).all())


def _from_lead(names: list[str]) -> list[str]:
    """The lead's list on every process: all must try the same folders in turn."""
    if jax.process_count() == 1:
        return names
    text = json.dumps(names[:100]).encode().ljust(_MESSAGE_BYTES)
    message = np.frombuffer(text[:_MESSAGE_BYTES], np.uint8)
    return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(message))))
