"""Functions, classes and sub-graphs by name: `jax.nn.gelu`, `configs.models.x(d=8)`."""

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from roxxel.config import calls, hints, imports, scalars, signatures, suggest
from roxxel.config.scalars import MismatchError
from roxxel.errors import ConfigError

# Where a name without dots is looked up, after the module of the current value.
SHORT_NAME_MODULES = ("jax.nn", "optax", "jax.numpy")
# Modules of the standard library that make values and do nothing else.
_VALUE_MODULES = ("collections", "datetime", "decimal", "fractions", "math", "pathlib")


def is_call(text: str) -> bool:
    """Whether text is `dotted.name(...)`, with a dot or a parenthesis to tell."""
    return calls.looks_like_call(text)


def parse_callable(text: str, hint: Any, current: Any) -> Any:
    """The function or class called `text`.

    A call with arguments is a sub-graph that builds the function: a `fdl.Config`, or
    a `fdl.Partial` where the field holds one now.
    """
    if is_call(text):
        is_partial = isinstance(current, (fdl.Partial, functools.partial))
        kind = fdl.Partial if is_partial or hint is functools.partial else fdl.Config
        return _subgraph(calls.parse(text), kind)
    word = scalars.unquote(text.strip())
    if not calls.is_dotted_name(word):
        raise MismatchError("the dotted name of a function or class")
    value = _lookup(word, current)
    if _is_fragment(value):
        return _call_fragment(value, calls.Call(name=word))
    if typing.get_origin(hint) is type and not isinstance(value, type):
        raise MismatchError(hints.show(hint), f"{word} is not a class.")
    if not callable(value):
        raise MismatchError("a function or class", f"{word} is of type {_kind(value)}.")
    return value


def parse_node(text: str, hint: Any, current: Any) -> Any:
    """A sub-graph from a call such as `configs.models.x(d_model=256)`.

    A plain class or function becomes a `fdl.Config` of it; a function that returns a
    graph is called.
    """
    if current is not None and isinstance(current, fdl.Buildable):
        target = fdl.get_callable(current)
        expected = f"a call such as {_shown_call(target)}"
    else:
        expected = f"{hints.show(hint)}: a call such as package.function(arg=1)"
    word = text.strip()
    if not is_call(word) and not (calls.is_dotted_name(word) and "." in word):
        raise MismatchError(expected)
    call = calls.parse(word)
    if not call.is_call and isinstance(hint, type):
        value = _lookup(call.name, None)
        if not isinstance(value, type) and _is_instance(value, hint):
            return value
    return _subgraph(call, fdl.Config)


def _is_instance(value: Any, kind: type) -> bool:
    if getattr(kind, "_is_protocol", False):  # it may not be asked
        return False
    return isinstance(value, kind)


