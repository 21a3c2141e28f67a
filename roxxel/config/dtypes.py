"""Array element types by name, in whichever form the field uses them.

`jnp.bfloat16`, `np.float32`, `np.dtype("int32")` and plain names are all dtypes; an
override keeps the form of the value that it replaces.
"""

import sys
from typing import Any

from roxxel.config import scalars, suggest

_ALIASES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "f32": "float32",
    "fp32": "float32",
    "f64": "float64",
    "fp64": "float64",
    "bool": "bool_",
}
_PREFIXES = ("jax.numpy.", "jnp.", "numpy.", "np.", "ml_dtypes.")
NAMES = (
    *("bool_", "int4", "int8", "int16", "int32", "int64"),
    *("uint4", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("complex64", "complex128"),
)


def is_dtype(value: Any) -> bool:
    """Whether a value is a dtype: `np.dtype`, numpy scalar type or `jnp.float32`."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(value, numpy.dtype):
        return True
    if isinstance(value, type) and issubclass(value, numpy.generic):
        return True
    return _is_jax_scalar_type(value)


def is_dtype_hint(hint: Any) -> bool:
    """Whether an annotation stands for dtypes."""
    if "DTypeLike" in repr(hint) or "SupportsDType" in repr(hint):
        return True
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(hint, type):
        return issubclass(hint, numpy.dtype)
    return getattr(hint, "__origin__", None) is numpy.dtype


def parse(text: str, current: Any = None) -> Any:
    """The dtype called `text`, in the form of `current`.

    Without a current dtype it is jax.numpy's scalar type, or numpy's without jax.
    """
    name = _canonical(text)
    numpy = sys.modules.get("numpy")
    if isinstance(current, str):
        return name.rstrip("_")
    if numpy is not None and isinstance(current, numpy.dtype):
        return _numpy_dtype(name)
    is_numpy = isinstance(current, type) and not _is_jax_scalar_type(current)
    if "jax" in sys.modules and not is_numpy:
        import jax.numpy as jnp

        if hasattr(jnp, name):
            return getattr(jnp, name)
    dtype = _numpy_dtype(name)
    return dtype.type


def name_of(dtype: Any) -> str:
    """The short name of a dtype in any of its forms."""
    value = getattr(dtype, "dtype", dtype) if _is_jax_scalar_type(dtype) else dtype
    return getattr(value, "name", None) or getattr(value, "__name__", str(value))


def _canonical(text: str) -> str:
    name = scalars.unquote(text.strip())
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    name = _ALIASES.get(name.lower(), name)
    if name not in NAMES:
        options = [option.rstrip("_") for option in NAMES]
        hint = suggest.did_you_mean(name, options, what="dtypes")
        raise scalars.MismatchError("a dtype", hint.strip())
    return name


def _numpy_dtype(name: str) -> Any:
    import numpy as np

    try:
        return np.dtype(name.rstrip("_"))
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _is_jax_scalar_type(value: Any) -> bool:
    return type(value).__name__ == "_ScalarMeta" and hasattr(value, "dtype")
