"""How a run begins: anew, from another run's parameters, or where it stopped.

A checkpoint's position holds the stream's own position and, under `plan`, the plan and
the learning rate at that step, against which a later start of the run is compared.
"""

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
from flax import nnx

from roxxel.checkpoint import Checkpointer, CheckpointError
from roxxel.errors import ConfigError
from roxxel.train import initial
from roxxel.train.optimizer import OPTIONAL, RunOptimizer
from roxxel.train.plan import Plan

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer

# What makes the batch of a step, of `RoxxelStream.position`; causes before effects.
SAME_ON_RESUME = (
    "seed",
    "batch_size",
    "seq_len",
    "overlap",
    "fingerprint",
    "epoch",
    "rows_in_epoch",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """Completed steps, what the log says about them, and what `run.json` keeps.

    `position` is that of the checkpoint; None at the beginning.
    """

    step: int
    lines: list[str]
    record: dict[str, Any]
    position: dict[str, Any] | None = None


def begin(
    spec: "Trainer",
    plan: Plan,
    stream: Any,
    model: nnx.Module,
    optimizer: RunOptimizer,
    checkpointer: Checkpointer,
    workdir: pathlib.Path,
) -> Start:
    """Restores what the work directory holds, or makes a beginning.

    Raises:
      ConfigError: what is there does not go with the trainer, or cannot be read.
    """
    try:
        return _begin(spec, plan, stream, model, optimizer, checkpointer, workdir)
    except CheckpointError as err:
        raise ConfigError(str(err)) from err


def _begin(spec, plan, stream, model, optimizer, checkpointer, workdir) -> Start:
    if checkpointer.latest_step() is None:
        if spec.init_from is None:
            return Start(step=0, lines=[], record={})
        with optimizer.whole_weights(model):
            lines, record = initial.restore(spec, model)
        return Start(step=0, lines=lines, record={"init": record})
    newest = checkpointer.restore(optional=OPTIONAL, release=True)
    step, lines = _where_to_go_on(spec, plan, checkpointer, workdir, newest)
    if step != newest:
        checkpointer.restore(step, optional=OPTIONAL, release=True)
    saved = checkpointer.read_position(step)
    if saved is not None:
        seek(saved, stream, step, workdir)
    if step:
        lines.append(f"Resuming after step {step} of {plan.total_steps}")
    return Start(step=step, lines=lines, record={}, position=saved)


def position(spec: "Trainer", plan: Plan, stream: Any, step: int) -> dict[str, Any]:
    """What a checkpoint of `step` records; all processes call it together."""
    return stream.position(step) | {
        "plan": {
            "total_steps": plan.total_steps,
            "warmup_steps": plan.warmup_steps,
            "decay_start": plan.decay_start,
            "learning_rate": _rate(spec, step),
        }
    }


def _rate(spec: "Trainer", step: int) -> float | None:
    """The learning rate of the update that completed `step`."""
    if spec.schedule is None or step < 1:
        return None
    return float(np.asarray(spec.schedule(step - 1)))


# -- plans that changed ----------------------------------------------------------------


def _where_to_go_on(
    spec: "Trainer",
    plan: Plan,
    checkpointer: Checkpointer,
    workdir: pathlib.Path,
    newest: int,
) -> tuple[int, list[str]]:
    """The step to continue from, and what to say about it."""
    if plan.total_steps < newest:
        raise ConfigError(
            f"{workdir} holds a run with {newest} completed steps, total_steps is now "
            f"{plan.total_steps}; give at least {newest}, or another --workdir."
        )
    before = _plan_at(checkpointer, newest)
    total = before.get("total_steps", plan.total_steps)
    old_start = before.get("decay_start")
    changed = total != plan.total_steps
    if not changed or old_start is None or plan.decay_start is None:
        notes = [f"The run was planned for {total} steps"] if changed else []
        return newest, notes + _rate_notes(spec, before, newest)
    step = newest if newest <= old_start else _last_before(checkpointer, old_start)
    if notes := _rate_notes(spec, _plan_at(checkpointer, step), step):
        raise ConfigError(
            f"{workdir} was planned for {total} steps and can go on from step {step} "
            f"with {plan.total_steps}, but not with other learning rates before it: "
            f"{notes[0]}. Set peak, warm-up and decay so that they stay."
        )
    return step, _lengthened(plan, before, step, newest)


def _plan_at(checkpointer: Checkpointer, step: int) -> dict[str, Any]:
    return (checkpointer.read_position(step) or {}).get("plan") or {}


def _last_before(checkpointer: Checkpointer, decay_start: int) -> int:
    steps = [step for step in checkpointer.all_steps() if step <= decay_start]
    if not steps:
        raise ConfigError(
            f"{checkpointer.path} has no checkpoint at or before step {decay_start}, "
            "where the learning rate began to decay; the run cannot be lengthened. "
            "Set total_steps back, or choose another --workdir."
        )
    return max(steps)


def _lengthened(plan: Plan, before: dict, step: int, newest: int) -> list[str]:
    lines = [
        f"The run was planned for {before['total_steps']} steps with a decay from "
        f"step {before['decay_start']}; it is now planned for {plan.total_steps} "
        f"with a decay from step {plan.decay_start}"
    ]
    if step != newest:
        lines.append(
            f"Continuing from step {step}, before the decay: steps {step + 1} to "
            f"{newest} are trained again and their metric rows dropped"
        )
    if before["warmup_steps"] != plan.warmup_steps:
        lines.append(
            f"The warm-up was {before['warmup_steps']} steps and stays so (a new run "
            f"would have {plan.warmup_steps})"
        )
    return lines


def _rate_notes(spec: "Trainer", before: dict, step: int) -> list[str]:
    """One line when the schedule's rate at `step` is not what it was; else none."""
    then, now = before.get("learning_rate"), _rate(spec, step)
    if then is None or now is None or math.isclose(then, now, rel_tol=1e-5):
        return []
    return [f"learning rate at step {step} was {then:.6g} and is now {now:.6g}"]


# -- the data --------------------------------------------------------------------------


def seek(saved: dict, stream: Any, step: int, workdir: pathlib.Path) -> None:
    """Brings the stream to a saved position, or refuses it.

    Settings are compared by name first, for all that changed to be named at once.
    """
    changed = [
        f"{key} was {saved[key]!r} and is now {now!r}"
        for key, now in stream.position(step).items()
        if key in SAME_ON_RESUME and key in saved and saved[key] != now
    ]
    try:
        if not changed and stream.step_of(saved) != step:
            changed = [f"step {step} begins elsewhere in the data"]
        if not changed and hasattr(stream, "restore"):
            stream.restore(saved)
    except ConfigError as err:
        changed = [str(err).rstrip(".")]
    if changed:
        raise ConfigError(
            f"{workdir} holds a run whose batches were others: {'; '.join(changed)}. "
            "Set it back, or choose another --workdir."
        )
