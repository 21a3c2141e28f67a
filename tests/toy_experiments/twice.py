"""Takes a name that another experiment has."""

import fiddle as fdl

import roxxel
from toy_experiments import basic, parts

assert basic


@roxxel.experiment("toy")
def another() -> fdl.Config:
    return fdl.Config(parts.Job)
