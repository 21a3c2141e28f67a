"""Columns of Arrow tables as documents: text, or lists of token ids.

A null is an empty document, which stores nothing.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from roxxel import extras
from roxxel.errors import ConfigError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as err:
    raise extras.missing("roxxel.building.arrow", "parquet", err) from err

Place = Callable[[int], str]  # names the file and the row, from 0, of the column

_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 8192
_TEXT_TYPES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)
_LIST_TYPES = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
)


def find_column(schema: pa.Schema, column: str, where: str) -> pa.DataType:
    """Type of `column`, a name or a path through structs such as `meta.text`.

    Raises:
        ConfigError: It is not there, or holds neither text nor lists of integers.
    """
    kind = _type_at(schema, column)
    if kind is None:
        names = ", ".join(map(repr, schema.names[:10])) or "none"
        more = ", ..." if len(schema.names) > 10 else ""
        raise ConfigError(
            f"{where}: no column {column!r}; columns there: {names}{more}; choose with "
            "column=."
        )
    if not _is_readable(kind):
        raise ConfigError(
            f"{where}: column {column!r} is {kind}, expected text or lists of integers."
        )
    return kind


def select(table: pa.Table | pa.RecordBatch, column: str) -> pa.ChunkedArray | pa.Array:
    """The values of `column` (see `find_column`); null where a struct around is."""
    if column in table.schema.names:
        return table.column(column)
    top, *fields = column.split(".")
    values = table.column(top)
    for name in fields:
        values = pc.call_function("struct_field", [values], pc.StructFieldOptions(name))
    return values


def batch_rows(num_rows: int, num_bytes: int) -> int:
    """Rows to read at once so that they take some MB."""
    return max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * num_rows // max(1, num_bytes)))


def documents(
    column: pa.ChunkedArray | pa.Array, place: Place
) -> Iterator[bytes | np.ndarray]:
    """One document a row: UTF-8 bytes, or a 1-D array of token ids.

    Raises:
        ConfigError: Text is not UTF-8 or a list holds a null; names the row.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    first = 0
    for chunk in chunks:
        yield from _chunk_documents(chunk, lambda i, first=first: place(first + i))
        first += len(chunk)


def _chunk_documents(chunk: pa.Array, place: Place) -> Iterator[bytes | np.ndarray]:
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    if pa.types.is_null(chunk.type):
        return itertools.repeat(b"", len(chunk))
    if any(is_text(chunk.type) for is_text in _TEXT_TYPES):
        return _texts(chunk, place)
    if _is_readable(chunk.type):
        return _token_lists(chunk, place)
    raise ConfigError(
        f"{place(0)}: is {chunk.type}, expected text or lists of integers."
    )


def _texts(chunk: pa.Array, place: Place) -> Iterator[bytes]:
    try:
        texts = chunk.cast(pa.large_string())  # checks what was bytes
        texts.validate(full=True)  # and what was said to be text
    except pa.ArrowInvalid as err:
        row = next(i for i, value in enumerate(chunk) if not _is_utf8(value))
        raise ConfigError(f"{place(row)}: not UTF-8 text.") from err
    if texts.null_count:
        texts = texts.fill_null("")
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset :][: len(texts) + 1]
    raw = memoryview(data or b"")
    for start, stop in itertools.pairwise(ends.tolist()):
        yield bytes(raw[start:stop])


def _token_lists(chunk: pa.Array, place: Place) -> Iterator[np.ndarray]:
    lengths = pc.call_function("list_value_length", [chunk]).fill_null(0)
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)
    values = chunk.flatten()
    if values.null_count:
        index = pc.index(values.is_null(), True).as_py()
        row = int(np.searchsorted(ends, index, side="right"))
        raise ConfigError(f"{place(row)}: a token is null, expected an integer.")
    tokens = values.to_numpy(zero_copy_only=False)
    for start, stop in itertools.pairwise([0, *ends.tolist()]):
        yield tokens[start:stop]


def _is_utf8(value: pa.Scalar) -> bool:
    try:
        raw = value.as_py()  # raises for text
        (raw if isinstance(raw, bytes) else b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_readable(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if any(is_list(kind) for is_list in _LIST_TYPES):
        return pa.types.is_integer(kind.value_type)
    return pa.types.is_null(kind) or any(is_text(kind) for is_text in _TEXT_TYPES)


def _type_at(schema: pa.Schema, column: str) -> pa.DataType | None:
    if column in schema.names:
        return schema.field(column).type
    top, *fields = column.split(".")
    if top not in schema.names:
        return None
    kind = schema.field(top).type
    for name in fields:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind
