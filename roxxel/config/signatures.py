"""The arguments of what a node builds, seen through metaclasses.

`inspect.signature` of a Flax NNX module is `(*args, **kwargs)`, because its metaclass
has a `__call__` of its own; so fiddle takes any name for a field of one, misspelled
ones too. The arguments of its `__init__` are what counts.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fiddle import signatures as fdl_signatures


def parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or class, without `self`.

    Raises:
      TypeError, ValueError: it has no signature.
    """
    if isinstance(target, type) and type(target).__call__ is not type.__call__:
        return _without_self(target)
    return fdl_signatures.get_signature(target).parameters


def names(target: Callable[..., Any]) -> list[str]:
    """The names of the parameters that can be given by name or position."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = parameters(target)
    return [name for name, parameter in found.items() if parameter.kind not in variadic]


def takes_any_name(target: Callable[..., Any]) -> bool:
    """Whether there is a `**kwargs`."""
    kinds = {parameter.kind for parameter in parameters(target).values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


def _without_self(target: type) -> dict[str, inspect.Parameter]:
    if target.__init__ is object.__init__:
        return dict(fdl_signatures.get_signature(target).parameters)
    found = inspect.signature(target.__init__).parameters
    return dict(list(found.items())[1:])
