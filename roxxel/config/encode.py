"""Replaces values that JSON cannot hold by nodes of `stored`, and back."""

import dataclasses
import enum
import functools
import inspect
import operator
import sys
import types
from pathlib import PurePath
from typing import Any

import fiddle as fdl
from fiddle import daglish
from fiddle.experimental import serialization

from roxxel.config import imports, stored, text

MAX_ARRAY_ELEMENTS = 4096  # in a config file

# Where an object that knows only its bare name may be importable from.
_PUBLIC_MODULES = ("jax.nn", "jax.numpy", "numpy", "jax.lax", "optax", "flax.nnx")
_PLAIN = (bool, int, float, str, type(None))
_FUNCTIONS = {
    value
    for value in vars(stored).values()
    if inspect.isfunction(value) and value.__module__ == stored.__name__
}


def encode(root: Any) -> tuple[Any, list[str]]:
    """A copy of a graph that JSON can hold, and the paths of what it could not."""
    lost: list[str] = []

    def visit(value: Any, state: daglish.State) -> Any:
        where = daglish.path_str(state.current_path).lstrip(".") or "<root>"
        if isinstance(value, fdl.Buildable) and not _importable(
            fdl.get_callable(value)
        ):
            lost.append(where)
            return fdl.Config(stored.unstorable, f"<{text.show_target(value)}>")
        if state.is_traversable(value):
            return state.map_children(value)
        encoded = _encode_leaf(value)
        if encoded is _LOST:
            lost.append(where)
            return fdl.Config(stored.unstorable, text.show_value(value))
        return encoded

    return daglish.MemoizedTraversal.run(visit, root), lost


def decode(root: Any) -> Any:
    """A graph with the stored values in place of the nodes that stand for them."""

    def visit(value: Any, state: daglish.State) -> Any:
        if not state.is_traversable(value):
            return value
        value = state.map_children(value)
        if not isinstance(value, fdl.Buildable):
            return value
        function = fdl.get_callable(value)
        if function not in _FUNCTIONS or function is stored.unstorable:
            return value
        if any(_has_nodes(argument) for argument in value.__arguments__.values()):
            return value  # built with the graph
        return function(**{str(key): v for key, v in value.__arguments__.items()})

    return daglish.MemoizedTraversal.run(visit, root)


class _Lost:
    """The type of the mark for a value that cannot be stored."""


_LOST = _Lost()


def _encode_leaf(value: Any) -> Any:
    if type(value) in _PLAIN or value is fdl.NO_VALUE:
        return value
    if isinstance(value, (bytes, slice)) or type(value) in (set, frozenset):
        return value if _dumps(value) else _LOST
    if isinstance(value, enum.Enum):
        return value if _importable(type(value)) else _LOST
    if isinstance(value, (str, int, float)):  # a subclass
        kind = next(plain for plain in (str, int, float) if isinstance(value, plain))
        return kind(value)
    for encoder in (_encode_numpy, _encode_python, _encode_jax, _encode_instance):
        encoded = encoder(value)
        if encoded is not None:
            return encoded
    return value if _importable(value) else _LOST


def _encode_numpy(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.generic):
        item = value.item()
        return item if type(item) in _PLAIN else _encode_leaf(item)
    if isinstance(value, numpy.dtype):
        plain = value.names is None and value.isnative
        return fdl.Config(stored.dtype, name=value.name) if plain else None
    if isinstance(value, numpy.ndarray):
        return _encode_array(value)
    return None


def _encode_array(value: Any) -> Any:
    if value.size > MAX_ARRAY_ELEMENTS or value.dtype.kind not in "biufV":
        return _LOST
    if value.dtype.names is not None:
        return _LOST
    values = value.astype("float64") if value.dtype.kind in "fV" else value
    return fdl.Config(
        stored.array,
        values=values.ravel().tolist(),
        dtype_name=value.dtype.name,
        shape=tuple(value.shape),
    )


def _encode_python(value: Any) -> Any:
    if isinstance(value, PurePath):
        return fdl.Config(stored.path, text=str(value))
    if isinstance(value, functools.partial):
        parts = (value.func, list(value.args), dict(value.keywords))
        function, args, keywords = (encode(part)[0] for part in parts)
        if any(encode(part)[1] for part in parts):
            return _LOST
        return fdl.Config(
            stored.partial, function=function, args=args, keywords=keywords
        )
    if isinstance(value, complex):
        return fdl.Config(stored.number, real=value.real, imag=value.imag)
    if isinstance(value, range):
        return fdl.Config(
            stored.span, start=value.start, stop=value.stop, step=value.step
        )
    return fdl.Config(stored.dots) if value is ... else None


def _encode_jax(value: Any) -> Any:
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    if isinstance(value, jax.sharding.PartitionSpec):
        axes, lost = encode(list(value))
        return _LOST if lost else fdl.Config(stored.partition_spec, axes=axes)
    if not isinstance(value, jax.Array):
        return None
    try:
        import numpy as np

        return _encode_array(np.asarray(value))
    except Exception:
        return _LOST  # keys, tracers and arrays of other processes


def _encode_instance(value: Any) -> Any:
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return None
    fields = dataclasses.fields(value)
    if not all(field.init for field in fields) or not _importable(type(value)):
        return None
    values = {field.name: getattr(value, field.name) for field in fields}
    encoded, lost = encode(values)
    return (
        _LOST if lost else fdl.Config(stored.instance, cls=type(value), fields=encoded)
    )


def _importable(value: Any) -> bool:
    """Whether a function, class or object can be had again by importing a name.

    Objects that are neither are registered with fiddle under the name they have.
    """
    if isinstance(value, (type, types.FunctionType, types.MethodType)):
        return _same(value.__module__, value.__qualname__, value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return False
    modules = (getattr(value, "__module__", None), *_PUBLIC_MODULES)
    for module in filter(None, modules):
        if module in sys.modules and _same(module, name, value):
            serialization.register_constant(module, name, compare_by_identity=True)
            return True
    return False


def _same(module: str, qualname: str, value: Any) -> bool:
    if module == "__main__" or "<" in qualname:
        return False
    try:
        found = operator.attrgetter(qualname)(imports.load(module))
    except (AttributeError, imports.BrokenModuleError):
        return False
    return found is value or (isinstance(value, types.MethodType) and found == value)


def _dumps(value: Any) -> bool:
    try:
        serialization.dump_json(value)
    except Exception:
        return False
    return True


def _has_nodes(value: Any) -> bool:
    return any(isinstance(leaf, fdl.Buildable) for leaf, _ in daglish.iterate(value))
