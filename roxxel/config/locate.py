"""From the name in `--fdl_config` to the function that makes the experiment."""

import dataclasses
import inspect
import os
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from roxxel.config import discover, imports, registry, suggest
from roxxel.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Located:
    """An experiment's function and its short name (that of the work directory)."""

    name: str
    function: Callable[..., Any]

    @property
    def dotted(self) -> str:
        """Module and name of the function."""
        function = inspect.unwrap(self.function)
        qualname = getattr(function, "__qualname__", self.name)
        return f"{function.__module__}.{qualname}"


def experiment(name: str) -> Located:
    """The experiment that `name` means.

    A name without dots is looked up in the registry, in the package `experiments`,
    among the entry points of installed packages, and as a module. A dotted name is a
    function, or a module or package with one experiment.

    Raises:
      ConfigError: nothing, or more than one, has that name; or its module is broken.
    """
    if "." not in name:
        entry = discover.load_by_name(name)
        if entry is not None:
            return Located(entry.name, entry.function)
        _import_same_named(name)
    if imports.is_standard(name):
        raise ConfigError(_standard(name))
    try:
        module, rest = imports.load_longest(name)
    except imports.MissingNameError as err:
        raise ConfigError(_no_such(name)) from err
    if not rest:
        return _of_module(module)
    return _in_module(module, rest, name)


def _import_same_named(name: str) -> None:
    """Point at `experiments/NAME.py` where that file holds no experiment NAME."""
    dotted = f"{discover.DEFAULT_PACKAGE}.{name}"
    if not imports.exists(discover.DEFAULT_PACKAGE) or not imports.exists(dotted):
        return
    module = imports.load(dotted)
    raise ConfigError(
        f"--fdl_config={name}: {dotted} defines no experiment called {name!r}."
        f"{_choice(module)}"
    )


def _of_module(module: ModuleType) -> Located:
    """The one experiment of a module, or the one that has the module's name."""
    own_name = module.__name__.rpartition(".")[2]
    entries = discover.of_module(module)
    for entry in entries:
        if entry.name == own_name or entry.function.__name__ == own_name:
            return Located(entry.name, entry.function)
    if len(entries) == 1:
        return Located(entries[0].name, entries[0].function)
    function = vars(module).get(own_name)
    if not entries and inspect.isfunction(function):
        return Located(own_name, function)
    kind = "package" if hasattr(module, "__path__") else "module"
    if entries or (kind == "package" and discover.in_package(module.__name__)):
        raise ConfigError(
            f"--fdl_config={module.__name__} is a {kind}; name one of its experiments."
            f"{_choice(module)}"
        )
    raise ConfigError(
        f"--fdl_config={module.__name__} is a {kind} that defines no experiment: "
        "decorate a function there with @roxxel.experiment."
    )


def _in_module(module: ModuleType, rest: list[str], name: str) -> Located:
    entry = _registered_as(module, rest)
    if entry is not None:
        return Located(entry.name, entry.function)
    value: Any = module
    for part in rest:
        try:
            value = getattr(value, part)
        except AttributeError as err:
            raise ConfigError(_not_in_module(module, value, part, name)) from err
    if isinstance(value, ModuleType):
        return _of_module(value)
    if not callable(value):
        raise ConfigError(
            f"--fdl_config={name} is of type {type(value).__name__}; expected a "
            "function that returns a fdl.Config."
        )
    if imports.is_standard(str(getattr(value, "__module__", None) or "")):
        raise ConfigError(_standard(name))
    return Located(registry.name_of(value), value)


def _standard(name: str) -> str:
    return (
        f"--fdl_config={name}: {name} is of Python's standard library, no experiment."
        f"{suggest.did_you_mean(name, discover.names())}"
    )


def _registered_as(module: ModuleType, rest: list[str]) -> registry.Entry | None:
    if len(rest) != 1:
        return None
    for entry in discover.of_module(module):
        if entry.name == rest[0]:
            return entry
    return None


def _not_in_module(module: ModuleType, owner: Any, part: str, name: str) -> str:
    if owner is module:
        kind = "package" if hasattr(module, "__path__") else "module"
        text = f"--fdl_config={name}: the {kind} {module.__name__} has no experiment"
        return f"{text} {part!r}.{_choice(module, part)}"
    owner_name = getattr(owner, "__qualname__", type(owner).__name__)
    return f"--fdl_config={name}: {owner_name} has no {part!r}."


def _choice(module: ModuleType, wrong: str = "") -> str:
    options = {entry.name for entry in discover.of_module(module)}
    if hasattr(module, "__path__"):
        options |= {found.name for found in discover.in_package(module.__name__)}
    functions = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    if suggest.close_matches(wrong, options | functions):
        return suggest.did_you_mean(wrong, options | functions)
    return suggest.did_you_mean(wrong, options or functions)


def _no_such(name: str) -> str:
    first, dot, rest = name.partition(".")
    options = discover.names()
    if dot:
        text = f"--fdl_config={name}: there is no module {first!r} in {os.getcwd()} "
        text += "or among the installed packages."
        here = [found.name for found in pkgutil.iter_modules([os.getcwd()])]
        close = suggest.close_matches(first, [*here, discover.DEFAULT_PACKAGE], limit=1)
        if close:
            return f"{text} Did you mean {close[0]}.{rest}?"
        if rest == "py" and suggest.close_matches(first, options):
            return text + suggest.did_you_mean(first, options)
        dotted = [f"{discover.DEFAULT_PACKAGE}.{option}" for option in options]
        return text + suggest.did_you_mean(name, dotted)
    text = f"--fdl_config={name}: there is no experiment {name!r}; looked in "
    text += f"{discover.place() or f'{os.getcwd()}, which has no package experiments'}."
    return text + suggest.did_you_mean(name, options)
