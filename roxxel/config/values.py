"""Text from a command line to a value of the type that its field wants.

The type comes from the annotation; without one from the current value; without either
the text is read as a Python literal, or else kept as text.
"""

import collections.abc
import enum
import functools
import os
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import fiddle as fdl

from roxxel.config import containers, dtypes, hints, scalars, suggest, symbols
from roxxel.config.scalars import NOTHING, MismatchError

_SCALARS: dict[Any, Callable[[str], Any]] = {
    bool: scalars.parse_bool,
    int: scalars.parse_int,
    float: scalars.parse_float,
    str: scalars.parse_str,
    bytes: scalars.parse_bytes,
}
# Unions are tried from the most to the least particular; text fits anything.
_UNION_ORDER = [int, float, bool, bytes]
_RANK_OF_OTHERS, _RANK_OF_TEXT = 10, 20


def parse(text: str, hint: Any, current: Any = NOTHING) -> Any:
    """The value that `text` means for a field.

    Args:
      text: as typed, with the shell's quotes gone.
      hint: the field's annotation, or `hints.UNKNOWN`.
      current: what the field holds now, or its default; `NOTHING` where it has none.

    Raises:
      MismatchError: saying what was expected.
    """
    hint = hints.strip(hint)
    was_none, current = current is None, None if current is NOTHING else current
    if hint is hints.UNKNOWN:
        return _parse_like(text, current)
    members = hints.members(hint)
    strict = str in members and not dtypes.is_dtype_hint(hint)
    may_be_none = type(None) in members or (was_none and hint is not str)
    if may_be_none and scalars.is_none(
        text, strict=strict or type(None) not in members
    ):
        return None
    if dtypes.is_dtype_hint(hint):
        return dtypes.parse(text, current)
    if len(members) > 1:
        return _parse_union(text, members, current)
    return _parse_as(text, hint, current)


def _parse_as(text: str, hint: Any, current: Any) -> Any:
    """The value of a hint that is no union."""
    if hint in _SCALARS:
        return _SCALARS[hint](text)
    if hint is type(None):
        raise MismatchError("None")
    if dtypes.is_dtype(current):
        return dtypes.parse(text, current)
    if typing.get_origin(hint) is typing.Literal:
        return _parse_choice(text, typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return scalars.parse_enum(text, hint)
    if _is_path_hint(hint):
        return scalars.parse_path(text, _path_kind(hint))
    if _is_record(hint) and (isinstance(current, fdl.Buildable) or _is_call(text)):
        return symbols.parse_node(text, hint, current)
    if containers.is_container(hint):
        return containers.parse(text, hint, current, parse)
    if _is_callable_hint(hint):
        return symbols.parse_callable(text, hint, current)
    if _is_number_type(hint):
        return _parse_number(text, hint)
    return symbols.parse_node(text, hint, current)


def _parse_union(text: str, members: list[Any], current: Any) -> Any:
    if str in members and text != scalars.unquote(text):
        return scalars.parse_str(text)
    by_rank = sorted(members, key=lambda member: _rank(member, current))
    reason = ""
    for member in by_rank:
        if member is type(None):
            continue
        try:
            return parse(text, member, current)
        except MismatchError as err:
            reason = reason or err.hint
    raise MismatchError(" | ".join(hints.show(member) for member in members), reason)


def _rank(member: Any, current: Any) -> int:
    if member is str:
        return _RANK_OF_TEXT
    if _is_path_hint(member):  # text will do, unless a path is there already
        return _RANK_OF_TEXT + (-1 if isinstance(current, PurePath) else 1)
    return _UNION_ORDER.index(member) if member in _UNION_ORDER else _RANK_OF_OTHERS


def _parse_choice(text: str, options: tuple[Any, ...]) -> Any:
    word = scalars.unquote(text.strip())
    for option in options:
        if str(getattr(option, "name", option)) == word or repr(option) == text.strip():
            return option
    names = [str(getattr(option, "name", option)) for option in options]
    matches = suggest.close_matches(word, names)
    hint = f"Did you mean {' or '.join(matches)}?" if matches else ""
    raise MismatchError(f"one of {suggest.listing(names)}", hint)


def _parse_like(text: str, current: Any) -> Any:
    """The value of a field that has no annotation, by what it holds."""
    if current is None:
        return _call_or_literal(text)
    if type(current) in _SCALARS:
        return _SCALARS[type(current)](text)
    if isinstance(current, fdl.Buildable):
        if scalars.is_none(text, strict=True):
            return None
        return symbols.parse_node(text, hints.UNKNOWN, current)
    if dtypes.is_dtype(current):
        return dtypes.parse(text, current)
    if isinstance(current, enum.Enum):
        return scalars.parse_enum(text, type(current))
    if isinstance(current, PurePath):
        return scalars.parse_path(text, type(current))
    if containers.is_container(type(current)):
        return containers.parse(text, type(current), current, parse)
    if isinstance(current, functools.partial) or callable(current):
        return symbols.parse_callable(text, Callable, current)
    if _is_number(current):
        return _SCALARS[type(current.item())](text)
    return _call_or_literal(text)


def _call_or_literal(text: str) -> Any:
    if symbols.is_call(text):
        return symbols.parse_node(text, hints.UNKNOWN, None)
    return scalars.parse_literal(text)


def _is_number(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return False
    return type(value.item()) in _SCALARS


def _is_number_type(hint: Any) -> bool:
    """Whether a hint is complex or a numpy number such as `np.float32`."""
    numpy = sys.modules.get("numpy")
    if hint is complex or numpy is None or not isinstance(hint, type):
        return hint is complex
    return issubclass(hint, numpy.number)


def _parse_number(text: str, kind: Any) -> Any:
    try:
        return kind(scalars.unquote(text.strip()))
    except (TypeError, ValueError, OverflowError) as err:  # an abstract type too
        raise MismatchError(kind.__name__) from err


def _is_record(hint: Any) -> bool:
    """Whether a hint is a named tuple, as Optax's optimizers are."""
    return isinstance(hint, type) and hasattr(hint, "_fields")


def _is_call(text: str) -> bool:
    return symbols.is_call(text.strip())


def _is_path_hint(hint: Any) -> bool:
    if hint is os.PathLike or typing.get_origin(hint) is os.PathLike:
        return True
    return isinstance(hint, type) and (
        issubclass(hint, PurePath) or hint.__module__.startswith("etils.epath")
    )


def _path_kind(hint: Any) -> Any:
    if isinstance(hint, type) and hint not in (os.PathLike, PurePath):
        return hint
    return Path


def _is_callable_hint(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if hint is Callable or origin in (collections.abc.Callable, type):
        return True
    if hint in (type, types.FunctionType, typing.Callable, functools.partial):
        return True
    return getattr(hint, "_is_protocol", False) and "__call__" in vars(hint)
