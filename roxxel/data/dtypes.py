"""Element types of a data set, and casts that never change a value."""

import numpy as np


def parse(name: str | np.dtype | type) -> np.dtype:
    """The native dtype called `name`: an integer, float or bool.

    Raises:
        ValueError: Unknown, of another kind, of another byte order, or one of
            `ml_dtypes` where that is not installed.
    """
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = _parse_ml_dtype(name)
    if not dtype.isnative:
        raise ValueError(
            f"dtype {name!r} is not in native byte order; expected one like"
            f" {dtype.newbyteorder('=').name!r}"
        )
    if not is_supported(dtype):
        raise ValueError(f"dtype {name!r} is not an integer, a float or a bool")
    return dtype


def _parse_ml_dtype(name) -> np.dtype:
    known = isinstance(name, str) and name.startswith(
        ("bfloat", "float", "int", "uint")
    )
    if not known:
        raise ValueError(f"dtype {name!r} is unknown")
    try:
        import ml_dtypes
    except ImportError as err:
        raise ValueError(
            f"dtype {name!r} needs ml_dtypes: pip install ml_dtypes"
        ) from err
    if not hasattr(ml_dtypes, name):
        raise ValueError(f"dtype {name!r} is unknown")
    return np.dtype(getattr(ml_dtypes, name))


def is_supported(dtype: np.dtype) -> bool:
    """Whether elements of `dtype` can be stored."""
    return dtype.kind in "iufb" or is_extension(dtype)


def is_extension(dtype: np.dtype) -> bool:
    """Whether `dtype` is a number type of `ml_dtypes` (bfloat16, float8, int4, ...)."""
    return dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes"


def is_integer(dtype: np.dtype) -> bool:
    """Whether `dtype` holds whole numbers (bool is not one)."""
    if is_extension(dtype):
        return dtype.name.startswith(("int", "uint"))
    return dtype.kind in "iu"


def batch_dtype(stored: np.dtype) -> np.dtype:
    """What batches hold when the caller names no dtype: int32 for any integer."""
    return np.dtype(np.int32) if is_integer(stored) else stored


def check_castable(stored: np.dtype, wanted: np.dtype) -> None:
    """Refuses casts that change what a value means.

    Raises:
        ValueError: From float to integer, or to bool; names both dtypes.
    """
    if stored == wanted:
        return
    to_integer = is_integer(wanted) and not (is_integer(stored) or stored.kind == "b")
    if to_integer or wanted.kind == "b":
        raise ValueError(
            f"data of dtype {stored.name} cannot be read as {wanted.name}; leave dtype"
            f" out or write the data again as {wanted.name}"
        )


def cast_into(out: np.ndarray, values: np.ndarray) -> None:
    """Writes `values` into `out` of the same shape, every value unchanged.

    Raises:
        ValueError: Names the first value that the dtype of `out` cannot hold.
    """
    if always_fits(values.dtype, out.dtype):
        np.copyto(out, values)
        return
    index = first_misfit(values, out.dtype)
    if index is not None:
        raise ValueError(
            f"value {values.reshape(-1)[index]} of dtype {values.dtype.name} does not"
            f" fit {out.dtype.name}"
        )
    np.copyto(out, values, casting="unsafe")


def cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`values` as `dtype`, itself when it has that already; errors as `cast_into`."""
    if values.dtype == dtype:
        return values
    out = np.empty(values.shape, dtype)
    cast_into(out, values)
    return out


def first_misfit(values: np.ndarray, dtype: np.dtype) -> int | None:
    """Flat index of the first value that `dtype` cannot hold exactly, or None."""
    if not values.size or always_fits(values.dtype, dtype):
        return None
    if values.dtype.kind in "iu" and dtype.kind in "iu":  # exact, and one pass less
        return _first_outside(values, np.iinfo(dtype))
    with np.errstate(all="ignore"):
        there = values.astype(dtype)
        back = there.astype(values.dtype)
        bad = (back != values) & ~((back != back) & (values != values))
        # 2**63 - 1 becomes 2**63 as a float and may come back saturated
        if values.dtype.kind in "iu":
            bad |= there.astype(np.float64) >= float(np.iinfo(values.dtype).max)
    bad = bad.reshape(-1)
    return int(np.argmax(bad)) if bad.any() else None


def always_fits(source: np.dtype, target: np.dtype) -> bool:
    """Whether `target` holds every value of `source` exactly."""
    if is_extension(source) and target.kind == "f":
        return target.itemsize >= 4
    return np.can_cast(source, target, "safe") and not (
        is_integer(source) and source.itemsize == 8 and target.kind == "f"
    )


def _first_outside(values: np.ndarray, limits: np.iinfo) -> int | None:
    if limits.min <= int(values.min()) and int(values.max()) <= limits.max:
        return None
    own = np.iinfo(values.dtype)
    low, high = max(limits.min, own.min), min(limits.max, own.max)
    bad = (values < low) | (values > high)
    return int(np.argmax(bad.reshape(-1)))
