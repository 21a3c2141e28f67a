"""What `run.json` says of a run's data: fingerprints, shards and their checksums.

    {"stream.dataset": {"fingerprint": ..., "elements": ..., "dtype": ...,
        "tokenizer": ..., "location": ...,
        "shards": [{"file": ..., "bytes": ..., "checksums": ...}, ...]}, ...}

`checksums` is the digest of the checksums that the shard itself stores. Of files that
store none it is a hash of the file, or None beyond the first `MAX_HASHED_BYTES` of a
data set.
"""

import collections
import hashlib
import os
import types
from typing import Any

from roxxel.data import rox_format, verify
from roxxel.dataset import Roxxel
from roxxel.errors import ShardFormatError

MAX_HASHED_BYTES = 1 << 30  # read when a run starts; about two seconds
_MAX_DEPTH = 6
_FOREIGN = {"builtins", "numpy", "jax", "jaxlib", "flax", "optax", "orbax", "pathlib"}


def of(built: Any) -> dict[str, dict[str, Any]]:
    """The facts of every data set that a built object holds, by where it holds it."""
    return {path: _facts(dataset) for path, dataset in datasets(built).items()}


def datasets(built: Any) -> dict[str, Roxxel]:
    """The data sets in a built object, by the shortest path of attributes."""
    found: dict[str, Roxxel] = {}
    queue: collections.deque[tuple[Any, str, int]] = collections.deque([(built, "", 0)])
    seen = set()
    while queue:
        value, path, depth = queue.popleft()
        if id(value) in seen or depth > _MAX_DEPTH:
            continue
        seen.add(id(value))
        if isinstance(value, Roxxel):
            found[path] = value
            continue
        queue.extend((child, name, depth + 1) for child, name in _children(value, path))
    return found


def faults(dataset: Roxxel) -> list[str]:
    """What is wrong with the shards of a data set, read in full; files are named."""
    found: list[str] = []
    for path in dataset.shards:
        verify.check_shard(path, found)
    return found


def _facts(dataset: Roxxel) -> dict[str, Any]:
    return {
        "location": repr(dataset),
        "fingerprint": dataset.fingerprint(),
        "elements": dataset.num_elements,
        "dtype": dataset.dtype.name,
        "tokenizer": dataset.metadata.get("tokenizer"),
        "shards": _shards(dataset.shards),
    }


def _shards(paths: list[str]) -> list[dict[str, Any]]:
    found, left = [], MAX_HASHED_BYTES
    for path in paths:
        size = os.path.getsize(path)
        sums = _stored_sums(path)
        if sums is None and size <= left:
            left -= size
            sums = _hash(path)
        found.append({"file": os.path.abspath(path), "bytes": size, "checksums": sums})
    return found


def _stored_sums(path: str) -> str | None:
    try:
        sums = rox_format.read_shard(path).extension.get("sums")
    except ShardFormatError:  # changed since it was opened
        return None
    return sums["digest"] if sums else None


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    return digest.hexdigest()


def _children(value: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(value, dict):
        return [(child, f"{path}[{key!r}]") for key, child in value.items()]
    if isinstance(value, list | tuple):
        return [(child, f"{path}[{index}]") for index, child in enumerate(value)]
    package = type(value).__module__.partition(".")[0]
    if package in _FOREIGN or isinstance(value, type | types.ModuleType):
        return []
    attributes = getattr(value, "__dict__", None) or {}
    return [
        (child, f"{path}.{name}" if path else name)
        for name, child in attributes.items()
    ]
