"""`--fiddler=NAME(args)`: change a whole graph by a function of `configs.fiddlers`."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import fiddle as fdl

from roxxel.config import calls, imports, override, suggest, symbols
from roxxel.errors import ConfigError

PACKAGE = "configs.fiddlers"
_GRAPH_NAMES = ("config", "cfg", "root", "graph")


def apply(
    root: fdl.Buildable, text: str, *, flag: str, module: str | None = None
) -> fdl.Buildable:
    """The graph after the fiddler called in `text`.

    Args:
      root: the graph; the fiddler may change it in place, or return another one.
      text: `name` or `name(arg=value)`; a dotted name, or a function of
        `configs.fiddlers` or of the experiment's own module.
      flag: the flag as typed, for messages.
      module: the experiment's own module.

    Raises:
      ConfigError: an unknown fiddler, a wrong argument, or an error inside of it.
    """
    try:
        call = calls.parse(text)
        function = find(call.name, module)
        arguments = symbols.bind(function, call, skip=1)
    except ConfigError as err:
        raise ConfigError(f"{flag}: {err}") from err
    with override.recorded_as(flag):
        result = _call(function, root, arguments, flag)
    if result is None:
        return root
    if not isinstance(result, fdl.Buildable):
        raise ConfigError(
            f"{flag}: the fiddler returned {suggest.shown(result)}; expected None "
            "or a fdl.Config."
        )
    return result


def find(name: str, module: str | None = None) -> Callable[..., Any]:
    """The fiddler called `name`.

    Raises:
      ConfigError: there is none, with close matches.
    """
    if "." in name:
        try:
            return _checked(imports.symbol(name), name)
        except imports.MissingNameError as err:
            owner = err.parent
            options = names(owner) if isinstance(owner, ModuleType) else []
            hint = suggest.did_you_mean(err.missing, options, what="functions")
            raise ConfigError(f"{err}.{hint}") from err
    places = [place for place in (PACKAGE, module) if place and imports.exists(place)]
    options = []
    for place in places:
        loaded = imports.load(place)
        if name in names(loaded):
            return getattr(loaded, name)
        options += names(loaded)
    hint = suggest.did_you_mean(name, options, what="fiddlers")
    raise ConfigError(f"there is no fiddler {name!r} in {PACKAGE}.{hint}")


def names(module: ModuleType) -> list[str]:
    """The public functions that a module defines itself and that take a graph.

    A graph is a first parameter called `config`, `cfg`, `root` or `graph`, or
    annotated as a `fdl.Buildable` or `fdl.Config`.
    """
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and _takes_graph(value)
    ]


def is_graph(name: str, annotation: str) -> bool:
    """Whether a parameter stands for a graph, by its name or annotation."""
    named = name in _GRAPH_NAMES
    return named or "Buildable" in annotation or "Config" in annotation


def _takes_graph(function: Callable[..., Any]) -> bool:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        return False
    return is_graph(first.name, str(first.annotation))


def _checked(value: Any, name: str) -> Callable[..., Any]:
    if not inspect.isfunction(value) or not inspect.signature(value).parameters:
        raise ConfigError(f"{name} is not a function that takes a graph.")
    return value


def _call(
    function: Callable[..., Any], root: fdl.Buildable, arguments: dict, flag: str
) -> Any:
    try:
        return function(root, **arguments)
    except ConfigError as err:
        raise ConfigError(f"{flag}: {err}") from err
    except imports.FAILURES as err:
        where = imports.location(err, within=imports.file_of(function))
        message = f"{flag}: failed at {where}: {imports.one_line(err)}"
        raise ConfigError(message) from err
