"""`roxxel_metrics.csv` as columns of float64, fast enough for a million rows."""

import csv
import math
import pathlib

import numpy as np

from roxxel.runs import files
from roxxel.sinks.csv import FILE_NAME


def read(run: pathlib.Path) -> dict[str, np.ndarray]:
    """Columns by name, `step` first; cells without a value are nan.

    A torn last line, as a kill leaves it, is left out; so are lines of another width.
    A cell that is no number is nan. {} where there is no table.
    """
    path = run / FILE_NAME
    if not files.is_safe(path):
        return {}
    try:
        header, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    columns = next(csv.reader([header.decode("utf-8", "replace")]), [])
    body = body[: body.rfind(b"\n") + 1]
    if not columns or not body:
        return {name: np.zeros(0) for name in columns}
    try:
        values = _numbers(body).reshape(-1, len(columns))
    except ValueError:
        values = _cell_by_cell(body.decode("utf-8", "replace"), len(columns))
    return dict(zip(columns, values.T, strict=True))


def _numbers(body: bytes) -> np.ndarray:
    """All cells in reading order; empty ones are nan."""
    for _ in range(2):  # neighbours overlap: ",,," needs two passes
        body = body.replace(b",,", b",nan,")
    body = body.replace(b",\n", b",nan\n")
    return np.fromstring(body.replace(b"\n", b",").decode("ascii", "replace"), sep=",")


def _cell_by_cell(text: str, width: int) -> np.ndarray:
    """The same for a table that somebody else has written to."""
    rows = [row for row in csv.reader(text.splitlines()) if len(row) == width]
    return np.array([[_number(cell) for cell in row] for row in rows]).reshape(
        -1, width
    )


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
