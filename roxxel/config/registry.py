"""The registry of experiments: functions by short name, recorded as modules import.

Decorating needs no fiddle and no jax, so a user's own package registers its
experiments by being imported.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from roxxel.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Entry:
    """A registered experiment."""

    name: str
    function: Callable[..., Any]

    @property
    def module(self) -> str:
        """The module that defines the function."""
        return self.function.__module__

    @property
    def where(self) -> str:
        """`file:line` of the function."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        if code is None:
            return self.module
        return f"{code.co_filename}:{code.co_firstlineno}"


_entries: dict[str, Entry] = {}


@overload
def experiment(function: F, /) -> F: ...
@overload
def experiment(*, name: str | None = None) -> Callable[[F], F]: ...
@overload
def experiment(name: str, /) -> Callable[[F], F]: ...


def experiment(function=None, /, *, name=None):
    """Register a function that returns the `fdl.Config` of a run.

    Usable bare, or with the name under which `--fdl_config` finds the function (by
    default the function's own)::

        @roxxel.experiment
        def ssm_small(d_model: int = 192) -> fdl.Config: ...

    The function's arguments are the knobs of the experiment.

    Raises:
      ConfigError: another function has that name already.
    """
    if isinstance(function, str):
        function, name = None, function
    if function is None:
        return functools.partial(_register, name=name)
    return _register(function, name=name)


def find(name: str) -> Entry | None:
    """The experiment registered under `name`, or None."""
    return _entries.get(name)


def entries() -> list[Entry]:
    """All experiments registered so far, by name."""
    return [_entries[name] for name in sorted(_entries)]


def name_of(function: Callable[..., Any]) -> str:
    """The registered name of a function, or else its own."""
    for entry in _entries.values():
        if entry.function is function:
            return entry.name
    return _own_name(function)


def _register(function: F, *, name: str | None) -> F:
    if not callable(function):
        raise TypeError(f"@experiment decorates functions, got {function!r}.")
    _record(Entry(name or _own_name(function), function))
    return function


def _record(entry: Entry) -> None:
    known = _entries.get(entry.name)
    if known is not None and not _same_definition(known.function, entry.function):
        raise ConfigError(
            f"two experiments are called {entry.name!r}: {known.where} and "
            f"{entry.where}. Rename one, or register it as @experiment('other_name')."
        )
    _entries[entry.name] = entry


def _same_definition(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether both are one definition, imported again."""
    return _identity(one) == _identity(other)


def _identity(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, getattr(function, "__qualname__", "")


def _own_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    return name or type(function).__name__
