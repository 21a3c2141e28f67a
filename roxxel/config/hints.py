"""Annotations of the fields of a configured function or class."""

import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from roxxel.config import dtypes, signatures

UNKNOWN = Any  # the hint of a field whose annotation says nothing


def of_field(target: Callable[..., Any], field: str | int) -> Any:
    """The annotation of an argument of `target`, or `UNKNOWN`.

    Annotations are resolved one by one: a name that exists only for type checkers
    spoils its own field and no other.
    """
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(field, int):
        field = _positional_name(target, field)
    for owner, scope in _annotated(target):
        annotations = _annotations(owner)
        if field in annotations:
            return strip(_resolved(annotations[field], scope))
    return _keyword_hint(target, field)


def strip(hint: Any) -> Any:
    """A hint without Annotated, NewType, aliases and variables around it."""
    if hint is inspect.Parameter.empty or hint is dataclasses.MISSING:
        return UNKNOWN
    if typing.get_origin(hint) is typing.Annotated:
        return strip(typing.get_args(hint)[0])
    if hasattr(hint, "__supertype__"):
        return strip(hint.__supertype__)
    if type(hint).__name__ == "TypeAliasType":
        return strip(hint.__value__)
    if isinstance(hint, typing.TypeVar):
        return strip(hint.__bound__) if hint.__bound__ else UNKNOWN
    if typing.get_origin(hint) in (typing.Final, typing.ClassVar, dataclasses.InitVar):
        return strip((*typing.get_args(hint), UNKNOWN)[0])
    if isinstance(hint, dataclasses.InitVar):
        return strip(hint.type)
    if hint is None:
        return type(None)
    return UNKNOWN if hint is object else hint


def is_union(hint: Any) -> bool:
    """Whether a hint is `A | B` or `Union[A, B]`."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def members(hint: Any) -> list[Any]:
    """The alternatives of a union, nested ones included; or the hint alone."""
    hint = strip(hint)
    if not is_union(hint):
        return [hint]
    return [inner for arg in typing.get_args(hint) for inner in members(arg)]


def show(hint: Any) -> str:
    """A hint as a user would write it."""
    if hint is UNKNOWN:
        return "any value"
    if dtypes.is_dtype_hint(hint):
        return "dtype | None" if type(None) in members(hint) else "dtype"
    if hint is type(None):
        return "None"
    if is_union(hint):
        return " | ".join(show(member) for member in members(hint))
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    if typing.get_origin(hint) is Callable:
        return "Callable"
    return re.sub(r"[A-Za-z_][\w.]*\.(?=\w)", "", str(hint)).replace("NoneType", "None")


def _annotated(target: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Objects with annotations that may hold the field, and their scopes."""
    if not isinstance(target, type):
        function = inspect.unwrap(target)
        if not hasattr(function, "__annotations__"):
            function = vars(type(function)).get("__call__", function)
        return [(function, getattr(function, "__globals__", {}))]
    if dataclasses.is_dataclass(target):
        return [(base, _module_scope(base)) for base in target.__mro__]
    for base in target.__mro__[:-1]:
        for name in ("__init__", "__new__"):
            if name in vars(base):
                function = inspect.unwrap(vars(base)[name])
                return [(function, getattr(function, "__globals__", {}))]
    return [(base, _module_scope(base)) for base in target.__mro__]


def _annotations(owner: Any) -> dict[str, Any]:
    if isinstance(owner, type):
        return inspect.get_annotations(owner)
    return getattr(owner, "__annotations__", {})


def _module_scope(owner: Any) -> dict[str, Any]:
    return vars(sys.modules.get(owner.__module__, types.ModuleType("none")))


def _resolved(annotation: Any, scope: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        hints = typing.get_type_hints(holder, globalns=scope, include_extras=True)
    except Exception:
        return UNKNOWN  # names for type checkers only; the value's type decides
    return hints["value"]


def _positional_name(target: Any, index: int) -> str:
    parameters = list(signatures.parameters(target).values())
    for parameter in parameters[: index + 1]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            return parameter.name
    return parameters[index].name if index < len(parameters) else ""


def _keyword_hint(target: Any, field: str) -> Any:
    """The annotation of `**kwargs`, for a field that has no parameter of its own."""
    try:
        parameters = signatures.parameters(target)
    except (TypeError, ValueError):
        return UNKNOWN
    if field in parameters:
        return UNKNOWN
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return of_field(target, parameter.name)
    return UNKNOWN
