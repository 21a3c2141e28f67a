"""A graph as flat text: one line a value, `path = value`, with defaults marked."""

import dataclasses
import enum
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import fiddle as fdl

from roxxel.config import dtypes, fields, graph, hints, sharing

MAX_VALUE_CHARS = 200  # of one value; longer ones are cut
DEFAULT_MARK = "default"
NO_VALUE = "<not set>"


@dataclasses.dataclass(frozen=True)
class Line:
    """One value: where, what, and what is worth knowing about it."""

    path: str
    value: str
    marks: tuple[str, ...] = ()
    type: str = ""

    def __str__(self) -> str:
        marks = f"  # {', '.join(self.marks)}" if self.marks else ""
        return f"{self.path} = {self.value}{marks}"


def flat(root: fdl.Buildable) -> list[Line]:
    """All values of a graph, in the order of the signatures, nodes before fields.

    A node that several paths reach is shown at the shortest of them; the others name
    that one.
    """
    return list(_walk(root, "", sharing.shortest_paths(root), ()))


def render(root: fdl.Buildable) -> str:
    """The flat text of a graph, one value a line."""
    return "\n".join(str(line) for line in flat(root)) + "\n"


def difference(before: str, after: str) -> list[str]:
    """What changed between two flat texts: `path: old -> new`, in order of path.

    What is below a node that only one of them has is left out.
    """
    old, new = _values(before), _values(after)
    changed = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    one_sided = {path for path in changed if path not in old or path not in new}
    return [
        f"{path}: {old.get(path, NO_VALUE)} -> {new.get(path, NO_VALUE)}"
        for path in changed
        if path not in one_sided or not any(_is_below(path, above) for above in changed)
    ]


def _is_below(path: str, above: str) -> bool:
    return path.startswith((f"{above}.", f"{above}["))


def show_value(value: Any) -> str:
    """One value as text: addresses and line breaks are left out."""
    text = _shown(value)
    text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))
    if len(text) > MAX_VALUE_CHARS:
        return f"{text[: MAX_VALUE_CHARS - 3]}..."
    return text


def show_target(node: fdl.Buildable) -> str:
    """The dotted name of what a node builds; a partial is marked as one."""
    name = _dotted(fdl.get_callable(node))
    return f"{name}(...)" if isinstance(node, fdl.Partial) else name


def _walk(value: Any, path: str, homes: dict, marks: tuple[str, ...]) -> Iterator[Line]:
    label = path or "<root>"
    if isinstance(value, fdl.Buildable):
        home = homes.get(id(value), path)
        if home != path:
            yield Line(label, f"<shared with {home or '<root>'}>", marks)
            return
        yield Line(label, f"<{show_target(value)}>", marks)
        yield from _walk_fields(value, path, homes)
    elif _has_nodes(value):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _walk(item, f"{path}[{key!r}]", homes, marks)
    else:
        yield Line(label, show_value(value), marks)


def _walk_fields(node: fdl.Buildable, path: str, homes: dict) -> Iterator[Line]:
    for name in fields.names(node):
        child = f"{path}.{name}" if path else name
        marks = tuple(
            f"tag {tag.__name__}" for tag in _sorted_tags(node.__argument_tags__, name)
        )
        if fields.is_set(node, name):
            yield from _walk(node.__arguments__[name], child, homes, marks)
            continue
        value = fields.default_of(node, name)
        if value is fields.UNSET:
            yield Line(child, NO_VALUE, marks)
        elif isinstance(value, fields.Made):
            yield Line(child, _made_by(value.factory), (DEFAULT_MARK, *marks))
        else:
            yield from _walk(value, child, {}, (DEFAULT_MARK, *marks))
    for key in sorted(key for key in node.__arguments__ if isinstance(key, int)):
        yield from _walk(node.__arguments__[key], f"{path}[{key}]", homes, ())


def types_of(root: fdl.Buildable) -> dict[str, str]:
    """The annotation of each field of a graph, by path."""
    found: dict[str, str] = {}
    for line in flat(root):
        try:
            slot = graph.slot(root, line.path)
        except ValueError:
            continue
        if slot.hint is not hints.UNKNOWN:
            found[line.path] = hints.show(slot.hint)
    return found


def _sorted_tags(tags: dict, name: str) -> list[Any]:
    return sorted(tags.get(name, ()), key=lambda tag: tag.__name__)


def _made_by(factory: Any) -> str:
    return f"<made by {_dotted(factory)}>"


def _has_nodes(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return False
    return any(isinstance(item, fdl.Buildable) or _has_nodes(item) for item in value)


def _shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, PurePath):
        return repr(str(value))
    if dtypes.is_dtype(value):
        return dtypes.name_of(value)
    if isinstance(value, functools.partial):
        return f"partial({_dotted(value.func)}, ...)"
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item() if not getattr(value, "shape", ()) else value
    if inspect.isroutine(value) or isinstance(value, type):
        return _dotted(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        inner = ", ".join(_shown(item) for item in value)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if type(value) is dict:
        inner = ", ".join(f"{_shown(k)}: {_shown(v)}" for k, v in value.items())
        return f"{{{inner}}}"
    if callable(value) and hasattr(value, "__qualname__"):
        return _dotted(value)
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _dotted(target: Any) -> str:
    name = getattr(target, "__qualname__", None)
    if name is None:
        return f"<{type(target).__name__}>"
    module = getattr(target, "__module__", None)
    if "<lambda>" in name or "<locals>" in name:
        code = getattr(target, "__code__", None)
        line = f":{code.co_firstlineno}" if code is not None else ""
        return f"{module}.{name}{line}"
    return name if module in (None, "builtins") else f"{module}.{name}"


def _values(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        path, equals, value = line.partition(" = ")
        if equals and not line.startswith("#"):
            found[path] = value.partition("  # ")[0]
    return found
