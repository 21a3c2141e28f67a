"""Values of a learning-rate schedule, computed by numpy instead of on a device.

A schedule is traced to its jaxpr, which needs no backend, and the few operations that
schedules are made of are done on the host.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np


class NeedsDeviceError(Exception):
    """A schedule does something that is not done here."""


def on_host(schedule: Callable[[Any], Any]) -> Callable[[int], float]:
    """The schedule as a function of a step, without a device.

    Raises:
      NeedsDeviceError: it cannot be traced, or holds an unknown operation (this also
        by the function that comes back).
    """
    import jax

    if not callable(schedule):
        return lambda step: float(schedule)
    try:
        traced = jax.make_jaxpr(schedule)(jax.ShapeDtypeStruct((), np.int32))
    except Exception as err:
        raise NeedsDeviceError(f"it cannot be traced: {type(err).__name__}.") from err

    def rate(step: int) -> float:
        with np.errstate(all="ignore"):
            (value,) = _run(traced.jaxpr, traced.consts, [np.int32(step)])
        return float(value)

    return rate


def _run(jaxpr: Any, consts: Any, arguments: list[Any]) -> list[Any]:
    """The outputs of a jaxpr whose values are all scalars."""
    values = dict(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        if hasattr(atom, "val"):  # a literal
            return np.asarray(atom.val, atom.aval.dtype)
        return values[atom]

    for equation in jaxpr.eqns:
        results = _apply(equation, [read(atom) for atom in equation.invars])
        values |= dict(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any]) -> list[Any]:
    name, parameters = equation.primitive.name, equation.params
    inner = parameters.get("jaxpr") or parameters.get("call_jaxpr")
    if name == "cond":
        inner = parameters["branches"][int(inputs[0])]
        inputs = inputs[1:]
    if inner is not None:
        return _run(
            getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs
        )
    if name in _UNCHANGED:
        return [inputs[0]]
    if name == "integer_pow":
        return [inputs[0] ** parameters["y"]]
    if name == "convert_element_type":
        return [np.asarray(inputs[0]).astype(parameters["new_dtype"])]
    operation = _OPERATIONS.get(name)
    if operation is None or any(np.ndim(value) for value in inputs):
        raise NeedsDeviceError(f"the operation {name!r} needs a device.")
    return [np.asarray(operation(*inputs)).astype(equation.outvars[0].aval.dtype)]


def _div(one: Any, other: Any) -> Any:
    if np.issubdtype(np.asarray(one).dtype, np.integer):
        return math.trunc(one / other) if other else 0
    return one / other


def _select(which: Any, *cases: Any) -> Any:
    return cases[int(which)]


def _clamp(least: Any, value: Any, most: Any) -> Any:
    return np.minimum(np.maximum(value, least), most)


_UNCHANGED = {"copy", "stop_gradient", "broadcast_in_dim", "reshape", "squeeze"}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "rem": np.fmod,
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "is_finite": np.isfinite,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "xor": np.bitwise_xor,
    "select_n": _select,
    "clamp": _clamp,
}
