"""One item (str, bytes, array, list of ints) as the elements that are stored."""

import numpy as np

from roxxel.data import dtypes

_INT64 = np.iinfo(np.int64)
_MAX_UINT64 = 2**64 - 1


def to_elements(item, index: int, dtype: np.dtype | None) -> np.ndarray:
    """The elements of `item` as a 1-D array of `dtype`; empty items are empty arrays.

    With `dtype` None the item chooses: arrays their own dtype in native byte order,
    str (as UTF-8) and bytes uint8, lists of ints int32 if all fit, else int64 (uint64
    above 2**63 - 1).
    Arrays of more than one dimension are taken row by row.

    Raises:
        TypeError: The item is of a kind that cannot be stored.
        ValueError: A value does not fit `dtype` exactly, or text is not valid.
    """
    if isinstance(item, str):
        return _text(_encode(item, index), index, dtype)
    if isinstance(item, bytes | bytearray | memoryview):
        return _text(item, index, dtype)
    if isinstance(item, list | tuple):
        return _integers(item, index, dtype)
    if not hasattr(item, "__array__"):
        raise TypeError(_bad_kind(item, index))
    values = np.asarray(item)
    if values.ndim == 0:
        raise TypeError(_bad_kind(item, index))
    return _fit(values.reshape(-1), index, dtype)


def item_elements(
    item, index: int, shape: tuple[int | None, ...], dtype: np.dtype | None
) -> np.ndarray:
    """The elements of an item of `shape`, None for a first dimension of any size.

    As `to_elements`, but an empty item has a dtype too.

    Raises:
        ValueError: The item has another shape.
    """
    elements = to_elements(item, index, dtype)
    got = tuple(getattr(item, "shape", (elements.size,)))
    if len(got) != len(shape) or any(
        size not in (None, n) for size, n in zip(shape, got, strict=True)
    ):
        raise ValueError(f"item {index} has shape {got}, expected {shape}")
    return elements if elements.size or dtype is None else elements.astype(dtype)


def separator_elements(separator, dtype: np.dtype) -> np.ndarray:
    """The elements that follow each document, as a 1-D array of `dtype`.

    `separator` is one value, a list of values, or str or bytes for uint8 data.

    Raises:
        ValueError: It is empty or does not fit `dtype`.
        TypeError: It is text and the data are not, or of another kind.
    """
    if isinstance(separator, str | bytes | bytearray):
        if dtype != np.uint8:
            raise TypeError(
                f"separator {separator!r} is text, the data are {dtype.name}; give the"
                " separator as a value, e.g. separator=0"
            )
        raw = separator.encode() if isinstance(separator, str) else separator
        values = np.frombuffer(bytes(raw), np.uint8)
    else:
        values = _numbers(separator).reshape(-1)
    if not values.size:
        raise ValueError(f"separator {separator!r} is empty; expected None or a value")
    misfit = _misfit(values, dtype)
    if misfit is not None:
        raise ValueError(
            f"separator {values[misfit]} does not fit the data's dtype {dtype.name}"
        )
    return values.astype(dtype)


def _numbers(separator) -> np.ndarray:
    if isinstance(separator, int) and not isinstance(separator, bool):
        is_int64 = _INT64.min <= separator <= _INT64.max
        return np.array([separator], None if is_int64 else object)
    values = np.asarray(separator)
    if values.dtype.kind not in "iufb" and not dtypes.is_supported(values.dtype):
        raise TypeError(
            f"separator {separator!r} is not a value, a list of values, str or bytes"
        )
    return values


def _misfit(values: np.ndarray, dtype: np.dtype) -> int | None:
    if values.dtype == object:  # an int beyond 64 bits, or of uint64
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        fits = limits is not None and limits.min <= values[0] <= limits.max
        return None if fits else 0
    if (dtype.kind == "b") != (values.dtype.kind == "b"):
        return 0
    if dtypes.is_integer(dtype) and not dtypes.is_integer(values.dtype):
        return 0
    return dtypes.first_misfit(values, dtype)


def _encode(text: str, index: int) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as err:
        raise ValueError(
            f"item {index}: character {err.start} is the lone surrogate"
            f" {text[err.start]!r}, which has no UTF-8; clean the text, e.g."
            " text.encode('utf-8', 'replace')"
        ) from err


def _text(raw, index: int, dtype: np.dtype | None) -> np.ndarray:
    values = np.frombuffer(raw, np.uint8)
    if values.size and dtype is not None and dtype != np.uint8:
        raise ValueError(
            f"item {index} is text or bytes, the data are {dtype.name}; expected every"
            " item to be text (dtype uint8) or none"
        )
    return values


def _integers(item, index: int, dtype: np.dtype | None) -> np.ndarray:
    if not item:
        return np.empty(0, dtype or np.int32)
    values = _int_array(item, index)
    if dtype is not None:
        return _fit(values, index, dtype)
    fits = dtypes.first_misfit(values, np.dtype(np.int32)) is None
    return values.astype(np.int32) if fits else values


def _int_array(item, index: int) -> np.ndarray:
    try:
        values = np.array(item)
    except ValueError:  # ragged
        values = np.array([], object)
    if values.dtype.kind == "i" and values.ndim == 1:
        return values
    wrong = [x for x in item if not _is_int(x)]
    if wrong:
        raise TypeError(
            f"item {index} is a {type(item).__name__} that holds {wrong[0]!r:.60};"
            " expected ints only. Give other values as a numpy array"
        )
    for value in item:
        if not 0 <= value <= _MAX_UINT64:
            raise ValueError(f"item {index} holds {value}, which fits no integer dtype")
    return np.array(item, np.uint64)


def _is_int(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _fit(values: np.ndarray, index: int, dtype: np.dtype | None) -> np.ndarray:
    if not values.size:
        return values
    if not dtypes.is_supported(values.dtype):
        raise TypeError(
            f"item {index} is an array of dtype {values.dtype}; expected integers,"
            " floats or bools"
        )
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if dtype is None or values.dtype == dtype:
        return values
    misfit = _misfit(values, dtype)
    if misfit is not None:
        raise ValueError(_does_not_fit(values[misfit], index, dtype))
    return values.astype(dtype)


def _does_not_fit(value, index: int, dtype: np.dtype) -> str:
    return (
        f"item {index} holds {value}, which does not fit the data's dtype"
        f" {dtype.name} exactly; pass a wider dtype= to write"
    )


def _bad_kind(item, index: int) -> str:
    return (
        f"item {index} is {item!r:.60} of type {type(item).__name__}; expected one"
        " document: str, bytes, an array or a list of ints"
    )
