"""States of inputs as JSON, and the states of all processes as one list.

A checkpoint's record is JSON that any version of Python reads, so nothing is pickled:
bytes, tuples, arrays and tensors are tagged, anything else is refused by name.
"""

import base64
import importlib
import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from roxxel.errors import ConfigError

_TAGS = ("!bytes", "!tuple", "!array", "!scalar", "!tensor", "!items")


def encode(value: Any, where: str = "state") -> Any:
    """`value` as JSON values that `decode` turns back.

    Raises:
      ConfigError: a part is no plain value; names where it lies and what it is.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return _encode_dict(value, where)
    if isinstance(value, list | tuple):
        parts = [encode(part, f"{where}[{i}]") for i, part in enumerate(value)]
        return parts if isinstance(value, list) else {"!tuple": parts}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        tag = "!array" if isinstance(value, np.ndarray) else "!scalar"
        return {tag: _encode_array(np.asarray(value))}
    if type(value).__module__ == "torch" and type(value).__name__ == "Tensor":
        return {"!tensor": _encode_array(np.asarray(value))}
    raise ConfigError(
        f"the input's {where} is a {type(value).__module__}.{type(value).__qualname__},"
        " which a checkpoint does not hold; expected dicts, lists, tuples, numbers, "
        "text, bytes or arrays."
    )


def _encode_dict(value: dict, where: str) -> dict:
    parts = {key: encode(part, f"{where}.{key}") for key, part in value.items()}
    plain = all(isinstance(key, str) and key not in _TAGS for key in parts)
    if plain:
        return parts
    items = [[encode(key, f"{where} key"), part] for key, part in parts.items()]
    return {"!items": items}


def _encode_array(array: np.ndarray) -> list:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return [array.dtype.str, list(array.shape), data]


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(part) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or (tag := next(iter(value))) not in _TAGS:
        return {key: decode(part) for key, part in value.items()}
    part = value[tag]
    if tag == "!bytes":
        return base64.b64decode(part)
    if tag == "!tuple":
        return tuple(map(decode, part))
    if tag == "!items":
        return {decode(key): decode(item) for key, item in part}
    return _decode_array(tag, *part)


def _decode_array(tag: str, dtype: str, shape: list[int], data: str) -> Any:
    array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
    if tag == "!scalar":
        return array[()]
    if tag == "!array":
        return array
    torch = importlib.import_module("torch")  # the state came from it
    return torch.from_numpy(array)


def gather(value: Any) -> list[Any]:
    """The JSON values of all processes, by process; all must call it together."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.array(text.size)))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: text.size] = text
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [
        json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)
    ]
