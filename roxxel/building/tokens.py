"""Arrays that are said to hold token ids: checked, and named by their content."""

import hashlib
from collections.abc import Iterable

import numpy as np

from roxxel.building.source import Document
from roxxel.data import dtypes
from roxxel.errors import ConfigError

PART_BYTES = 64 << 20  # what a part of a large source holds, about


def integers(
    array: np.ndarray, where: str, dtype: np.dtype | None = None
) -> np.ndarray:
    """`array` itself if it holds integers; floats as `dtype` if that is given.

    Raises:
        ConfigError: It holds something else, or a float that is not exact in `dtype`.
    """
    kind = array.dtype.kind
    if kind in "iu":
        return array
    if kind == "f" and dtype is not None:
        try:
            return _exact(array, dtype)
        except ValueError as err:
            raise ConfigError(f"{where}: {err}.") from err
    hint = {
        "f": "; if they are whole numbers, say so with dtype=, e.g. dtype='int32'",
        "O": "; object arrays are not read, save one array for each",
    }.get(kind, "")
    raise ConfigError(f"{where}: holds {array.dtype}, expected integer ids{hint}.")


def parse_dtype(name: str | np.dtype | type, option: str) -> np.dtype:
    """The integer dtype called `name`, in little-endian order unless it says big.

    Raises:
        ConfigError: It is no integer dtype; names `option`.
    """
    try:
        dtype = np.dtype(name)
    except TypeError as err:
        raise ConfigError(f"{option} is {name!r}: {err}.") from err
    if dtype.kind not in "iu":
        raise ConfigError(f"{option} is {dtype}, expected an integer dtype.")
    return dtype if dtype.byteorder == ">" else dtype.newbyteorder("<")


def content_hash(documents: Iterable[Document]) -> str:
    """Hash of all documents and where each ends, read once."""
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        if isinstance(document, np.ndarray):
            digest.update(f"|{document.dtype.str}{document.size}|".encode())
            digest.update(np.ascontiguousarray(document).view(np.uint8).data)
        else:
            raw = document.encode() if isinstance(document, str) else document
            digest.update(f"|{len(raw)}|".encode())
            digest.update(raw)
    return digest.hexdigest()


def _exact(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    index = dtypes.first_misfit(array, dtype)
    if index is not None:
        raise ValueError(f"{array.reshape(-1)[index]} is not exact as {dtype.name}")
    return array.astype(dtype)
