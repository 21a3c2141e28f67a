"""Nodes that a graph reaches by several paths, each known by its shortest one."""

import collections
from typing import Any

import fiddle as fdl

from roxxel.config import graph
from roxxel.errors import ConfigError


def shortest_paths(root: fdl.Buildable) -> dict[int, str]:
    """The shortest path of each node, by the node's id; ties go to the first."""
    found: dict[int, str] = {}
    queue = collections.deque([(root, "")])
    while queue:
        value, path = queue.popleft()
        if isinstance(value, fdl.Buildable):
            if id(value) in found:
                continue
            found[id(value)] = path
        queue.extend(_children(value, path))
    return found


def users(root: fdl.Buildable, node: fdl.Buildable) -> list[str]:
    """The paths of all fields and elements that hold a node."""
    found = []
    queue: collections.deque[tuple[Any, str]] = collections.deque([(root, "")])
    seen = set()
    while queue:
        value, path = queue.popleft()
        if isinstance(value, fdl.Buildable):
            if value is node:
                found.append(path)
            if id(value) in seen:
                continue
            seen.add(id(value))
        queue.extend(_children(value, path))
    return found


def canonical(root: fdl.Buildable, path: str) -> str:
    """The shortest path of the node at `path`; `path` itself where there is no node."""
    if not path:
        return path
    try:
        value = graph.slot(root, path).value
    except ConfigError:
        return path
    return shortest_paths(root).get(id(value), path)


def _children(value: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(value, fdl.Buildable):
        return [
            (child, _joined(path, key)) for key, child in value.__arguments__.items()
        ]
    if isinstance(value, dict):
        return [(child, f"{path}[{key!r}]") for key, child in value.items()]
    if isinstance(value, (list, tuple)):
        return [(child, f"{path}[{index}]") for index, child in enumerate(value)]
    return []


def _joined(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key
