"""`Roxxel`: a data set of `.rox` shards, written once and read without loading it."""

import operator
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roxxel.data import dtypes, fingerprint, modes, opening, reading_only, steps
from roxxel.data.batches import row_elements
from roxxel.data.layout import Layout, parse_item_shape
from roxxel.data.reader import ShardReader
from roxxel.data.rows import RowWindow
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.data.stream import RoxxelStream

_Location = str | os.PathLike


class Roxxel:
    """The shards at a path, a pattern such as `wiki_*.rox`, a folder or a list.

    Opens itself when first read; `open` and `with` say when. The elements of all
    shards form one virtual sequence, of which rows are windows. Files are mapped, not
    loaded: what is read stays in the page cache, where it counts as file pages of the
    process and can be taken back at any time. Instances can be pickled, read from many
    threads and used after a fork; with `len`, `[i]` and `__getitems__` they are map
    data sets for PyTorch and random access sources for grain.

    Args:
        filepath: Where the shards are and where `write` puts them. `*` stands for the
            number of a shard, both ways; shards are ordered by number. Where no file
            has only digits for `*`, and in a folder, files whose names differ in their
            last number only are one data set, and so are files without numbers;
            several data sets are refused. A list of files is read as it is.
        verify: "lazy" compares every block with its checksum when it is first read
            and raises `ShardFormatError` where it is damaged. None reads it as it is.
        drop_behind: Page cache of rows that were read is given back, so that data
            larger than memory push nothing else out of it. For one pass over the data;
            several epochs over data that fit in memory are faster without.

    Raises:
        ConfigError: `verify` is neither.
    """

    def __init__(
        self,
        filepath: _Location | Sequence[_Location],
        *,
        verify: str | None = None,
        drop_behind: bool = False,
    ):
        if verify not in (None, "lazy"):
            raise ConfigError(f"verify must be None or 'lazy', got {verify!r}.")
        if isinstance(filepath, str | os.PathLike):
            self._location = os.fspath(filepath)
        else:
            self._location = [os.fspath(path) for path in filepath]
        self._verify = verify
        self._drop_behind = drop_behind
        self._reader: ShardReader | None = None

    def write(
        self,
        items: Iterable,
        block_size: int = 4096,
        max_shard_bytes: int | None = None,
        separator=None,
        dtype=None,
        *,
        mode: str = "new",
        metadata: dict | None = None,
        resume: bool = False,
        item_shape: Sequence[int | None] | None = None,
    ) -> "Roxxel":
        """Writes `items`, documents of str, bytes, arrays or lists of ints.

        The first item that is not empty fixes the dtype: arrays their own, str (as
        UTF-8) and bytes uint8, lists of ints int32 if all fit, else int64. Empty items
        store nothing, not even a separator. Documents follow each other without gaps;
        only the end of the last block is filled up, and readers here do not see that.

        A shard has its name only when it is complete. If `items` raises, the exception
        arrives unchanged and the data set is as it was before.

        Args:
            items: The documents, read once.
            block_size: Bytes of a block, the record of `len` and `[i]`; a multiple of
                the element's size.
            max_shard_bytes: Most bytes of a shard's file, which holds at least one
                block all the same. None: a single shard.
            separator: Follows each document: a value, a list of values, or str or
                bytes for text.
            dtype: Fixes the dtype in place of the first item.
            mode: What happens to shards that are there already. "new" refuses, "skip"
                keeps them and reads no item (but replaces what a killed write left),
                "append" adds to them, "overwrite" replaces them once the new ones are
                complete.
            metadata: Plain JSON values that are stored with the data.
            resume: Finished shards stay when this write fails, and the same call with
                the same items continues behind them: items are read again, those
                stored are compared by their sums and skipped. Reads no item when all
                is there. Goes with mode "new" and "skip".
            item_shape: Makes every item a record of its own, `[i]`, of this shape:
                images, frames, embeddings. A first dimension of None lets lengths
                differ, e.g. (None,) for files as bytes and (None, 80) for frames.
                block_size is not used then, empty items are kept.

        Returns:
            This data set.

        Raises:
            ConfigError: An argument is wrong, shards are there already, or cannot be
                resumed because items or arguments are others.
            ValueError: An item does not fit the dtype exactly, or has no UTF-8; names
                its index and value.
            TypeError: An item is of a kind that cannot be stored.
        """
        reading_only.check("not written yet; the first training run writes it.")
        if isinstance(items, str | bytes | bytearray | dict):
            raise TypeError(
                "items must be an iterable of documents, got one"
                f" {type(items).__name__}; wrap it in a list"
            )
        layout = Layout(
            block_size=block_size,
            max_shard_bytes=max_shard_bytes,
            separator=separator,
            dtype=None if dtype is None else _parse_dtype(dtype),
            metadata={} if metadata is None else metadata,
            item_shape=parse_item_shape(item_shape),
        )
        self.close()
        modes.write(self._location, items, layout, mode, is_resumed=resume)
        return self

    def open(self) -> "Roxxel":
        """Reads the tails of the shards, no payload; does nothing when open.

        Raises:
            paths.MissingShardsError: There are no shards.
            ConfigError: The path names several data sets.
            ShardFormatError: A file is no complete shard; names it.
        """
        self._opened()
        return self

    def close(self) -> None:
        """Lets go of the files; arrays and batches read before stay as they are."""
        self._reader = None

    def __enter__(self) -> "Roxxel":
        return self.open()

    def __exit__(self, *exc_info) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Roxxel({self._location!r})"

    def __getstate__(self) -> dict:
        return {
            "filepath": self._location,
            "verify": self._verify,
            "drop_behind": self._drop_behind,
        }

    def __setstate__(self, state: dict) -> None:
        self.__init__(**state)

    def __len__(self) -> int:
        """Number of records: items with `item_shape`, blocks without."""
        return self._opened().num_records

    def __getitem__(self, index):
        """Record `index` as a fresh array; a list of them for a slice."""
        reader = self._opened()
        if isinstance(index, slice):
            numbers = range(*index.indices(reader.num_records))
            return [reader.record(i) for i in numbers]
        return reader.record(self._record_number(index))

    def __getitems__(self, indices) -> list[np.ndarray]:
        """Records `indices` at once, as the loader of PyTorch asks for them."""
        numbers = [self._record_number(index) for index in indices]
        return self._opened().records(numbers)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements as they are stored."""
        return self._opened().dtype

    @property
    def item_shape(self) -> tuple[int | None, ...]:
        """Shape of every record, its first dimension None for any; () for sequences."""
        return self._opened().item_shape

    @property
    def num_elements(self) -> int:
        """Length of the virtual sequence: valid elements, padding excluded."""
        return self._opened().num_elements

    @property
    def shards(self) -> list[str]:
        """Paths of the shards in the order of the sequence."""
        return [shard.path for shard in self._opened().shards]

    @property
    def metadata(self) -> dict:
        """What was given to `write`, {} for files that hold none."""
        return modes.metadata_of(self._opened().shards)

    @property
    def is_complete(self) -> bool:
        """False when the shards say that the write which made them was cut off."""
        return modes.is_complete(self._opened().shards)

    @property
    def separator(self) -> list:
        """Elements that follow each document; [] where the shards name none."""
        shards = self._opened().shards
        return (shards[0].extension.get("separator") if shards else None) or []

    def locate_element(self, index: int) -> tuple[str, int]:
        """The shard that element `index` of the sequence is in, and its byte there."""
        reader = self._opened()
        if not 0 <= index < reader.num_elements:
            raise IndexError(f"element {index} of {reader.num_elements}")
        return reader.place(index)

    def fingerprint(self) -> str:
        """32 hex digits that name the data; reads no payload that has checksums.

        The same data written the same way have the same fingerprint anywhere. Files
        of old writers are told apart by sizes and samples of their bytes.
        """
        reader = self._opened()
        if reader.fingerprint is None:
            reader.fingerprint = fingerprint.fingerprint(reader.shards)
        return reader.fingerprint

    def value_range(self) -> tuple[int, ...]:
        """Least and greatest value where the shards record them, else ().

        They do for integers that int32 does not always hold.
        """
        noted = [s.extension.get("range") for s in self._opened().shards if s.records]
        values = [value for pair in noted if pair for value in pair]
        return (min(values), max(values)) if noted and all(noted) else ()

    def elements(self, start: int, stop: int) -> np.ndarray:
        """A copy of elements [start, stop) of the virtual sequence.

        Raises:
            IndexError: They are not all there.
        """
        reader = self._opened()
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= reader.num_elements:
            raise IndexError(
                f"elements {start} to {stop} of {reader.num_elements} in"
                f" {self._location}"
            )
        return reader.elements(start, stop)

    def rows(self, row_ids, seq_len: int, overlap: int = 0, dtype=None) -> np.ndarray:
        """Rows as a fresh array [len(row_ids), seq_len + overlap].

        Row i is elements [i * seq_len, (i + 1) * seq_len + overlap).

        Args:
            row_ids: 1-D integers in [0, (num_elements - overlap) // seq_len).
            seq_len: Elements from the start of a row to that of the next.
            overlap: Elements that a row shares with the next.
            dtype: Of the result; None keeps the stored dtype.

        Raises:
            IndexError: A row is not there.
            TypeError: Row ids are not integers.
            ValueError: They are not 1-D, or a value does not fit `dtype` exactly; names
                it.
        """
        window = self.locate(row_ids, seq_len, overlap, dtype)
        return window.read(0, len(window))

    def locate(self, row_ids, seq_len: int, overlap: int = 0, dtype=None) -> RowWindow:
        """Rows to be read later, a run at a time: `locate(...).read(start, stop)`.

        Arguments and errors are those of `rows`.
        """
        reader = self._opened()
        seq_len = steps.positive("seq_len", seq_len)
        overlap = steps.not_negative("overlap", overlap)
        wanted = reader.dtype if dtype is None else _parse_dtype(dtype)
        dtypes.check_castable(reader.dtype, wanted)
        count = steps.num_rows(reader.num_elements, seq_len, overlap)
        ids = np.asarray(row_ids)
        if ids.ndim != 1:
            raise ValueError(f"row_ids must be 1-D, got shape {ids.shape}")
        if ids.size and ids.dtype.kind not in "iu":
            raise TypeError(f"row_ids must be integers, got dtype {ids.dtype}")
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= count):
            raise IndexError(f"rows {ids.min()} to {ids.max()}, there are {count}")
        return reader.locate(ids.astype(np.int64), seq_len, overlap, wanted)

    def estimate_steps(
        self, seq_len: int | None = None, batch_size: int = 32, overlap: int = 0
    ) -> int:
        """Steps of one epoch: whole batches of rows, or of items without `seq_len`."""
        seq_len = row_elements(self, seq_len, overlap)
        rows = steps.num_rows(self.num_elements, seq_len, overlap)
        return rows // steps.positive("batch_size", batch_size)

    def stream(
        self,
        seq_len: int | None = None,
        batch_size: int = 32,
        seed: int = 42,
        start_step: int = 0,
        epoch: int = 0,
        epochs: int = 1,
        overlap: int = 0,
        dtype=None,
        mesh=None,
        data_sharding=None,
        prefetch: int | None = None,
    ) -> "RoxxelStream":
        """Shuffled batches [batch_size, seq_len + overlap]; see `RoxxelStream`.

        Of data written with a fixed `item_shape`: [batch_size, *item_shape].
        """
        from roxxel.data.stream import RoxxelStream

        return RoxxelStream(
            self,
            seq_len=seq_len,
            batch_size=batch_size,
            seed=seed,
            start_step=start_step,
            epoch=epoch,
            epochs=epochs,
            overlap=overlap,
            dtype=dtype,
            mesh=mesh,
            data_sharding=data_sharding,
            prefetch=prefetch,
        )

    def _record_number(self, index) -> int:
        count, number = len(self), operator.index(index)
        if not -count <= number < count:
            raise IndexError(f"record {number} of {count} in {self._location}")
        return number % count

    def _opened(self) -> ShardReader:
        reader = self._reader
        if reader is None:  # no lock: threads that open it twice read the same
            reader = opening.open_shards(
                self._location,
                is_checked=self._verify == "lazy",
                drops_behind=self._drop_behind,
            )
            self._reader = reader
        return reader


def _parse_dtype(dtype) -> np.dtype:
    try:
        return dtypes.parse(dtype)
    except ValueError as err:
        raise ConfigError(f"{err}.") from err
