"""`--mode=list`: what can be named on the command line, without importing it."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from roxxel.config import discover, fiddlers

TAGS_MODULE = "configs.tags"

Row = tuple[str, str]


def overview() -> str:
    """Experiments, fiddlers and tags, each with the first line of its docstring."""
    parts = []
    for title, rows in (
        ("experiments (--fdl_config=NAME)", experiments()),
        ("fiddlers (--fiddler=NAME)", list(fiddler_rows(fiddlers.PACKAGE))),
        ("tags (--fdl_tag.NAME=VALUE)", list(tags())),
    ):
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"  {name:<{width}}  {summary}".rstrip() for name, summary in rows]
        parts.append("\n".join([title, *(lines or ["  none"])]))
    return "\n\n".join(parts)


def experiments() -> list[Row]:
    """Every experiment that a short name finds."""
    found = {e.name: e.summary for e in discover.in_package(discover.DEFAULT_PACKAGE)}
    return [(name, found.get(name, "")) for name in discover.names()]


def fiddler_rows(module: str | None) -> Iterator[Row]:
    """The fiddlers that the source of a module defines; none where it has none."""
    for node in _definitions(module):
        if isinstance(node, ast.FunctionDef) and _takes_graph(node):
            yield node.name, _summary(node)


def tags() -> Iterator[Row]:
    """The tags of `configs.tags`."""
    for node in _definitions(TAGS_MODULE):
        if isinstance(node, ast.ClassDef):
            yield node.name, _summary(node)


def _definitions(module: str | None) -> list[ast.stmt]:
    """The public functions and classes in the source of a module."""
    try:
        spec = importlib.util.find_spec(module) if module else None
        source = Path(spec.origin or "").read_text("utf-8") if spec else ""
        body = ast.parse(source).body
    except (ImportError, OSError, SyntaxError, ValueError):
        return []  # a broken module is reported when it is asked for
    named = (ast.FunctionDef, ast.ClassDef)
    return [node for node in body if isinstance(node, named) and node.name[0] != "_"]


def _takes_graph(function: ast.FunctionDef) -> bool:
    first = next(iter([*function.args.posonlyargs, *function.args.args]), None)
    if first is None:
        return False
    annotation = ast.unparse(first.annotation) if first.annotation else ""
    return fiddlers.is_graph(first.arg, annotation)


def _summary(node: ast.FunctionDef | ast.ClassDef) -> str:
    lines = (ast.get_docstring(node) or "").splitlines()
    return lines[0] if lines else ""
