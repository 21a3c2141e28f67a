"""Safetensors files: tensors by name, mapped from the disk; and writing them.

    8 bytes   N, little-endian
    N bytes   JSON {"name": {"dtype": "BF16", "shape": [...], "data_offsets": [b, e]}}
    the rest  the tensors, little-endian, C order; offsets count from here

Reading runs no code that a file may hold, which formats on pickle do.
"""

import json
import math
import mmap
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from roxxel.errors import ConfigError

SUFFIX = ".safetensors"
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    **{
        f"{kind}{8 * n}": np.dtype(f"<{kind.lower()}{n}")
        for kind in "IU"
        for n in (2, 4, 8)
    },
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000  # what the format allows
_ALIGNMENT = 8


class Stored(NamedTuple):
    """Where a tensor lies, and what it is."""

    path: pathlib.Path
    begin: int  # bytes from the start of the file
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self) -> np.ndarray:
        """The tensor as a view of the mapped file: bytes are read where it is used."""
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        with open(self.path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count = math.prod(self.shape)
        flat = np.frombuffer(mapped, self.dtype, count, self.begin)
        return flat.reshape(self.shape)


class Tensor(NamedTuple):
    """A tensor to be written; `make` gives its values when their turn comes."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.dtype.itemsize * math.prod(self.shape)


# -- reading ---------------------------------------------------------------------------


def read_header(path: pathlib.Path) -> dict[str, Stored]:
    """The tensors of a file by name; none of them is read.

    Raises:
      ConfigError: it is no such file, or cut, or not whole.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise _wrong(path, f"{size} bytes do not hold a header of {length}")
            text = file.read(length)
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}.") from err
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        entries = {name: _entry(path, 8 + length, e) for name, e in header.items()}
        ends = [8 + length + entry["data_offsets"][1] for entry in header.values()]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as err:
        if isinstance(err, ConfigError):
            raise
        raise _wrong(path, "its header is not what the format says") from err
    if max(ends, default=8 + length) != size:
        raise _wrong(path, f"it has {size} bytes, its header tells of {max(ends)}")
    return entries


def _entry(path: pathlib.Path, base: int, entry: Any) -> Stored:
    if entry["dtype"] not in _DTYPES:
        raise _wrong(path, f"type {entry['dtype']!r} is not known here")
    dtype, shape = _DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
    begin, end = entry["data_offsets"]
    if begin < 0 or end - begin != dtype.itemsize * math.prod(shape):
        raise ValueError("offsets do not go with the shape")
    return Stored(path, base + begin, dtype, shape)


def _wrong(path: pathlib.Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path}: {why}; expected a whole safetensors file. Copy or download it again."
    )


def read_folder(folder: pathlib.Path) -> dict[str, Stored]:
    """The tensors of a checkpoint, in one file or in several with an index.

    Raises:
      ConfigError: files are missing, damaged or of another format; all are named.
    """
    single, index = folder / f"model{SUFFIX}", folder / f"model{SUFFIX}.index.json"
    if single.is_file():
        return read_header(single)
    if not index.is_file():
        raise ConfigError(_none_there(folder))
    places = _read_index(index)
    files = sorted(set(places.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{folder}: {index.name} names {', '.join(missing)}: not there."
        )
    headers = {name: read_header(folder / name) for name in files}
    lost = [name for name, file in places.items() if name not in headers[file]]
    if lost:
        raise ConfigError(
            f"{folder}: {index.name} names tensors that its files lack: "
            f"{', '.join(lost[:5])}{', ...' if len(lost) > 5 else ''}."
        )
    return {name: headers[file][name] for name, file in places.items()}


def _read_index(path: pathlib.Path) -> dict[str, str]:
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        # Names of files beside the index, never paths that lead elsewhere.
        fine = all(
            isinstance(name, str) and name.endswith(SUFFIX) and os.sep not in name
            for name in places.values()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        fine, places = False, {}
    if not fine or not places:
        raise ConfigError(
            f"{path}: expected JSON with weight_map, tensors to names of files."
        )
    return places


def _none_there(folder: pathlib.Path) -> str:
    pickled = sorted(
        path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind)
    )
    found = f"; {', '.join(pickled)} could run code when read" if pickled else ""
    return (
        f"{folder} holds no model{SUFFIX} and no model{SUFFIX}.index.json{found}. "
        "Save it with transformers' save_pretrained, which writes safetensors."
    )


# -- writing ---------------------------------------------------------------------------


def write_folder(
    folder: pathlib.Path, tensors: Iterable[Tensor], *, max_shard_bytes: int
) -> None:
    """Writes tensors to `model.safetensors`, or to several files and their index.

    One tensor at a time is in memory. The folder is not looked at otherwise.
    """
    shards = _shards(list(tensors), max_shard_bytes)
    if len(shards) == 1:
        _write(folder / f"model{SUFFIX}", shards[0])
        return
    places, total = {}, 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}{SUFFIX}"
        _write(folder / name, shard)
        places |= {tensor.name: name for tensor in shard}
        total += sum(tensor.num_bytes for tensor in shard)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    path = folder / f"model{SUFFIX}.index.json"
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", "utf-8")


def _shards(tensors: list[Tensor], max_bytes: int) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    room = max_bytes
    for tensor in tensors:
        if shards[-1] and tensor.num_bytes > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(tensor)
        room -= tensor.num_bytes
    return shards


def _write(path: pathlib.Path, tensors: list[Tensor]) -> None:
    # Wide types first, as the format's own writer does: every tensor is aligned.
    tensors = sorted(tensors, key=lambda t: (-t.dtype.itemsize, t.name))
    text = json.dumps(_header(tensors), separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            values = np.ascontiguousarray(tensor.make(), tensor.dtype)
            assert values.shape == tensor.shape, tensor.name
            file.write(values.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: list[Tensor]) -> Mapping[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.num_bytes
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    return header
