"""A run that begins with the parameters of another: fine-tuning."""

import pathlib
from typing import TYPE_CHECKING, Any

from flax import nnx

from roxxel.checkpoint import Checkpointer
from roxxel.checkpointing import renaming
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer

_MOST_NAMES = 8  # in a line of the log; all are in run.json


def check_options(spec: "Trainer") -> None:
    """Raises a ConfigError where the options cannot be meant so; reads no files."""
    if spec.init_from is None:
        for name in ("init_step", "init_rules"):
            if getattr(spec, name) is not None:
                raise ConfigError(f"trainer: {name} needs init_from.")
        return
    renaming.check_rules(spec.init_rules)


def check_source(spec: "Trainer", workdir: pathlib.Path) -> None:
    """Raises unless there is a checkpoint to begin with; creates nothing.

    A run that has checkpoints of its own goes on from them and needs no other.

    Raises:
      ConfigError: `init_from` holds no checkpoint, or not that of `init_step`.
    """
    if spec.init_from is None or _has_steps(workdir / "checkpoints"):
        return
    path = source_path(spec.init_from)
    with Checkpointer(path, read_only=True) as source:
        steps = source.all_steps()
        best = source.best_step()
    wanted = spec.init_step
    if not steps:
        raise ConfigError(
            f"trainer: init_from={str(spec.init_from)!r} holds no checkpoint; expected "
            "the work directory of a run, or its checkpoints."
        )
    if (wanted == "best" and best is None) or (
        wanted not in (None, "best") and wanted not in steps
    ):
        raise ConfigError(
            f"trainer: init_step={wanted!r} is not in {path}; there are "
            f"{', '.join(map(str, steps))}."
        )


def source_path(given: Any) -> pathlib.Path:
    """The folder of the checkpoints of a work directory, or the folder given."""
    path = pathlib.Path(given).expanduser()
    inner = path / "checkpoints"
    return inner if inner.is_dir() else path


def _has_steps(path: pathlib.Path) -> bool:
    with Checkpointer(path, read_only=True) as own:
        return own.latest_step() is not None


def restore(spec: "Trainer", model: nnx.Module) -> tuple[list[str], dict[str, Any]]:
    """Puts the parameters of the other run into `model`: log lines, and the record.

    Arrays of same name (after `init_rules`), shape and dtype are taken; the others of
    the model stay as they were made.

    Raises:
      ConfigError: none matches, or a rule names nothing.
    """
    path = source_path(spec.init_from)
    with Checkpointer(path, model, read_only=True) as source:
        step = source.restore(
            spec.init_step, partial=True, model_only=True, rules=spec.init_rules
        )
        found = source.restored
    assert found is not None
    record = {
        "path": str(path.resolve()),
        "step": step,
        "restored": found.matching,
        "not_in_checkpoint": found.missing,
        "not_used": found.extra,
        "different": found.different,
    }
    line = f"Initialised {len(found.matching)} arrays from step {step} of {path}"
    titles = {
        "fresh, not in the checkpoint": found.missing,
        "fresh, of another shape or dtype": found.different,
        "in the checkpoint and not used": found.extra,
    }
    return [line, *_listed(titles)], record


def _listed(titles: dict[str, list[str]]) -> list[str]:
    return [
        f"  {title} ({len(names)}): {', '.join(names[:_MOST_NAMES])}"
        + (", ..." if len(names) > _MOST_NAMES else "")
        for title, names in titles.items()
        if names
    ]