def bind(
    function: Callable[..., Any], call: calls.Call, *, skip: int = 0
) -> dict[str, Any]:
    """The arguments of a call, typed by the function's annotations.

    Positional arguments come back under their parameter's name. The first `skip`
    parameters are not the call's to give.

    Raises:
      ConfigError: an unknown, missing, doubled or mistyped argument.
    """
    parameters = dict(list(_parameters(function).items())[skip:])
    names = [
        parameter.name
        for parameter in parameters.values()
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(call.args) > len(names):
        raise ConfigError(
            f"{call.name} takes {len(names)} positional arguments, "
            f"got {len(call.args)}.{suggest.did_you_mean('', parameters)}"
        )
    texts = dict(zip(names, call.args, strict=False))
    for name, text in call.kwargs.items():
        if name in texts:
            raise ConfigError(f"{call.name} got its argument {name!r} twice.")
        texts[name] = text
    return {
        name: _argument(function, parameters, call, name, text)
        for name, text in texts.items()
    }


def _argument(
    function: Callable[..., Any],
    parameters: dict[str, inspect.Parameter],
    call: calls.Call,
    name: str,
    text: str,
) -> Any:
    from roxxel.config import values

    parameter = parameters.get(name)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if parameter is None and not takes_any:
        raise ConfigError(
            f"{call.name} has no argument {name!r}."
            f"{suggest.did_you_mean(name, parameters, what='arguments')}"
        )
    current = parameter.default if parameter is not None else scalars.NOTHING
    try:
        return values.parse(text, hints.of_field(function, name), current)
    except MismatchError as err:
        where = f"{call.name}({name}={text})"
        message = f"{where}: expected {err.expected}, got {text!r}.{err.advice}"
        raise ConfigError(message) from err


def _subgraph(call: calls.Call, kind: type[fdl.Buildable]) -> Any:
    target = _lookup(call.name, None)
    if not callable(target):
        raise MismatchError(
            "a function or class", f"{call.name} is of type {_kind(target)}."
        )
    if _is_fragment(target):
        return _call_fragment(target, call)
    if target is functools.partial:
        return _partial(call)
    _check_may_be_called(target, call.name)
    return _node(kind, target, bind(target, call), call.name)


def _partial(call: calls.Call) -> fdl.Buildable:
    """`functools.partial(function, ...)` as a node whose fields can be changed."""
    word, *args = call.args or [""]
    if not calls.is_dotted_name(word):
        raise MismatchError("functools.partial(package.function, arg=1)")
    target = _lookup(word, None)
    if not callable(target):
        raise MismatchError(
            "a function or class", f"{word} is of type {_kind(target)}."
        )
    inner = dataclasses.replace(call, name=word, args=tuple(args))
    return _node(fdl.Partial, target, bind(target, inner), word)


def _node(
    kind: type[fdl.Buildable], target: Any, arguments: dict[str, Any], name: str
) -> fdl.Buildable:
    try:
        return kind(target, **arguments)
    except (TypeError, ValueError) as err:  # fiddle cannot hold such arguments
        raise ConfigError(
            f"{name} cannot be configured: {imports.one_line(err)}"
        ) from err


def _check_may_be_called(target: Any, name: str) -> None:
    """Of the standard library only what makes values is called for a field."""
    home = str(getattr(target, "__module__", None) or "")
    if not imports.is_standard(home):
        return
    if home == "builtins":
        okay = isinstance(target, type) and target is not type
    else:
        okay = home.partition(".")[0] in _VALUE_MODULES
    if not okay:
        raise MismatchError(
            "a function or class of a package",
            f"{name} is of Python's standard library; of it only "
            f"{', '.join(_VALUE_MODULES)} are called.",
        )


def _call_fragment(function: Any, call: calls.Call) -> Any:
    arguments = bind(function, call)
    try:
        return function(**arguments)
    except ConfigError:
        raise
    except imports.FAILURES as err:
        where = imports.location(err)
        message = f"{call.name} failed at {where}: {imports.one_line(err)}"
        raise ConfigError(message) from err


def _is_fragment(value: Any) -> bool:
    """Whether a function says by its return annotation that it makes a graph."""
    if not inspect.isfunction(value):
        return False
    returns = inspect.unwrap(value).__annotations__.get("return")
    text = returns if isinstance(returns, str) else getattr(returns, "__name__", "")
    origin = typing.get_origin(returns) or returns
    is_buildable = isinstance(origin, type) and issubclass(origin, fdl.Buildable)
    name = str(text).partition("[")[0].rpartition(".")[2]
    return is_buildable or name in ("Config", "Partial", "Buildable", "ArgFactory")


def _lookup(name: str, current: Any) -> Any:
    try:
        return imports.symbol(name) if "." in name else _short(name, current)
    except imports.MissingNameError as err:
        options = (
            [] if err.parent is None else [n for n in dir(err.parent) if n[0] != "_"]
        )
        matches = suggest.close_matches(err.missing, options)
        hint = f"{err}."
        if matches:
            hint += f" Did you mean {' or '.join(matches)}?"
        raise MismatchError("the name of a function or class", hint) from err


def _short(name: str, current: Any) -> Any:
    options: set[str] = set()
    for module_name in _short_name_modules(current):
        module = sys.modules.get(module_name)
        if module is None:
            continue
        value = getattr(module, name, None)
        if callable(value):
            return value
        options.update(n for n in dir(module) if n[0] != "_")
    matches = suggest.close_matches(name, options)
    hint = f"Did you mean {' or '.join(matches)}?" if matches else ""
    raise MismatchError("the dotted name of a function or class", hint)


def _short_name_modules(current: Any) -> list[str]:
    if isinstance(current, functools.partial):
        current = current.func
    if isinstance(current, fdl.Buildable):
        current = fdl.get_callable(current)
    own = getattr(current, "__module__", None)
    return [own, *SHORT_NAME_MODULES] if own else list(SHORT_NAME_MODULES)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(signatures.parameters(function))
    except (TypeError, ValueError) as err:
        raise ConfigError(f"{function!r} has no signature to configure.") from err


def _shown_call(target: Any) -> str:
    module = getattr(target, "__module__", "")
    name = getattr(target, "__qualname__", str(target))
    return f"{module}.{name}(...)"


def _kind(value: Any) -> str:
    return type(value).__name__
