"""The fields of a node: their names, their defaults, and which are set.

A node is a `fdl.Buildable`; its fields are the arguments of what it builds.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import fiddle as fdl
from fiddle import daglish

from roxxel.config import signatures, suggest
from roxxel.errors import ConfigError

UNSET = fdl.NO_VALUE


@dataclasses.dataclass(frozen=True)
class Made:
    """The default of a field that a function makes when the object is built.

    It is called only to set something inside of its result: it might be slow, or touch
    a device.
    """

    factory: Callable[..., Any]


def names(node: fdl.Buildable) -> list[str]:
    """The names of a node's fields, set or not."""
    found = signatures.names(fdl.get_callable(node))
    return found + [
        name
        for name in node.__arguments__
        if isinstance(name, str) and name not in found
    ]


def default_of(node: fdl.Buildable, name: str) -> Any:
    """The default of a field that is not set; `Made` where a function makes it."""
    target = fdl.get_callable(node)
    for field in _dataclass_fields(target):
        if field.name == name and field.default_factory is not dataclasses.MISSING:
            return _from_factory(field.default_factory)
    parameter = signatures.parameters(target).get(name)
    if parameter is None or parameter.default is parameter.empty:
        return UNSET
    return parameter.default


def check_names(root: fdl.Buildable) -> None:
    """Check that every argument set in a graph exists.

    Fiddle does so itself, except for classes whose metaclass hides their signature.

    Raises:
      ConfigError: naming the node and close matches.
    """
    for node, path in daglish.iterate(root, memoized=True):
        if not isinstance(node, fdl.Buildable):
            continue
        target = fdl.get_callable(node)
        if signatures.takes_any_name(target):
            continue
        known = signatures.names(target)
        for name in node.__arguments__:
            if isinstance(name, str) and name not in known:
                where = daglish.path_str(path).lstrip(".") or "the experiment"
                raise ConfigError(no_such_field(where, target, name, known))


def no_such_field(where: str, target: Any, name: str, known: list[str]) -> str:
    """The message for a field that a node does not have."""
    shown = getattr(target, "__qualname__", str(target))
    hint = suggest.did_you_mean(name, known, what="fields")
    return f"{where} ({shown}) has no field {name!r}.{hint}"


def is_set(node: fdl.Buildable, name: str | int) -> bool:
    """Whether a field has a value of its own, rather than a default or none."""
    return name in node.__arguments__


def _dataclass_fields(target: Any) -> tuple[dataclasses.Field, ...]:
    if not isinstance(target, type) or not dataclasses.is_dataclass(target):
        return ()
    return dataclasses.fields(target)


def _from_factory(factory: Callable[..., Any]) -> Any:
    """The value of a default factory, as a graph where it makes an object."""
    if factory in (list, dict, set, tuple):
        return factory()
    buildable = getattr(factory, "as_buildable", None)
    if buildable is not None:
        return buildable()
    if isinstance(factory, type) and dataclasses.is_dataclass(factory):
        return fdl.Config(factory)
    return Made(factory)
