"""Setting one value of a graph from text, and saying what is wrong when it fails."""

import contextlib
from collections.abc import Generator
from typing import Any

import fiddle as fdl
from fiddle import history

from roxxel.config import fields, graph, hints, suggest, values
from roxxel.config.scalars import NOTHING, MismatchError
from roxxel.errors import ConfigError


def set_value(root: fdl.Buildable, path: str, text: str, *, flag: str) -> graph.Slot:
    """Set the field at `path` to the value that `text` means for it.

    Args:
      root: the graph; changed in place, so every user of a shared node sees it.
      path: where, such as `model.layers[1]`.
      text: the value as typed.
      flag: the flag as typed, for messages and for the graph's history.

    Returns:
      The field, with its value from before.

    Raises:
      ConfigError: one line naming flag, wrong part, value and expected type.
    """
    try:
        with recorded_as(flag):  # defaults on the way become part of the graph
            slot = graph.slot(root, path)
    except ConfigError as err:
        raise ConfigError(f"{flag}: {err}") from err
    value = typed(slot, text, where=path, flag=flag)
    with recorded_as(flag):
        slot.replace(value)
    return slot


def typed(slot: graph.Slot, text: str, *, where: str, flag: str) -> Any:
    """The value that `text` means for a field.

    Raises:
      ConfigError: one line naming flag, field, value and expected type.
    """
    is_made = slot.value is fields.UNSET or isinstance(slot.value, fields.Made)
    current = NOTHING if is_made else slot.value
    hint = _dtype_by_name(slot, current)
    try:
        return values.parse(text, hint, current)
    except MismatchError as err:
        got = f"got {suggest.shown(text)}{_because(slot)}"
        message = f"{flag}: {where} expected {err.expected}, {got}.{err.advice}"
        raise ConfigError(message) from err
    except ConfigError as err:
        raise ConfigError(f"{flag}: {err}") from err


def _dtype_by_name(slot: graph.Slot, current: Any) -> Any:
    """A field called `dtype` without any known type holds a dtype."""
    if (
        slot.hint is hints.UNKNOWN
        and _is_nothing(current)
        and slot.name.endswith("dtype")
    ):
        import numpy as np

        return np.dtype
    return slot.hint


def _is_nothing(value: Any) -> bool:
    return value is None or value is NOTHING


def _because(slot: graph.Slot) -> str:
    """Where the expected type comes from, when it is not an annotation."""
    value = slot.value
    if slot.hint is not hints.UNKNOWN or isinstance(value, fdl.Buildable):
        return ""
    if value is fields.UNSET or _is_nothing(value):
        return ""
    return f" (it has no annotation and holds {suggest.shown(value)})"


@contextlib.contextmanager
def recorded_as(flag: str) -> Generator[None, None, None]:
    """Record the flag, not this file, as the place where the graph was changed."""
    place = history.Location(filename=flag, line_number=0, function_name=None)
    with history.custom_location(lambda: place):
        yield
