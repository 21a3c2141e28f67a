"""Steps into a Fiddle graph: read and replace what a path element names.

A graph is made of `fdl.Buildable` nodes and of lists, tuples and dicts. A node's
default values are part of it: setting something inside of one configures it first.
"""

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from roxxel.config import containers, dtypes, fields, hints, paths, signatures, suggest
from roxxel.errors import ConfigError


@dataclasses.dataclass
class Slot:
    """One field of a graph: what it holds, its annotation, how to replace it.

    `owner` is the node or mutable container that holds the value and `key` the
    element in it; the same place reached by two paths has the same owner and key.
    `held` is false where the value is only a default, which must not be changed in
    place.
    """

    owner: Any
    key: Any
    value: Any
    hint: Any
    replace: Callable[[Any], None]
    name: str
    held: bool = True


def slot(root: fdl.Buildable, path: str) -> Slot:
    """The field at `path`.

    Raises:
      ConfigError: naming the wrong part of the path, and close matches.
    """
    elements = paths.parse(path)
    found = _root_slot(root)
    for position, element in enumerate(elements):
        where = paths.show(elements[:position]) if position else "the experiment"
        found = _step(found, element, where)
    return found


def _root_slot(root: fdl.Buildable) -> Slot:
    def refuse(value: Any) -> None:
        raise ConfigError("the root of the graph cannot be replaced.")

    return Slot(None, None, root, hints.UNKNOWN, refuse, "")


def _step(parent: Slot, element: paths.Key, where: str) -> Slot:
    value = _configured(parent)
    if isinstance(value, fdl.Buildable):
        return _field(value, element, where)
    if isinstance(value, dict):
        return _item(parent, value, element, where)
    if isinstance(value, (list, tuple)):
        return _element(parent, value, element, where)
    if value is fields.UNSET:
        raise ConfigError(f"{where} has no value yet, so nothing in it can be set.")
    raise ConfigError(
        f"{where} is {suggest.shown(value)} of type {type(value).__name__}; "
        f"it has no {_shown(element)}."
    )


def _configured(parent: Slot) -> Any:
    """The parent's value, put into the graph where it was only a default."""
    value = parent.value
    if isinstance(value, fields.Made):
        value = parent.value = _call(value.factory)
    if isinstance(value, fdl.Buildable):
        if not parent.held:
            parent.replace(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _from_instance(value)
        parent.replace(value)
    elif _can_be_partial(value, parent.hint):
        value = fdl.Partial(value)
        parent.replace(value)
    return value


def _can_be_partial(value: Any, hint: Any) -> bool:
    """Whether a field holds a function or class whose arguments may be bound."""
    is_plain = inspect.isfunction(value) or inspect.isclass(value)
    if not is_plain or dtypes.is_dtype(value):
        return False
    return typing.get_origin(hint) is not type and hint is not type


def _field(node: fdl.Buildable, element: paths.Key, where: str) -> Slot:
    target = fdl.get_callable(node)
    if isinstance(element, int):
        return _positional(node, element, where)
    name = f"{element}"
    if name not in fields.names(node) and not signatures.takes_any_name(target):
        raise ConfigError(fields.no_such_field(where, target, name, fields.names(node)))
    value = node.__arguments__.get(name, fields.UNSET)
    if value is fields.UNSET:
        value = fields.default_of(node, name)
    hint = hints.of_field(target, name)

    def replace(new: Any) -> None:
        setattr(node, name, new)

    return Slot(node, name, value, hint, replace, name, fields.is_set(node, name))


def _positional(node: fdl.Buildable, index: int, where: str) -> Slot:
    keys = sorted(key for key in node.__arguments__ if isinstance(key, int))
    if not -len(keys) <= index < len(keys):
        raise ConfigError(f"{where}: {_index_error(index, len(keys))}")
    key = keys[index]
    value = node.__arguments__[key]
    hint = hints.of_field(fdl.get_callable(node), key)

    def replace(new: Any) -> None:
        node[key] = new

    return Slot(node, key, value, hint, replace, f"[{key}]")


def _item(parent: Slot, value: dict, element: paths.Key, where: str) -> Slot:
    key = _matching_key(value, element)
    if key is fields.UNSET:
        options = [str(option) for option in value]
        raise ConfigError(
            f"{where} has no key {str(element)!r}; set the whole of it to add one."
            f"{suggest.did_you_mean(str(element), options, what='keys')}"
        )
    hint = containers.element_hint(parent.hint, key)
    held = _own(parent, value)

    def replace(new: Any) -> None:
        held()[key] = new

    return Slot(value, key, value[key], hint, replace, str(key), parent.held)


def _matching_key(value: dict, element: paths.Key) -> Any:
    if element in value:
        return next(key for key in value if key == element)
    by_text = [key for key in value if str(key) == str(element)]
    return by_text[0] if by_text else fields.UNSET


def _element(parent: Slot, value: list | tuple, element: paths.Key, where: str) -> Slot:
    names = getattr(type(value), "_fields", ())
    if not isinstance(element, int) and element in names:
        index: int = names.index(element)
    elif isinstance(element, int) and -len(value) <= element < len(value):
        index = element % len(value)
    elif isinstance(element, int):
        raise ConfigError(f"{where}: {_index_error(element, len(value))}")
    else:
        kind = type(value).__name__
        raise ConfigError(
            f"{where} is a {kind} of {len(value)}; write {where}[0], not .{element}."
        )
    key = names[index] if names else index
    hint = containers.element_hint(parent.hint, key)
    if isinstance(value, tuple):
        replace = _tuple_replacer(parent, value, index)
        owner, place = parent.owner, (parent.key, index)
        return Slot(owner, place, value[index], hint, replace, "", parent.held)
    held = _own(parent, value)

    def replace_in_list(new: Any) -> None:
        held()[index] = new

    return Slot(value, index, value[index], hint, replace_in_list, "", parent.held)


def _tuple_replacer(parent: Slot, value: tuple, index: int) -> Callable[[Any], None]:
    def replace(new: Any) -> None:
        items = [*value[:index], new, *value[index + 1 :]]
        is_named = hasattr(type(value), "_fields")
        parent.replace(type(value)(*items) if is_named else type(value)(items))

    return replace


def _own(parent: Slot, value: Any) -> Callable[[], Any]:
    """The container to write into: a copy where the graph holds only a default."""

    def get() -> Any:
        if parent.held:
            return value
        mine = copy.copy(value)
        parent.replace(mine)
        return mine

    return get


def _index_error(index: int, length: int) -> str:
    if not length:
        return f"index {index} is out of range: it is empty."
    last = length - 1
    return f"index {index} is out of range: its length is {length} (0 to {last})."


def _shown(element: paths.Key) -> str:
    return f"[{element}]" if isinstance(element, int) else f"field {element!r}"


def _call(factory: Callable[..., Any]) -> Any:
    try:
        return fdl.Config(factory) if isinstance(factory, type) else factory()
    except Exception as err:
        raise ConfigError(f"its default factory {factory!r} failed: {err}") from err


def _from_instance(instance: Any) -> fdl.Buildable:
    """A node that builds an equal dataclass instance."""
    values = {
        field.name: getattr(instance, field.name)
        for field in dataclasses.fields(typing.cast(Any, instance))
        if field.init
    }
    return fdl.Config(type(instance), **values)
