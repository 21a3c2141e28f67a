"""What the toy experiments are made of: plain classes that know no configs."""

import dataclasses
import enum
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from roxxel import errors


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"


@dataclasses.dataclass
class Child:
    x: int = 1
    label: str = "child"


@dataclasses.dataclass(frozen=True)
class Fixed:
    y: int = 4


@dataclasses.dataclass
class Parent:
    child: Child = dataclasses.field(default_factory=Child)
    made: Child = dataclasses.field(default_factory=lambda: Child(x=5))
    names: list[str] = dataclasses.field(default_factory=list)
    fixed: Fixed = Fixed()


def linear(x: float) -> float:
    return x


def square(x: float) -> float:
    return x * x


class Model:
    def __init__(
        self,
        *,
        dim: int = 8,
        name: str = "model",
        label: str | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        layers: list[int] = [1, 2, 3],  # noqa: B006 - a default that must not change
        table: dict[str, int] | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        mode: Mode = Mode.TRAIN,
        path: Path | None = None,
        activation: Callable[[float], float] = linear,
        size: int | None = None,
        kind: Literal["small", "large"] = "small",
        shapes: tuple[tuple[int, int], ...] = (),
        rate: int | float | str = 1,
        untyped=3,
        untyped_none=None,
        untyped_text="a",
        parent: Parent | None = None,
    ):
        self.values = {k: v for k, v in locals().items() if k != "self"}


class Free:
    def __init__(self, **options: float):
        self.options = options


class Chain:
    def __init__(self, *parts: Any):
        self.parts = parts


class Schedule:
    def __init__(self, total: int, peak: float = 1e-3):
        self.total, self.peak = total, peak


class Job:
    """Runs by doing what `ending` says; writes what it was given."""

    def __init__(
        self,
        model: Any = None,
        schedule: Any = None,
        evaluation: Any = None,
        parent: Any = None,
        free: Any = None,
        chain: Any = None,
        ending: str = "ok",
        steps: int = 10,
    ):
        self.__dict__.update(locals())

    def run(self, workdir: Path, run_info: dict[str, Any]) -> int | None:
        (workdir / "ran.txt").write_text(f"{self.ending} {sorted(run_info)}")
        endings = {
            "crash": RuntimeError("boom in the loop"),
            "value": ValueError("not a configuration error: raised while running"),
            "diverged": errors.DivergedError("loss is nan at step 57"),
            "preempted": errors.PreemptedError("stopped at step 12 after saving"),
            "config": errors.ConfigError("the data set is empty"),
            "shard": errors.ShardFormatError("a.rox: not a shard"),
            "interrupt": KeyboardInterrupt(),
            "exit": SystemExit(7),
        }
        if self.ending in endings:
            raise endings[self.ending]
        return int(self.ending) if self.ending.isdigit() else None


class NoRun:
    """Something that does not run."""


def refuses(reason: str, value: int = 0) -> int:
    """Fails while the graph is built."""
    raise ValueError(f"value {value} must be positive: {reason}")


def missing_file(path: str) -> str:
    with open(path) as file:
        return file.read()


def touches_disk(directory: str) -> str:
    os.makedirs(directory)
    return directory


def exits() -> None:
    sys.exit(0)
