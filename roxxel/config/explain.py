"""`--mode=explain` and `--mode=diff`: where values come from, and what differs.

Fiddle records for each value the line of code that set it; an override from the
command line is recorded as its flag.
"""

import os
from typing import Any

import fiddle as fdl

from roxxel.config import arguments, graph, load, resolve, text, tree
from roxxel.errors import ConfigError

MAX_WIDTH = 72  # of a row before its origin


def origins(found: resolve.Experiment, path: str | None = None) -> str:
    """An experiment as a tree, with the origin of each value.

    Args:
      found: the experiment.
      path: show only this value and what is below it.

    Raises:
      ConfigError: there is nothing at `path`.
    """
    rows = tree.rows(found.config, path)
    stems = tree.branches(row.depth for row in rows)
    shown = [_shown(stem, row) for stem, row in zip(stems, rows, strict=True)]
    width = min(max(map(len, shown)), MAX_WIDTH)
    lines = [f"{found.name}: {found.source}"] if path is None else [f"at {path}"]
    for text_of_row, row in zip(shown, rows, strict=True):
        origin = _origin(found.config, row.path)
        lines.append(f"{text_of_row:<{width}}  <- {origin}" if origin else text_of_row)
    return "\n".join(lines)


def _shown(stem: str, row: tree.Row) -> str:
    marks = f"  ({', '.join(row.marks)})" if row.marks else ""
    return f"{stem}{row.label}{marks}"


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


def _origin(root: fdl.Buildable, path: str) -> str:
    """`file:line` or the flag that set a value last; empty for a default."""
    if not path:
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
