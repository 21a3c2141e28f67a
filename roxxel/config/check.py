"""`--mode=check`: what a run would be, from shapes alone; no device is used.

Sections of text, and a list of problems: what would stop the run or does not fit.
"""

import copy
import dataclasses
import math
import re
import types
from typing import Any

import fiddle as fdl
from fiddle import daglish

from roxxel.config import (
    abstract,
    arguments,
    check_data,
    check_memory,
    check_model,
    check_plan,
    check_topology,
    fields,
    resolve,
    scalars,
    start,
)
from roxxel.config import workdir as workdir_lib
from roxxel.errors import ConfigError

ASSUMED_STEPS = 1000  # of a run whose length is not known
MOST_DEVICES = 1 << 20
_SIZE = re.compile(r"([\d.eE+_]+)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is checked against: devices, and bytes of memory of one (None: any)."""

    devices: int | None = None
    memory_bytes: int | None = None


def report(
    found: resolve.Experiment, line: arguments.CommandLine
) -> tuple[str, list[str]]:
    """The report, and what is wrong, a line each and the worst first.

    Raises:
      ConfigError: --devices, --memory or --topology is no size, or nothing is there
        that compiles for a topology.
    """
    topology = check_topology.parse(line)
    limits = Limits(
        devices=topology.num_chips if topology else _devices(line.get("devices")),
        memory_bytes=_memory(line.get("memory")),
    )
    config = _without_minutes(found.config)
    values = abstract.evaluate(config)
    trainer = values.root
    if isinstance(values.fields.get("optimizer"), abstract.Unknown):
        # Neither the sizes of its state nor the step depend on how long the run is.
        assumed = abstract.evaluate(config, assumed_steps=ASSUMED_STEPS)
        values.fields["optimizer"] = assumed.fields.get("optimizer")
        trainer = assumed.root
    problems = values.problems
    mesh = check_memory.mesh_sizes(
        values.get("mesh_axes"), limits.devices, problems, values.get("dcn_axes")
    )
    model = check_model.abstract_model(values, problems)
    problems += check_plan.cut_problems(values, mesh, model)
    sections = [f"{found.name}: {found.source}"]
    if model is not None:
        sections += [
            check_model.parameters(model),
            check_memory.memory(
                model, values, mesh, limits.memory_bytes, problems=problems
            ),
        ]
    _check_initial(found, values, model, line.get("workdir"), problems)
    sections.append(check_data.data(values))
    sections += check_plan.plan(values, mesh, model, problems)
    if topology is not None:
        sections += check_topology.report(trainer, model, topology, problems)
    sections += [_problems(problems)] if problems else []
    return "\n\n".join(filter(None, sections)), problems


def _check_initial(
    found: resolve.Experiment,
    values: abstract.Values,
    model: Any,
    given: str | None,
    problems: list[str],
) -> None:
    """Adds a problem where what to begin with is not there, or does not fit."""
    from roxxel.train import initial

    names = initial.OPTIONS
    if not set(names) <= set(fields.names(found.config)):
        return
    spec: Any = types.SimpleNamespace(**{name: values.get(name) for name in names})
    given = given or start.configured_workdir(found)
    try:
        initial.check_options(spec)
        initial.check_source(spec, workdir_lib.choose(given, found.name), model)
    except ConfigError as err:
        if str(err) not in problems:
            problems.append(str(err))


def _without_minutes(config: fdl.Buildable) -> fdl.Buildable:
    """A copy in which a length in minutes is unknown: a run's start measures it."""
    config = copy.deepcopy(config)
    for node, _ in daglish.iterate(config, memoized=True):
        if isinstance(node, fdl.Buildable) and node.__arguments__.get("minutes"):
            unknown = f"{node.minutes} minutes, measured when the run starts"
            node.minutes = abstract.Unknown(f"{unknown}.")
    return config


def _problems(problems: list[str]) -> str:
    return "\n".join(["does not fit", *(f"  {text}" for text in problems)])


def _devices(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        number = scalars.parse_int(text)
    except scalars.MismatchError:
        number = 0
    if not 1 <= number <= MOST_DEVICES:
        raise ConfigError(
            f"--devices={text}: expected int, at least 1 and at most {MOST_DEVICES}."
        )
    return number


def _memory(text: str | None) -> int | None:
    """Bytes: `16GiB`, `80e9`, `24 GB`."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    number = _number(match[1]) if match else math.nan
    if match is None or not number > 0 or math.isinf(number):
        raise ConfigError(f"--memory={text}: expected a size such as 16GiB or 80e9.")
    base = 1024 if match[3] else 1000
    return int(number * base ** " KMGT".index(match[2].upper() or " "))


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return math.nan
