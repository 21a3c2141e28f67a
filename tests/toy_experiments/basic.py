"""Experiments that need neither jax nor a device."""

import sys

import fiddle as fdl

import roxxel
from toy_experiments import parts


class Width(fdl.Tag):
    """Width of a model."""


class Peak(fdl.Tag):
    """A learning rate."""


@roxxel.experiment("toy")
def full(dim: int = 8, ending: str = "ok", peak: float = 1e-3) -> fdl.Config:
    """Every kind of field."""
    schedule = fdl.Config(parts.Schedule, total=10, peak=peak)
    config = fdl.Config(
        parts.Job,
        model=fdl.Config(
            parts.Model,
            dim=dim,
            table={"k": 0, "other": 2},
            parent=fdl.Config(parts.Parent),
        ),
        schedule=schedule,
        evaluation=schedule,
        parent=fdl.Config(parts.Parent),
        free=fdl.Config(parts.Free, alpha=0.5),
        chain=fdl.Config(parts.Chain, fdl.Config(parts.Child), fdl.Config(parts.Child)),
        ending=ending,
    )
    fdl.add_tag(config.model, "dim", Width)
    fdl.add_tag(schedule, "peak", Peak)
    return config


@roxxel.experiment
def fails_to_build(value: int = 0) -> fdl.Config:
    model = fdl.Config(parts.refuses, "because", value=value)
    return fdl.Config(parts.Job, model=model)


@roxxel.experiment
def missing_data(path: str = "nowhere/data.bin") -> fdl.Config:
    return fdl.Config(parts.Job, model=fdl.Config(parts.missing_file, path=path))


def needs(width: int, depth: int = 2) -> fdl.Config:
    return fdl.Config(parts.Job, steps=width * depth)


def returns_none() -> None:
    return None


def returns_dict() -> dict:
    return {"a": 1}


def raises() -> fdl.Config:
    return 1 / 0  # type: ignore[return-value]


def no_run() -> fdl.Config:
    return fdl.Config(parts.NoRun)


def child(x: int = 3) -> fdl.Config:
    """A fragment."""
    return fdl.Config(parts.Child, x=x)


def shrink(config: fdl.Buildable, dim: int = 1, text: str = "") -> None:
    config.model.dim = dim
    config.model.name = text or config.model.name


def replace(config: fdl.Buildable) -> fdl.Buildable:
    return fdl.Config(parts.Job, ending="0", steps=config.steps)


def bad_result(config: fdl.Buildable) -> int:
    return 3


def bad_fiddler(config: fdl.Buildable) -> None:
    config.modle.dim = 3


not_a_function = 5


def exits() -> fdl.Config:
    sys.exit(0)


def exits_when_built() -> fdl.Config:
    return fdl.Config(parts.Job, model=fdl.Config(parts.exits))


def exiting_fiddler(config: fdl.Buildable) -> None:
    sys.exit(0)
