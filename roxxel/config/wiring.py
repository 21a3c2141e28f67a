"""Edges of a graph that a value makes necessary, filled in where they are missing.

A length in `flops` or `tokens_per_param` needs the model, a warm-up in tokens the
stream. Filled in last: they are those that the flags have left in the graph.
"""

from typing import Any

import fiddle as fdl
from fiddle import daglish

from roxxel import budget
from roxxel.config import fields

_OF_MODEL = ("flops", "tokens_per_param")
_LENGTHS = ("warmup", "decay")
_IN_STREAM = ("token", "epoch")


def complete(root: fdl.Buildable) -> None:
    """Gives nodes the model and the stream of `root` that their values ask for."""
    for node, _ in daglish.iterate(root, memoized=True):
        if not isinstance(node, fdl.Buildable) or node is root:
            continue
        if _needs_model(node):
            _fill(node, "model", root)
        elif _needs_stream(node):
            _fill(node, "stream", root)


def _needs_model(node: fdl.Buildable) -> bool:
    given = node.__arguments__
    is_length = fdl.get_callable(node) is budget.total_steps
    return is_length and any(given.get(unit) is not None for unit in _OF_MODEL)


def _needs_stream(node: fdl.Buildable) -> bool:
    """A schedule, one of whose lengths is text in tokens or epochs."""
    values = (node.__arguments__.get(name) for name in _LENGTHS)
    texts = [value for value in values if isinstance(value, str)]
    return any(unit in text for text in texts for unit in _IN_STREAM)


def _fill(node: fdl.Buildable, name: str, root: fdl.Buildable) -> None:
    source: Any = root.__arguments__.get(name)
    if name in fields.names(node) and node.__arguments__.get(name) is None and source:
        setattr(node, name, source)
