"""What a data set is built from: a source of documents, in parts that stand alone."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

Document = str | bytes | np.ndarray  # text, UTF-8 bytes or token ids


class Part(Protocol):
    """A piece of a source that one process reads: a file, some rows of it.

    Picklable. The documents of a source are those of its parts, one part after the
    other, whoever reads them. A part may also have

    - `done`: units of `size` that its reading has passed, for progress within it;
    - `batches()`: the same documents in lists, where that is cheaper.
    """

    @property
    def size(self) -> int:
        """Its share of the work, in the unit of the source; for progress."""
        ...

    def documents(self) -> Iterator[Document]:
        """The documents in order; errors name file and place."""
        ...


class Source(Protocol):
    """Documents in a fixed order: all of them text, or all of them token ids.

    A source may also have

    - `kind`: "text" or "ids", so that nobody has to look at its first document;
    - `describe()`: a dict of plain JSON values that is stored with the data, such as
      names of files and options, free of folders and times.
    - `check_unchanged()`: raises ConfigError when what it read has changed since.
    """

    @property
    def name(self) -> str:
        """Of the builder, such as `parquet`; shown and stored with the data."""
        ...

    @property
    def unit(self) -> str:
        """What parts are measured in: "bytes", "rows", "files" or "documents"."""
        ...

    def key(self) -> dict:
        """Plain JSON values that name the content and the options it is read with."""
        ...

    def parts(self) -> Sequence[Part]:
        """The pieces in order; reads no more than names and sizes."""
        ...
