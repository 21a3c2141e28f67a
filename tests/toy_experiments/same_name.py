"""A module and a function of the same name, among others."""

import fiddle as fdl

import roxxel
from toy_experiments import parts


@roxxel.experiment
def same_name(steps: int = 1) -> fdl.Config:
    return fdl.Config(parts.Job, steps=steps)


@roxxel.experiment
def other_name() -> fdl.Config:
    return fdl.Config(parts.Job)
