"""Pairs of Megatron `.idx` and `.bin` files as a source of documents."""

import dataclasses
import glob
import itertools
import os
from collections.abc import Iterator

import numpy as np

from roxxel.building import input_files, megatron_index, tokens
from roxxel.building.documents import Patterns
from roxxel.building.input_files import InputFiles
from roxxel.building.megatron_index import Index
from roxxel.data import paths as shard_paths
from roxxel.errors import ConfigError

_BATCH_DOCUMENTS = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class MegatronPart:
    """Documents [start, stop) of a pair."""

    index: Index
    start: int
    stop: int
    converted_to: np.dtype | None

    @property
    def size(self) -> int:
        """Documents."""
        return self.stop - self.start

    def documents(self) -> Iterator[np.ndarray]:
        """Token ids, mapped where the sequences of a document follow each other.

        Raises:
            ConfigError: The index points where nothing is; names file and place.
        """
        index = self.index
        lengths, pointers, borders = index.lengths(), index.pointers(), index.borders()
        data = _map_data(index)
        for first in range(self.start, self.stop, _BATCH_DOCUMENTS):
            last = min(first + _BATCH_DOCUMENTS, self.stop)
            cuts = megatron_index.checked_borders(index, borders, first, last)
            ranges = megatron_index.checked_ranges(index, lengths, pointers, cuts)
            ids = _documents(data, *ranges, cuts - cuts[0], np.dtype(index.dtype))
            for number, document in enumerate(ids, first):
                place = f"{index.prefix}.bin: document {number}"
                yield tokens.integers(document, place, self.converted_to)


class MegatronSource:
    """The documents of pairs, in path order by number.

    Args:
        prefixes: `data/corpus` for `data/corpus.idx` and `data/corpus.bin`, either
            file's path, a glob of these, or a list.
        dtype: Converts floats that are whole numbers; None refuses floats.

    Raises:
        ConfigError: No pair is there, or one of its files is missing.
    """

    name = "megatron"
    unit = "documents"

    def __init__(
        self,
        prefixes: Patterns,
        *,
        dtype: str | np.dtype | type | None = None,
    ):
        self.prefixes = _find_prefixes(prefixes)
        self._files = InputFiles(
            [f"{p}.{end}" for p in self.prefixes for end in ("idx", "bin")]
        )
        self._dtype = None if dtype is None else tokens.parse_dtype(dtype, "dtype")

    def key(self) -> dict:
        """Paths, sizes and times of both files of each pair."""
        return {"inputs": self._files.states, "options": {}}

    def describe(self) -> dict:
        """Number and size of the files."""
        return self._files.describe()

    def check_unchanged(self) -> None:
        """Raises ConfigError when a file changed since this was made."""
        self._files.check_unchanged()

    def parts(self) -> list[MegatronPart]:
        """Ranges of documents; reads the headers.

        Raises:
            ConfigError: An index is damaged, or another one's.
        """
        return [part for prefix in self.prefixes for part in self._parts_of(prefix)]

    def _parts_of(self, prefix: str) -> Iterator[MegatronPart]:
        index = megatron_index.read_index(prefix)
        tokens.integers(np.empty(0, index.dtype), index.path, self._dtype)
        count = index.num_documents
        if not count:
            return
        num_parts = min(count, 1 + index.bin_bytes // tokens.PART_BYTES)
        borders = [count * i // num_parts for i in range(num_parts + 1)]
        for start, stop in itertools.pairwise(borders):
            yield MegatronPart(
                index=index, start=start, stop=stop, converted_to=self._dtype
            )


def _documents(
    data: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    cuts: np.ndarray,
    dtype: np.dtype,
) -> Iterator[np.ndarray]:
    """Sequences [cuts[i], cuts[i + 1]) joined; k is bytes begins[k] to ends[k]."""
    if len(begins) and (begins[1:] == ends[:-1]).all():  # as writers leave them
        ids = data[begins[0] : ends[-1]].view(dtype)
        bounds = np.append(begins, ends[-1])[cuts] - begins[0]
        for start, stop in itertools.pairwise((bounds // dtype.itemsize).tolist()):
            yield ids[start:stop]
        return
    for start, stop in itertools.pairwise(cuts.tolist()):
        pairs = zip(begins[start:stop], ends[start:stop], strict=True)
        pieces = [data[begin:end].view(dtype) for begin, end in pairs]
        yield np.concatenate([np.empty(0, dtype), *pieces])


def _map_data(index: Index) -> np.ndarray:
    """The bytes of the `.bin` file, mapped."""
    if not index.bin_bytes:
        return np.empty(0, np.uint8)
    path = f"{index.prefix}.bin"
    return np.asarray(np.memmap(path, np.uint8, "r", shape=(index.bin_bytes,)))


def _find_prefixes(patterns: Patterns) -> list[str]:
    texts = input_files.as_list(patterns)
    if not texts:
        raise ConfigError("no prefix was given, expected at least one.")
    found = {prefix for text in texts for prefix in _matches(text)}
    return sorted(found, key=shard_paths.natural_key)


def _matches(text: str) -> list[str]:
    pattern = os.path.abspath(os.path.expanduser(text))
    for end in (".idx", ".bin"):
        pattern = pattern.removesuffix(end)
    if os.path.exists(f"{pattern}.idx") or os.path.exists(f"{pattern}.bin"):
        prefixes = [pattern]
    else:
        files = glob.glob(f"{pattern}.idx", recursive=True)
        prefixes = [path.removesuffix(".idx") for path in files]
    if not prefixes:
        raise ConfigError(f"no file matches {pattern}.idx.")
    for path in (f"{p}.{end}" for p in prefixes for end in ("idx", "bin")):
        if not os.path.isfile(path):
            raise ConfigError(f"{path} is missing, expected beside its partner.")
    return prefixes
