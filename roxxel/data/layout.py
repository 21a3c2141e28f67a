"""How elements become blocks and shards: sizes, separator, dtype, metadata."""

import dataclasses
import json
import operator

import numpy as np

from roxxel.data import checksums, dtypes, extension_format, rox_format
from roxxel.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How elements become shards; sizes in bytes.

    `max_shard_bytes` bounds the whole file (None: no bound), except that a shard
    always holds at least one block. `dtype` None is found from the first item.
    """

    block_size: int = 4096
    max_shard_bytes: int | None = None
    separator: object = None
    dtype: np.dtype | None = None
    metadata: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        _check_bytes("block_size", self.block_size)
        if self.max_shard_bytes is not None:
            _check_bytes("max_shard_bytes", self.max_shard_bytes)
        try:
            json.dumps(self.metadata)
        except (TypeError, ValueError) as err:
            raise ConfigError(f"metadata must be plain JSON values: {err}.") from err

    def block_elements(self, dtype: np.dtype) -> int:
        """Elements of a block."""
        if self.block_size % dtype.itemsize:
            raise ConfigError(
                f"block_size is {self.block_size} bytes, expected a multiple of the"
                f" {dtype.itemsize} bytes of an element of {dtype.name}."
            )
        return self.block_size // dtype.itemsize

    def blocks_per_shard(self, dtype: np.dtype, separator: np.ndarray) -> int | None:
        """Blocks that keep a shard within `max_shard_bytes`, at least 1."""
        if self.max_shard_bytes is None:
            return None
        wide = -(1 << 62)
        widest = self.extension(
            dtype,
            elements=wide,
            separator=plain_values(separator),
            pad=wide,
            range=[wide, wide],
            shard=wide,
            last=False,
            sums=checksums.facts(-wide, b""),
        )
        longest = extension_format.pack(widest, {"sums": b""})
        room = self.max_shard_bytes - len(longest) - rox_format.FOOTER_02.size
        room -= len(str(wide))  # of the bytes of the section
        per_block = rox_format.OFFSET_BYTES + extension_format.SUM_BYTES
        return max(1, room // (self.block_size + per_block))

    def extension(self, dtype: np.dtype, **facts) -> dict:
        """The JSON body of a shard's extension; see `rox_format`."""
        return {
            "dtype": dtype.name,
            "block_bytes": self.block_size,
            "item_shape": [],
            "metadata": self.metadata,
            **facts,
        }


def plain_values(values: np.ndarray) -> list:
    """`values` as Python numbers that JSON can hold."""
    if dtypes.is_extension(values.dtype):
        values = values.astype(np.float64)
    return values.tolist()


def _check_bytes(name: str, value) -> None:
    try:
        is_valid = not isinstance(value, bool) and operator.index(value) > 0
    except TypeError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{name} must be a positive number of bytes, got {value!r}.")
