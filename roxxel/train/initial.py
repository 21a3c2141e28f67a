"""A run that begins with the parameters of another: fine-tuning.

The other is a run, told by its checkpoints, or a Hugging Face folder. Either gives
arrays by name, and the same rules say which array of the model gets which.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flax import nnx

from roxxel.checkpoint import Checkpointer
from roxxel.checkpointing import comparison, renaming, restoring
from roxxel.errors import ConfigError
from roxxel.exchange import folder_source, hf_config

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer

_MOST_NAMES = 8  # in a line of the log; all are in run.json
# What only init_from gives a meaning, with the values that mean nothing.
_OPTIONS = {
    "init_step": None,
    "init_part": restoring.MODEL,
    "init_rules": None,
    "init_resize": (),
    "init_cast": False,
    "init_settings": (),
}
_PARTS = {None: restoring.MODEL, "ema": "optimizer/ema"}
OPTIONS = ("init_from", *_OPTIONS)


def check_options(spec: "Trainer") -> None:
    """Raises a ConfigError where the options cannot be meant so; reads no files."""
    if spec.init_from is None:
        for name, default in _OPTIONS.items():
            if getattr(spec, name) not in (None, default, []):
                raise ConfigError(f"trainer: {name} needs init_from.")
        return
    renaming.check_rules(spec.init_rules)
    for name in ("init_resize", "init_settings"):
        _check_names(name, getattr(spec, name) or ())
    part = spec.init_part or restoring.MODEL
    if not isinstance(part, str):
        raise ConfigError(
            f"trainer: init_part must be 'model' or the beginning of names in the "
            f"checkpoint, got {spec.init_part!r}."
        )


def _check_names(field: str, value: Any) -> None:
    texts = isinstance(value, Sequence) and not isinstance(value, str)
    if not texts or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"trainer: {field} must be a list of names, got {value!r}.")


def check_source(
    spec: "Trainer", workdir: pathlib.Path, model: nnx.Module | None = None
) -> None:
    """Raises unless there is something to begin with that fits; creates nothing.

    A run that has checkpoints of its own goes on from them and needs no other.

    Args:
      spec: the trainer, or what has its `init_*` fields.
      workdir: of the run that begins.
      model: its model, with or without values; None: it is not compared.

    Raises:
      ConfigError: `init_from` holds no checkpoint, or not that of `init_step`, or
        nothing in it is for the model.
    """
    if spec.init_from is None or _has_steps(workdir / "checkpoints"):
        return
    if hf_config.is_folder(spec.init_from):
        _check_folder(spec, model)
        return
    path = source_path(spec.init_from)
    with Checkpointer(path, read_only=True) as source:
        steps = source.all_steps()
        best = source.best_step()
        wanted = spec.init_step
        if not steps:
            raise ConfigError(
                f"trainer: init_from={str(spec.init_from)!r} holds no checkpoint; "
                "expected the work directory of a run, its checkpoints, or a folder "
                "of Hugging Face with config.json and safetensors."
            )
        if (wanted == "best" and best is None) or (
            wanted not in (None, "best") and wanted not in steps
        ):
            raise ConfigError(
                f"trainer: init_step={wanted!r} is not in {path}; there are "
                f"{', '.join(map(str, steps))}."
            )
        if model is not None:
            source.compare(model, wanted, _how(spec))


def _check_folder(spec: "Trainer", model: nnx.Module | None) -> None:
    found = hf_config.read(spec.init_from)
    if spec.init_step is not None or spec.init_part not in (None, restoring.MODEL):
        raise ConfigError(
            f"trainer: init_step and init_part belong to the checkpoints of a run; "
            f"{found.folder} is a Hugging Face folder, which holds one model."
        )
    if model is None:
        return
    source = folder_source.FolderSource(found, model)
    plan = restoring.compare(source, {"model": model}, _how(spec))
    differing = found.differences(model)
    refused = [text for name, text in differing.items() if name not in _settings(spec)]
    if refused:
        arrays = plan.found.different
        more = f"; arrays that differ: {', '.join(arrays)}" if arrays else ""
        raise ConfigError(
            f"trainer: {source.title} was trained with other settings than the model "
            f"here: {', '.join(refused)}{more}. Set the model's, take the folder's "
            "own model with roxxel.exchange.model_of, or name in init_settings what "
            "may differ."
        )


def source_path(given: Any) -> pathlib.Path:
    """The folder of the checkpoints of a work directory, or the folder given."""
    path = pathlib.Path(os.path.expanduser(given))
    inner = path / "checkpoints"
    return inner if inner.is_dir() else path


def _has_steps(path: pathlib.Path) -> bool:
    with Checkpointer(path, read_only=True) as own:
        return own.latest_step() is not None


def restore(spec: "Trainer", model: nnx.Module) -> tuple[list[str], dict[str, Any]]:
    """Puts the parameters of the other into `model`: log lines, and the record.

    Taken are arrays of same name (after `init_rules`) and shape, and of a type that the
    model's type can hold; `init_resize` and `init_cast` allow more. The others of the
    model stay as they were made.

    Raises:
      ConfigError: none can be taken, a rule names nothing, or settings differ.
    """
    if hf_config.is_folder(spec.init_from):
        return _restore_folder(spec, model)
    path = source_path(spec.init_from)
    with Checkpointer(path, model, read_only=True) as source:
        how = _how(spec)
        step = source.restore(
            spec.init_step,
            partial=how.partial,
            model_only=True,
            rules=how.rules,
            cast=how.allowed.cast,
            resize=how.allowed.resize,
            part=how.part,
            release=True,
        )
        found = source.restored
    assert found is not None
    title = f"step {step} of {path}"
    return _report(found, title), _record(found, path) | {"step": step}


def _restore_folder(
    spec: "Trainer", model: nnx.Module
) -> tuple[list[str], dict[str, Any]]:
    _check_folder(spec, model)
    described = hf_config.read(spec.init_from)
    source = folder_source.FolderSource(described, model)
    found = restoring.into_objects(source, {"model": model}, _how(spec), release=True)
    kind = described.architecture.ARCHITECTURE
    lines = _report(found, f"{described.folder} ({kind})")
    settings = list(described.differences(model).values())
    more = {"settings that differ": settings, "tensors not used": source.unused}
    record = _record(found, described.folder) | {
        "architecture": kind,
        "settings": settings,
        "tensors_not_used": source.unused,
    }
    return [*lines, *_listed(more)], record


def _how(spec: "Trainer") -> restoring.How:
    return restoring.How(
        partial=True,
        rules=spec.init_rules,
        allowed=comparison.Allowed(
            cast="any" if spec.init_cast else "widen",
            resize=tuple(spec.init_resize or ()),
        ),
        part=_PARTS.get(spec.init_part, spec.init_part),
    )


def _settings(spec: "Trainer") -> Sequence[str]:
    return spec.init_settings or ()


# -- the report ------------------------------------------------------------------------


def _record(found: comparison.Comparison, path: pathlib.Path) -> dict[str, Any]:
    return {
        "path": str(path.resolve()),
        "restored": found.taken,
        "cast": found.cast,
        "resized": found.resized,
        "not_in_checkpoint": found.missing,
        "different": found.different,
        "not_used": found.extra,
        "left_out": found.left_out,
    }


def _report(found: comparison.Comparison, title: str) -> list[str]:
    titles = {
        "cast to the model's type": [text.partition(" (")[0] for text in found.cast],
        "resized, the rows in common taken": found.resized,
        "fresh, not in the checkpoint": found.missing,
        "fresh, of another shape or dtype": found.different,
        "in the checkpoint and not used": found.extra,
        "left out by a rule": found.left_out,
    }
    return [f"Initialised {len(found.taken)} arrays from {title}", *_listed(titles)]


def _listed(titles: dict[str, list[str]]) -> list[str]:
    return [
        f"  {title} ({len(names)}): {', '.join(names[:_MOST_NAMES])}"
        + (", ..." if len(names) > _MOST_NAMES else "")
        for title, names in titles.items()
        if names
    ]
