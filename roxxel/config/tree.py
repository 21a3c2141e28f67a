"""A graph as a tree: one row a value, below the node that it belongs to."""

import dataclasses
from collections.abc import Iterable

import fiddle as fdl

from roxxel.config import graph, paths, suggest, text
from roxxel.errors import ConfigError

ROOT = "<root>"


@dataclasses.dataclass(frozen=True)
class Row:
    """One value: `depth` below the root, `name` in its parent, `value` as text.

    `shared` is the path of the same node shown elsewhere, or None; a value that is
    shown below another path is not repeated.
    """

    path: str
    depth: int
    name: str
    value: str
    marks: tuple[str, ...] = ()
    shared: str | None = None

    @property
    def is_node(self) -> bool:
        """Whether the value is built from fields, or holds such values."""
        is_made = self.value.startswith("<made by ")
        return self.value[0] == "<" and self.value != text.NO_VALUE and not is_made

    @property
    def label(self) -> str:
        """`name = value` as a reader wants it."""
        if self.shared is not None:
            shown = f"same as {self.shared}"
        else:
            shown = self.value[1:-1] if self.value[0] == "<" else self.value
        joint = ": " if self.is_node else " = "
        return f"{self.name}{joint}{shown}" if self.name else shown


def rows(root: fdl.Buildable, path: str | None = None) -> list[Row]:
    """All rows of a graph, or those of `path` and below.

    Raises:
      ConfigError: there is nothing at `path`.
    """
    lines = text.flat(root)
    if path is not None:
        lines = _below(root, lines, path)
    found: list[Row] = []
    shown: set[tuple] = set()
    for line in lines:
        found += _containers(line, shown)
        found.append(_row(line))
    least = min(row.depth for row in found)
    return [dataclasses.replace(row, depth=row.depth - least) for row in found]


def branches(depths: Iterable[int]) -> list[str]:
    """The lines that lead to each row of a tree, from the rows' depths."""
    drawn: list[str] = []
    open_below: list[bool] = []  # by depth: whether a later sibling comes
    for depth in reversed(list(depths)):
        open_below += [False] * (depth + 1 - len(open_below))
        stem = "".join("│  " if more else "   " for more in open_below[1:depth])
        knot = ("├─ " if open_below[depth] else "└─ ") if depth else ""
        drawn.append(stem + knot)
        open_below[depth] = True
        del open_below[depth + 1 :]
    return drawn[::-1]


def _row(line: text.Line) -> Row:
    if line.path == ROOT:
        return Row("", 0, "", line.value, line.marks)
    elements = paths.parse(line.path)
    shared = None
    if line.value.startswith("<shared with "):
        shared = line.value.removeprefix("<shared with ").removesuffix(">")
    name = paths.show(elements[-1:])
    return Row(line.path, len(elements), name, line.value, line.marks, shared)


def _containers(line: text.Line, shown: set[tuple]) -> list[Row]:
    """Rows for lists and dicts of nodes, of which the flat text has only elements."""
    if line.path == ROOT:
        return []
    elements = paths.parse(line.path)
    shown.add(tuple(elements))
    missing = []
    for length in range(1, len(elements)):
        above = tuple(elements[:length])
        is_container = not isinstance(elements[length], paths.Name)
        if is_container and above not in shown:
            shown.add(above)
            path = paths.show(list(above))
            missing.append(Row(path, length, paths.show([above[-1]]), "<several>"))
    return missing


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
