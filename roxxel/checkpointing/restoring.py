"""From a step folder into the NNX objects of this process group."""

import dataclasses
import json
import pathlib
from typing import Any, Protocol

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from roxxel.checkpointing import comparison, files, renaming, state
from roxxel.errors import ConfigError

# What a damaged file raises, or what Orbax wraps in a bare Exception, as it does for
# arrays that lie on several devices. Not RuntimeError: out of memory must not look like
# damage.
_DAMAGE = (ValueError, OSError, KeyError, TypeError)
_MESSAGE_BYTES = 4096

MODEL = "model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class How:
    """What may differ between a checkpoint and the objects.

    Attributes:
      partial: arrays may be missing, extra or different.
      rules: names there to names here, see `renaming`.
      allowed: how arrays of the same name may differ and still be taken.
      part: the first part of the names there that stands for the model.
    """

    partial: bool = False
    rules: renaming.Rules | None = None
    allowed: comparison.Allowed = comparison.EXACT
    part: str = MODEL


EXACT = How()


class Source(Protocol):
    """What holds arrays by name.

    Attributes:
      title: "the checkpoint ...", for messages.
      arrays: descriptions `[dtype, shape]` by name.
    """

    title: str
    arrays: dict[str, list]

    def read(self, targets: dict[str, Any]) -> dict[str, Any]:
        """Values by name, each placed where its target lies, typed as the target."""
        ...


class StepSource:
    """The folder of a step as a source."""

    def __init__(self, step: files.Step):
        self._step = step
        self.title = f"the checkpoint of step {step.number} ({step.path})"
        self.arrays: dict[str, list] = step.record["arrays"]

    def read(self, targets: dict[str, Any]) -> dict[str, Any]:
        """See `Source`.

        Raises:
          CheckpointError: the files cannot be read.
        """
        return read(self._step, targets)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What would be restored: the comparison, and names there by names here."""

    found: comparison.Comparison
    origins: dict[str, str]


def newest_readable(
    root: pathlib.Path, objects: dict[str, Any], how: How, *, release: bool = False
) -> tuple[files.Step, comparison.Comparison] | None:
    """Restores the newest complete step that can be read; None if nothing is there.

    Args: as of `into_objects`.

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
            matched = into_objects(StepSource(step), objects, how, release=release)
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
    source: Source, objects: dict[str, Any], how: How, *, release: bool = False
) -> comparison.Comparison:
    """Restores from a source; on any error the objects are as they were.

    Args:
      source: what is restored.
      objects: NNX objects by name.
      how: in what they may differ.
      release: give up the arrays that are replaced before any is read, so that memory
        holds the state once; those that may be missing (`how.allowed.optional`) stay,
        since an older step may lack them. Then the objects are as they were only after
        an error of the comparison.

    Raises:
      CheckpointError: the files cannot be read.
      ConfigError: arrays differ in what `how` does not allow, or none can be taken.
    """
    targets = state.named_leaves(objects)
    plan = compare(source, objects, how)
    wanted = {plan.origins[name]: name for name in plan.found.taken}
    reading = {
        old: _as_stored(targets[name], source.arrays[old])
        for old, name in wanted.items()
    }
    if release:
        for old, target in reading.items():
            needed = wanted[old].startswith(tuple(how.allowed.optional))
            if target is targets[wanted[old]] and not needed:
                reading[old] = state.released(target)
    values = source.read(reading)
    fitted = {name: _fitted(values[old], targets[name]) for old, name in wanted.items()}
    state.assign(objects, fitted)
    return plan.found


def compare(source: Source, objects: dict[str, Any], how: How) -> Plan:
    """What `into_objects` would do; reads no arrays, and the objects may be abstract.

    Raises:
      ConfigError: as `into_objects`.
    """
    leaves = state.named_leaves(objects)
    wanted = {name: state.describe(name, leaf) for name, leaf in leaves.items()}
    names = _of_part(source, how.part, objects)
    origins = renaming.origins(names, how.rules)
    origins = {name: names[old] for name, old in origins.items()}
    stored = {name: source.arrays[old] for name, old in origins.items()}
    used = set(origins.values())
    left_out = [old for old in names.values() if old not in used]
    found = comparison.compare(wanted, stored, how.allowed, left_out)
    if not found.taken or not (how.partial or found.complete):
        partly = (
            " Checkpointer.restore(partial=True) takes the arrays that match; so does"
            " a new run with init_from."
        )
        hint = "" if how.partial else partly
        raise ConfigError(f"{source.title} does not fit: {found}.{hint}")
    return Plan(found, origins)


def _of_part(source: Source, part: str, objects: dict[str, Any]) -> dict[str, str]:
    """Names there by what they are called before rules: those of the objects."""
    if part == MODEL:
        return {n: n for n in source.arrays if n.split("/")[0] in objects}
    prefix = part.strip("/").replace(".", "/") + "/"
    names = {
        f"{MODEL}/{name.removeprefix(prefix)}": name
        for name in source.arrays
        if name.startswith(prefix)
    }
    if not names:
        parts = dict.fromkeys(name.split("/")[0] for name in source.arrays)
        raise ConfigError(
            f"init_part={part!r}: {source.title} has no such part; it has "
            f"{', '.join(parts)}."
        )
    return names


def _as_stored(target: Any, description: list) -> Any:
    """The target itself, or one of the stored shape and type in its place."""
    if state.describe("", target) == description:
        return target
    dtype, shape = description
    sharding = state.sharding_of(target) if list(np.shape(target)) == shape else None
    return jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype), sharding=sharding)


def _fitted(value: Any, target: Any) -> Any:
    """`value` in the target's type; of another number of rows, those in common."""
    if state.describe("", value) == state.describe("", target):
        return value
    if value.shape == target.shape:
        return value.astype(target.dtype)
    rows = min(value.shape[0], target.shape[0])
    taken = np.asarray(value)[:rows].astype(target.dtype)
    sharding = state.sharding_of(target)
    put = jax.jit(lambda whole, part: whole.at[:rows].set(part), out_shardings=sharding)
    return put(target, taken)


def read(step: files.Step, targets: dict[str, Any]) -> dict[str, Any]:
    """Values for `targets` (leaves by name), see `state.read`; all must call it.

    Raises:
      CheckpointError: a process cannot read them.
    """
    damage, values = None, {}
    try:
        values = state.read(step.path / files.STATE, targets)
        jax.block_until_ready([v for v in values.values() if isinstance(v, jax.Array)])
    except Exception as err:
        damage = _damage(err)
        if damage is None:
            raise
    if not _on_all_processes(damage is None):
        raise files.CheckpointError(
            f"step {step.number} ({step.path}) cannot be read: "
            f"{damage or 'damage seen by another process'}"
        ) from damage
    return values


def _damage(err: Exception) -> BaseException | None:
    cause = err.__cause__ if type(err) is Exception else err
    return cause if isinstance(cause, _DAMAGE) else None


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
