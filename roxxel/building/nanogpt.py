"""nanoGPT `.bin` files, with and without the header of llm.c, as a source.

nanoGPT (`data/*/prepare.py`) writes token ids as they are, uint16 little-endian.
llm.c (`dev/data/data_common.py`) and modded-nanoGPT write 256 int32 before them: magic,
version and number of tokens; magic 20240520 means uint16 (GPT-2), 20240801 uint32
(Llama 3). Either magic read as two GPT-2 ids has one above the vocabulary of 50,257.
"""

import dataclasses
import os
from collections.abc import Iterator

import numpy as np

from roxxel.building import input_files, tokens
from roxxel.building.documents import Patterns
from roxxel.errors import ConfigError

_HEADER_BYTES = 1024
_FORMATS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # magic: version, dtype
_SEARCH_TOKENS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinPart:
    """Documents that start at tokens [start, stop) of a file of `num_tokens`."""

    path: str
    dtype: str
    offset: int
    num_tokens: int
    start: int
    stop: int
    end_of_text: int | None

    @property
    def size(self) -> int:
        """Bytes."""
        return (self.stop - self.start) * np.dtype(self.dtype).itemsize

    def documents(self) -> Iterator[np.ndarray]:
        """Token ids, mapped: the whole file, or up to and with each end of text."""
        ids = _map(self.path, np.dtype(self.dtype), self.offset, self.num_tokens)
        if self.end_of_text is None:
            yield ids
            return
        ends = _ends(ids, self.end_of_text, max(0, self.start - 1))
        begin = next(ends) if self.start else 0
        while begin < self.stop:
            end = next(ends)
            yield ids[begin:end]
            begin = end


class BinSource:
    """The files that match, in path order by number; each is one document.

    Args:
        patterns: A glob, a path, or a list of them.
        end_of_text: A token id: a document then ends with each of these, which stays
            in it. (llm.c puts it before documents; the sequence is the same.)
        stored_dtype: Of files without a header.

    Raises:
        ConfigError: No file matches, or an option is wrong.
    """

    name = "nanogpt"
    unit = "bytes"

    def __init__(
        self,
        patterns: Patterns,
        *,
        end_of_text: int | None = None,
        stored_dtype: str | np.dtype | type = "uint16",
    ):
        self._files = input_files.find(patterns)
        self.stored_dtype = tokens.parse_dtype(stored_dtype, "stored_dtype")
        self.end_of_text = end_of_text
        self._options = {
            "end_of_text": end_of_text,
            "stored_dtype": self.stored_dtype.str,
        }

    def key(self) -> dict:
        """Paths, sizes and times of the files, and the options."""
        return {"inputs": self._files.states, "options": self._options}

    def describe(self) -> dict:
        """Number and size of the files, and the options."""
        return self._files.describe() | self._options

    def check_unchanged(self) -> None:
        """Raises ConfigError when a file changed since this was made."""
        self._files.check_unchanged()

    def parts(self) -> list[BinPart]:
        """A part a file, more of large ones that are cut at `end_of_text`.

        Raises:
            ConfigError: The size of a file is not what its header or dtype asks for.
        """
        return [part for path in self._files.paths for part in self._parts_of(path)]

    def _parts_of(self, path: str) -> Iterator[BinPart]:
        dtype, offset, count = self._layout(path)
        step = tokens.PART_BYTES // dtype.itemsize if self._is_cut else count
        for start in range(0, count, max(1, step)):
            yield BinPart(
                path=path,
                dtype=dtype.str,
                offset=offset,
                num_tokens=count,
                start=start,
                stop=min(start + step, count),
                end_of_text=self.end_of_text,
            )

    @property
    def _is_cut(self) -> bool:
        return self.end_of_text is not None

    def _layout(self, path: str) -> tuple[np.dtype, int, int]:
        """Dtype, bytes before the tokens and number of tokens of a file."""
        size = os.path.getsize(path)
        try:
            header = np.fromfile(path, "<i4", _HEADER_BYTES // 4)
        except OSError as err:
            raise ConfigError(f"{path}: cannot be read: {err.strerror}.") from err
        if header.size and int(header[0]) in _FORMATS:
            return _headed_layout(path, size, header)
        count, rest = divmod(size, self.stored_dtype.itemsize)
        if rest:
            raise ConfigError(
                f"{path}: has {size} bytes, expected a multiple of "
                f"{self.stored_dtype.itemsize} ({self.stored_dtype.name} without a "
                "header): cut off, or of another stored_dtype=."
            )
        return self.stored_dtype, 0, count


def _headed_layout(
    path: str, size: int, header: np.ndarray
) -> tuple[np.dtype, int, int]:
    magic = int(header[0])
    version, code = _FORMATS[magic]
    if header.nbytes < _HEADER_BYTES:
        raise ConfigError(
            f"{path}: has {size} bytes, expected a header of {_HEADER_BYTES} bytes "
            f"behind the magic {magic}: cut off."
        )
    if header[1] != version:
        raise ConfigError(
            f"{path}: version is {header[1]} with magic {magic}, expected {version}."
        )
    dtype, count = np.dtype(code), int(header[2])
    expected = _HEADER_BYTES + count * dtype.itemsize
    if count < 0 or size != expected:
        raise ConfigError(
            f"{path}: has {size} bytes, expected {expected} for the {count} "
            f"{dtype.name} tokens of its header: cut off or damaged."
        )
    return dtype, _HEADER_BYTES, count


def _ends(ids: np.ndarray, end_of_text: int, start: int) -> Iterator[int]:
    """One behind each end of text at `start` or later, at last the length of all."""
    for at in range(start, len(ids), _SEARCH_TOKENS):
        found = np.flatnonzero(ids[at : at + _SEARCH_TOKENS] == end_of_text)
        yield from (found + (at + 1)).tolist()
    yield len(ids)


def _map(path: str, dtype: np.dtype, offset: int, count: int) -> np.ndarray:
    if not count:
        return np.empty(0, dtype)
    try:
        mapped = np.memmap(path, dtype, "r", offset=offset, shape=(count,))
    except (OSError, ValueError) as err:  # it shrank since
        raise ConfigError(f"{path}: cannot be mapped: {err}.") from err
    return np.asarray(mapped)  # slices of plain arrays cost much less
