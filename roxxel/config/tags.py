"""`--fdl_tag.NAME=VALUE`: set every field of a graph that carries a tag."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl
from fiddle import daglish, tagging

from roxxel.config import fields, graph, hints, override, suggest
from roxxel.errors import ConfigError


def set_tag(
    root: fdl.Buildable, name: str, text: str, *, flag: str
) -> list[graph.Slot]:
    """Set all fields tagged `name`, each to the value that `text` means for it.

    Args:
      root: the graph, changed in place.
      name: the tag's class name, or as much of its dotted name as tells it apart.
      text: the value as typed.
      flag: the flag as typed, for messages.

    Returns:
      The fields, with their values from before.

    Raises:
      ConfigError: no field, or more than one tag, has that name; or a wrong value.
    """
    tag = _find(root, name, flag)
    slots = list(_tagged(root, tag))
    for slot in slots:
        value = override.typed(slot, text, where=slot.name, flag=flag)
        with override.recorded_as(flag):
            slot.replace(value)
    return slots


def names(root: fdl.Buildable) -> list[str]:
    """The class names of all tags in a graph."""
    return sorted(tag.__name__ for tag in tagging.list_tags(root))


def _find(root: fdl.Buildable, name: str, flag: str) -> Any:
    known = tagging.list_tags(root, add_superclasses=True)
    found = {tag for tag in known if tag.name == name or tag.name.endswith(f".{name}")}
    if len(found) == 1:
        return found.pop()
    if found:
        options = suggest.listing(sorted(tag.name for tag in found))
        raise ConfigError(f"{flag}: several tags are called {name!r}: {options}.")
    options = [tag.__name__ for tag in known]
    if not options:
        raise ConfigError(f"{flag}: the experiment has no field with the tag {name!r}.")
    raise ConfigError(
        f"{flag}: the experiment has no field with the tag {name!r}."
        f"{suggest.did_you_mean(name, options, what='tags')}"
    )


def _tagged(root: fdl.Buildable, tag: Any) -> Iterator[graph.Slot]:
    for node, path in daglish.iterate(root, memoized=True):
        if not isinstance(node, fdl.Buildable):
            continue
        for key, tags in list(node.__argument_tags__.items()):
            if any(issubclass(own, tag) for own in tags):
                yield _slot(node, key, daglish.path_str(path).lstrip("."))


def _slot(node: fdl.Buildable, key: Any, where: str) -> graph.Slot:
    value = node.__arguments__.get(key, fields.UNSET)
    if value is fields.UNSET:
        value = fields.default_of(node, key)
    hint = hints.of_field(fdl.get_callable(node), key)
    name = f"{where}.{key}" if where else str(key)

    def replace(new: Any) -> None:
        setattr(node, key, new)

    return graph.Slot(node, key, value, hint, replace, name, fields.is_set(node, key))
