"""`--mode=list`: what can be named on the command line, without importing it."""

import inspect
from collections.abc import Iterator

from roxxel.config import discover, fiddlers, imports
from roxxel.errors import ConfigError

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
    """The fiddlers of a module; none where it cannot be imported."""
    try:
        if not module or not imports.exists(module):
            return
        loaded = imports.load(module)
    except ConfigError:
        return
    for name in fiddlers.names(loaded):
        yield name, _summary(getattr(loaded, name))


def tags() -> Iterator[Row]:
    """The tags of `configs.tags`."""
    try:
        if not imports.exists(TAGS_MODULE):
            return
        loaded = imports.load(TAGS_MODULE)
    except ConfigError:
        return
    for name, value in vars(loaded).items():
        if inspect.isclass(value) and value.__module__ == TAGS_MODULE:
            yield name, _summary(value)


def _summary(value: object) -> str:
    lines = (inspect.getdoc(value) or "").splitlines()
    return lines[0] if lines else ""
