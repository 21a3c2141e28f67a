"""Arrays as a source of documents: in memory, from an iterable, or .npy and .npz files.

A 1-D array of token ids is a document, each row of a 2-D one too. In other byte orders
values are what they were.
"""

import contextlib
import dataclasses
import os
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import numpy as np

from roxxel.building import input_files, tokens
from roxxel.building.documents import Patterns
from roxxel.building.input_files import InputFiles
from roxxel.building.source import Part
from roxxel.errors import ConfigError

Inputs = (
    np.ndarray
    | str
    | os.PathLike
    | Iterable[np.ndarray | Sequence[int] | str | os.PathLike]
    | Callable[[], Iterable[np.ndarray | Sequence[int]]]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NpyPart:
    """Rows [start, stop) of a .npy file, mapped."""

    path: str
    start: int
    stop: int
    dtype: np.dtype | None

    @property
    def size(self) -> int:
        """Documents."""
        return self.stop - self.start

    def documents(self) -> Iterator[np.ndarray]:
        """The rows."""
        rows = _rows(_map(self.path), self.path, dtype=self.dtype)
        yield from rows[self.start : self.stop]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NpzPart:
    """An array of a .npz file, loaded when it is read."""

    path: str
    member: str
    dtype: np.dtype | None
    size: int = 1

    def documents(self) -> Iterator[np.ndarray]:
        """The array, or its rows."""
        place = f"{self.path}: array {self.member!r}"
        with _file_errors(self.path), np.load(self.path) as loaded:
            array = loaded[self.member]
        yield from _rows(array, place, dtype=self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """Arrays that are there, the first of which is number `first`."""

    arrays: Sequence[np.ndarray]
    first: int
    dtype: np.dtype | None

    @property
    def size(self) -> int:
        """Documents, about: an array counts as one."""
        return len(self.arrays)

    def documents(self) -> Iterator[np.ndarray]:
        """The arrays, or their rows."""
        yield from _documents(self.arrays, self.first, dtype=self.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IterablePart:
    """Arrays that an iterable, or what a function returns, yields."""

    arrays: Iterable | Callable[[], Iterable]
    dtype: np.dtype | None
    size: int = 1

    def documents(self) -> Iterator[np.ndarray]:
        """The arrays, or their rows."""
        arrays = self.arrays() if callable(self.arrays) else self.arrays
        yield from _documents(arrays, 0, dtype=self.dtype)


class ArraySource:
    """Token ids in arrays, lists of ints, or .npy and .npz files.

    Args:
        inputs: An array, a list of arrays, an iterable of them or a function that
            returns one; or a path, a glob or a list of them for files.
        key: Names the content of what is no file, in place of a hash of it, for
            which everything is read once more.
        dtype: Converts floats that are whole numbers; None refuses floats.

    Raises:
        ConfigError: No file matches, or an iterator was given.
    """

    name = "arrays"
    unit = "documents"

    def __init__(
        self,
        inputs: Inputs,
        *,
        key: str | None = None,
        dtype: str | np.dtype | type | None = None,
    ):
        self._key = key
        self._dtype = None if dtype is None else tokens.parse_dtype(dtype, "dtype")
        self._files: InputFiles | None = None
        self._arrays: Any = inputs
        if _are_paths(inputs):
            self._files = input_files.find(cast(Patterns, inputs))
        elif hasattr(inputs, "__array__"):
            self._arrays = [np.asarray(inputs)]
        elif isinstance(inputs, Iterator):
            raise ConfigError(
                f"arrays: a {type(inputs).__name__} can be read only once; give a "
                "list, or a function that makes it anew."
            )

    def key(self) -> dict:
        """States of files, the given key, or a hash of the content."""
        if self._files:
            return {"inputs": self._files.states, "options": {}}
        if self._key is None:
            everything = (doc for part in self.parts() for doc in part.documents())
            self._key = tokens.content_hash(everything)
        return {"inputs": self._key, "options": {}}

    def describe(self) -> dict:
        """Number and size of files."""
        return self._files.describe() if self._files else {}

    def check_unchanged(self) -> None:
        """Raises ConfigError when a file changed since this was made."""
        if self._files:
            self._files.check_unchanged()

    def parts(self) -> Sequence[Part]:
        """Ranges of rows of files, ranges of lists, else one part.

        Raises:
            ConfigError: A file is damaged, or holds no token ids.
        """
        if self._files:
            return [part for path in self._files.paths for part in self._parts_of(path)]
        if isinstance(self._arrays, list | tuple):
            return list(self._memory_parts(self._arrays))
        return [IterablePart(arrays=self._arrays, dtype=self._dtype)]

    def _parts_of(self, path: str) -> Iterator[NpyPart | NpzPart]:
        if not path.endswith(".npz"):
            rows = _rows(_map(path), path, dtype=self._dtype)
            row_bytes = rows[0].nbytes if len(rows) else 0
            step = max(1, tokens.PART_BYTES // max(1, row_bytes))
            for start in range(0, len(rows), step):
                stop = min(start + step, len(rows))
                yield NpyPart(path=path, start=start, stop=stop, dtype=self._dtype)
            return
        with _file_errors(path), np.load(path) as loaded:
            names = list(loaded.files)
        for name in names:
            yield NpzPart(path=path, member=name, dtype=self._dtype)

    def _memory_parts(self, arrays: Sequence) -> Iterator[MemoryPart]:
        first = num_bytes = 0
        for number, array in enumerate(arrays, 1):
            num_bytes += _num_bytes(array)
            if num_bytes >= tokens.PART_BYTES or number == len(arrays):
                part = arrays[first:number]
                yield MemoryPart(arrays=part, first=first, dtype=self._dtype)
                first, num_bytes = number, 0


def _are_paths(inputs: object) -> bool:
    if isinstance(inputs, list | tuple):
        return bool(inputs) and all(isinstance(x, str | os.PathLike) for x in inputs)
    return isinstance(inputs, str | os.PathLike)


def _documents(
    arrays: Iterable, first: int, *, dtype: np.dtype | None
) -> Iterator[np.ndarray]:
    for number, item in enumerate(arrays, first):
        array = item
        if not isinstance(item, np.ndarray):
            array = _as_array(item, f"array {number}")
        yield from _rows(array, f"array {number}", dtype=dtype)


def _as_array(item: object, place: str) -> np.ndarray:
    if isinstance(item, str | bytes):
        raise ConfigError(f"{place}: is {type(item).__name__}, expected token ids.")
    try:
        array = np.asarray(item)
    except ValueError as err:  # ragged
        raise ConfigError(f"{place}: is no array: {err}.") from err
    return array if array.size else array.astype(np.int64)


def _rows(
    array: np.ndarray, place: str, *, dtype: np.dtype | None
) -> Sequence[np.ndarray]:
    """The documents of an array: itself, or its rows."""
    if array.ndim not in (1, 2):
        raise ConfigError(
            f"{place}: has shape {array.shape}, expected [tokens] or [documents, "
            "tokens]."
        )
    if not array.size:
        return []
    ids = tokens.integers(array, place, dtype)
    return [ids] if ids.ndim == 1 else cast(Sequence[np.ndarray], ids)


def _num_bytes(array: object) -> int:
    if isinstance(array, np.ndarray):
        return array.nbytes
    return 8 * len(array) if isinstance(array, Sized) else 8


def _map(path: str) -> np.ndarray:
    with _file_errors(path):
        loaded = np.load(path, mmap_mode="r")
        if isinstance(loaded, np.ndarray):
            return np.asarray(loaded)  # slices of plain arrays cost much less
        loaded.close()
    raise ConfigError(f"{path}: is a .npz file, expected that ending, or a .npy file.")


@contextlib.contextmanager
def _file_errors(path: str) -> Generator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as err:
        reason = str(err).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"{path}: cannot be read as a .npy or .npz file of numbers: {reason}."
        ) from err
