"""Metric values: checked at the call without touching a device, read on the worker."""

import numbers
import sys
from typing import Any

import numpy as np

_NUMPY = (
    np.generic,
    np.ndarray,
)  # a tuple: the types of a call are asked for every value
_NUMBER_KINDS = "biufV"  # V: bfloat16 and the 8-bit floats of ml_dtypes


def accept(name: str, value: Any) -> Any:
    """`value` as a Python number, or as it is if only its device knows the number.

    Raises:
        ValueError: `value` is not one number; the message names `name`.
    """
    if isinstance(value, _NUMPY):
        _check_array(name, value)
        return fetch(value)  # a copy: the caller may change its array
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if is_device_value(value):
        _check_array(name, value)
        return value
    if isinstance(value, numbers.Real) or hasattr(type(value), "__float__"):
        return float(value)
    raise ValueError(
        f"metric {name!r} is {value!r} ({type(value).__name__}), expected one number; "
        "text belongs into log_message."
    )


def accept_step(step: Any) -> Any:
    """`step` as an int, or as it is if it is an integer on a device."""
    kind = getattr(getattr(step, "dtype", None), "kind", "")
    if isinstance(step, bool) or not (isinstance(step, int) or kind in ("i", "u")):
        raise ValueError(
            f"step is {step!r} ({type(step).__name__}), expected an integer: the "
            "number of completed steps."
        )
    accepted = accept("step", step)
    if isinstance(accepted, int) and accepted < 0:
        raise ValueError(f"step is {accepted}, expected 0 or more completed steps.")
    return accepted


def fetch(value: Any) -> int | float:
    """The number in `value`; waits for its device."""
    # np.float64 is a float as well, but not by its repr.
    if isinstance(value, int | float) and not isinstance(value, np.generic):
        return value
    array = np.asarray(value)
    return int(array) if array.dtype.kind in "biu" else float(array)


def is_device_value(value: Any) -> bool:
    """Whether reading `value` could wait for a device: an array other than numpy's."""
    return hasattr(value, "shape") and not isinstance(value, _NUMPY)


def holds_device_value(value: Any) -> bool:
    """Whether `value` is or contains such an array (in dicts, lists and tuples)."""
    if isinstance(value, dict):
        return any(map(holds_device_value, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_device_value, value))
    return is_device_value(value)


def may_wait(value: Any) -> bool:
    """Whether reading `value` (or what it contains) could wait right now."""
    if isinstance(value, dict):
        return any(map(may_wait, value.values()))
    if isinstance(value, list | tuple):
        return any(map(may_wait, value))
    if not is_device_value(value):
        return False
    is_ready = getattr(value, "is_ready", None)
    if is_ready is None:
        return True
    is_deleted = getattr(value, "is_deleted", None)
    return not (is_deleted is not None and is_deleted()) and not is_ready()


def _check_array(name: str, value: Any) -> None:
    if tuple(value.shape) != ():
        raise ValueError(
            f"metric {name!r} has shape {tuple(value.shape)}, expected one number: "
            "reduce it (mean, sum) or index it first."
        )
    dtype = getattr(value, "dtype", None)
    is_plain = isinstance(dtype, np.dtype)  # asked first: their text takes long
    is_key = not is_plain and str(dtype).startswith("key<")  # of jax.random
    if is_key or getattr(dtype, "kind", "f") not in _NUMBER_KINDS:
        raise ValueError(f"metric {name!r} has dtype {value.dtype}, expected a number.")
    jax_core = sys.modules.get("jax.core")
    if jax_core is not None and isinstance(value, jax_core.Tracer):
        raise ValueError(
            f"metric {name!r} is being traced by jax: return it from the jitted "
            "function and log the result."
        )


def as_image(name: str, pixels: np.ndarray) -> np.ndarray:
    """`pixels` as uint8 [height, width, channels]; floats are taken in [0, 1].

    Raises:
        ValueError: The shape is not that of an image, or a float is outside [0, 1].
    """
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4):
        raise ValueError(
            f"image {name!r} has shape {pixels.shape}, expected [height, width] or "
            "[height, width, 1 | 3 | 4]."
        )
    if pixels.dtype == np.uint8:
        return pixels
    pixels = pixels.astype(np.float32)
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError(f"image {name!r}: floats must lie in [0, 1], or give uint8.")
    return np.rint(pixels * 255).astype(np.uint8)
