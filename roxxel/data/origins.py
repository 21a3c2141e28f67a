"""Where the rows of a batch come from: data set, shard, place in the file, document."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from roxxel.dataset import Roxxel

_DOCUMENT_WINDOW = 1 << 16  # elements read at once when looking back for a separator
_FURTHEST = 1 << 24  # elements looked back over


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """One row of a batch, in one data set.

    Attributes:
      position: of the row in its batch.
      name: of the data set among those of the stream; "" where there is one.
      dataset: that holds it.
      row: its number there: elements [row * seq_len, (row + 1) * seq_len + overlap).
      seq_len: elements from the start of a row to that of the next.
    """

    position: int
    name: str
    dataset: "Roxxel"
    row: int
    seq_len: int

    @property
    def element(self) -> int:
        """The first element of the row."""
        return self.row * self.seq_len


def of_ids(
    ids: np.ndarray,
    *,
    name: str,
    dataset: "Roxxel",
    seq_len: int,
    positions: np.ndarray | None = None,
) -> list[Origin]:
    """Origins of rows `ids`, at `positions` of their batch or in its order."""
    places = range(len(ids)) if positions is None else positions.tolist()
    return [
        Origin(position=at, name=name, dataset=dataset, row=row, seq_len=seq_len)
        for at, row in zip(places, ids.tolist(), strict=True)
    ]


def describe(origin: Origin, overlap: int) -> dict[str, Any]:
    """JSON values: `dataset`, `row`, `element`, `shard`, `offset`, `document`.

    `shard` is a path and `offset` the byte in it where the row begins. `document` is
    the first element of the document that the row begins in, where the data have
    separators; None where they have none, or none within 16 M elements.
    """
    shard, offset = origin.dataset.locate_element(origin.element)
    known = {
        "dataset": origin.name,
        "row": origin.row,
        "element": origin.element,
        "elements": origin.seq_len + overlap,
        "shard": shard,
        "offset": offset,
        "document": _document(origin),
    }
    return known


def elements(origin: Origin, overlap: int) -> np.ndarray:
    """The row as it is stored."""
    stop = min(origin.element + origin.seq_len + overlap, origin.dataset.num_elements)
    return origin.dataset.elements(origin.element, stop)


def _document(origin: Origin) -> int | None:
    separator = origin.dataset.separator
    if not separator:
        return None
    stop = origin.element
    least = max(0, stop - _FURTHEST)
    while stop > least:
        start = max(least, stop - _DOCUMENT_WINDOW)
        # A separator of several elements may lie across the windows.
        first = max(least, start - len(separator) + 1)
        found = _last_end(origin.dataset.elements(first, stop), separator)
        if found is not None:
            return first + found
        stop = start
    return 0 if least == 0 else None


def _last_end(values: np.ndarray, separator: list) -> int | None:
    """Behind the last whole separator in `values`."""
    count = len(values) - len(separator) + 1
    if count < 1:
        return None
    match = np.ones(count, bool)
    for shift, value in enumerate(separator):
        match &= values[shift : shift + count] == value
    ends = np.flatnonzero(match)
    return int(ends[-1]) + len(separator) if len(ends) else None
