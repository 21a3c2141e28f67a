"""Writes a graph so that it can be replayed (`config.json`) and read (`config.txt`)."""

import json
from typing import Any

import fiddle as fdl
from fiddle.experimental import serialization

from roxxel.config import encode, imports, load, suggest, text


def to_json(
    config: fdl.Buildable, *, name: str = "", source: str = ""
) -> tuple[str, str | None]:
    """The JSON of a graph, and one line of warning where a value could not be stored.

    Values that JSON cannot hold are stored by the rules of `roxxel.config.stored`.
    Whatever the graph holds, some JSON comes back.

    Args:
      config: the graph; not changed.
      name: the experiment's short name.
      source: the dotted function that made the graph.
    """
    section: dict[str, Any] = {"format": load.FORMAT, "experiment": name}
    section["source"] = source
    try:
        storable, lost = encode.encode(config)
        data = json.loads(serialization.dump_json(storable, _AnyPolicy()))
        warning = _warning(lost)
        section["not_stored"] = lost
    except Exception as err:
        data = {"text": text.render(config)}
        warning = f"config.json cannot be replayed: {imports.one_line(err)}"
        section["not_stored"] = ["<root>"]
    return json.dumps({"roxxel": section, **data}, indent=1) + "\n", warning


def to_text(config: fdl.Buildable, *, name: str = "", source: str = "") -> str:
    """The flat text of a graph, below a line that names the experiment."""
    return f"# {name}: {source}\n{text.render(config)}"


def _warning(lost: list[str]) -> str | None:
    if not lost:
        return None
    return (
        f"config.json holds only a description of {suggest.listing(lost)}; a replay "
        "has to set what JSON cannot hold."
    )


class _AnyPolicy(serialization.PyrefPolicy):
    """Writing imports nothing that is not imported already."""

    def allows_import(self, module: str, symbol: str) -> bool:
        return True

    def allows_value(self, value: Any) -> bool:
        return True
