"""A module with one experiment."""

import fiddle as fdl

import roxxel
from toy_experiments import parts


@roxxel.experiment(name="only_one")
def make(steps: int = 1) -> fdl.Config:
    return fdl.Config(parts.Job, steps=steps)


def helper() -> int:
    return 1
