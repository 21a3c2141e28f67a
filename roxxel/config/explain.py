"""`--mode=explain` and `--mode=diff`: where values come from, and what differs.

Fiddle records for each value the line of code that set it; an override from the
command line is recorded as its flag.
"""

import os
from typing import Any

import fiddle as fdl

from roxxel.config import arguments, graph, load, resolve, suggest, text
from roxxel.errors import ConfigError


def origins(found: resolve.Experiment, path: str | None = None) -> str:
    """The flat text of an experiment with the origin of each value.

    Args:
      found: the experiment.
      path: show only this value and what is below it.

    Raises:
      ConfigError: there is nothing at `path`.
    """
    lines = text.flat(found.config)
    if path is not None:
        lines = _below(found.config, lines, path)
    rows = [(str(line), _origin(found.config, line.path)) for line in lines]
    width = min(max(len(shown) for shown, _ in rows), 60)
    return "\n".join(
        f"{shown:<{width}}  <- {origin}" if origin else shown for shown, origin in rows
    )


def difference(found: resolve.Experiment, line: arguments.CommandLine) -> str:
    """How an experiment differs from the one in `--against`; empty if it does not."""
    other = line.get("against")
    if other is None:
        raise ConfigError(
            "--mode=diff: give --against=OTHER, an experiment, a work directory of a "
            "run, or a config.json."
        )
    before = text.render(_other(other, line))
    changes = text.difference(before, text.render(found.config))
    return "\n".join(changes) if changes else f"no difference from {other}"


def _other(name: str, line: arguments.CommandLine) -> fdl.Buildable:
    is_run = os.path.isdir(name)
    is_file = os.path.isfile(name) or os.sep in name or name.endswith(".json")
    try:
        if not (is_run or is_file):
            return resolve.from_name(name).config
        return load.load_file(
            os.path.join(name, "config.json") if is_run else name,
            trusted=line.lists.get("trust_module", []),
            trust_all=line.on("trust_config"),
        ).config
    except ConfigError as err:
        message = str(err).replace("--fdl_config_file", "--against", 1)
        raise ConfigError(message.replace("--fdl_config", "--against", 1)) from err


def _below(root: fdl.Buildable, lines: list[text.Line], path: str) -> list[text.Line]:
    slot_path = path.rstrip(".")
    try:
        graph.slot(root, slot_path)
    except ConfigError as err:
        raise ConfigError(f"--path={path}: {err}") from err
    inside = (f"{slot_path}.", f"{slot_path}[")
    found = [x for x in lines if x.path == slot_path or x.path.startswith(inside)]
    if found:
        return found
    known = [line.path for line in lines]
    raise ConfigError(
        f"--path={path}: is part of a value.{suggest.did_you_mean(path, known)}"
    )


def _origin(root: fdl.Buildable, path: str) -> str:
    """`file:line` or the flag that set a value last; empty for a default."""
    if path == "<root>":
        return ""
    slot = graph.slot(root, path)
    if not isinstance(slot.owner, fdl.Buildable) or not slot.held:
        return ""
    entries: list[Any] = slot.owner.__argument_history__.get(slot.key, [])
    values = [entry for entry in entries if entry.kind.name == "NEW_VALUE"]
    if not values:
        return ""
    location = values[-1].location
    if location.line_number == 0:
        return location.filename
    return f"{_short(location.filename)}:{location.line_number}"


def _short(filename: str) -> str:
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative
