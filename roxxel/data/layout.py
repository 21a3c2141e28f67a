"""How elements become blocks and shards: sizes, separator, dtype, metadata."""

import dataclasses
import json
import math
import operator
from collections.abc import Mapping

import numpy as np

from roxxel.data import checksums, dtypes, extension_format, rox_format
from roxxel.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How elements become shards; sizes in bytes.

    `max_shard_bytes` bounds the whole file (None: no bound), except that a shard
    always holds at least one block. `dtype` None is found from the first item.

    With `item_shape` every item is a record of its own: a block of that shape, or one
    of any length where the first dimension is None; `block_size` is not used then.
    """

    block_size: int = 4096
    max_shard_bytes: int | None = None
    separator: object = None
    dtype: np.dtype | None = None
    metadata: dict = dataclasses.field(default_factory=dict)
    item_shape: tuple[int | None, ...] = ()

    def __post_init__(self):
        self._set(block_size=_bytes("block_size", self.block_size))
        if self.max_shard_bytes is not None:
            size = _bytes("max_shard_bytes", self.max_shard_bytes)
            self._set(max_shard_bytes=size)
        if self.item_shape and self.separator is not None:
            raise ConfigError(
                f"separator {self.separator!r} is for sequences; items of item_shape"
                f" {self.item_shape} are records of their own, leave it out."
            )
        self._set(metadata=_plain_metadata(self.metadata))
        tokenizer = self.metadata.get("tokenizer")
        if isinstance(tokenizer, dict):
            try:
                extension_format.check_tokenizer(tokenizer)
            except ValueError as err:
                raise ConfigError(f"metadata: {err}.") from err

    def _set(self, **values) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def is_ragged(self) -> bool:
        """Whether items are records of different lengths."""
        return bool(self.item_shape) and self.item_shape[0] is None

    def block_bytes(self, dtype: np.dtype) -> int:
        """Bytes of a block; 0 for records of different lengths."""
        if self.is_ragged:
            return 0
        return self.block_elements(dtype) * dtype.itemsize

    def block_elements(self, dtype: np.dtype) -> int:
        """Elements of a block, of all blocks the same number."""
        if self.item_shape:
            return math.prod(size or 0 for size in self.item_shape)
        if self.block_size % dtype.itemsize:
            raise ConfigError(
                f"block_size is {self.block_size} bytes, expected a multiple of the"
                f" {dtype.itemsize} bytes of an element of {dtype.name}."
            )
        return self.block_size // dtype.itemsize

    def blocks_per_shard(self, dtype: np.dtype, separator: np.ndarray) -> int | None:
        """Blocks that keep a shard within `max_shard_bytes`, at least 1."""
        if self.max_shard_bytes is None or self.is_ragged:
            return None
        room = self.max_shard_bytes - self.tail_bytes(dtype, separator)
        per_block = rox_format.OFFSET_BYTES + extension_format.SUM_BYTES
        return max(1, room // (self.block_bytes(dtype) + per_block))

    def tail_bytes(self, dtype: np.dtype, separator: np.ndarray) -> int:
        """Most bytes of extension and footer, sums left out."""
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
            index_digest=checksums.digest(b""),
        )
        longest = extension_format.pack(widest, {"sums": b""})
        size_of_section = len(str(wide))  # 1 digit in `longest`
        return len(longest) + size_of_section + rox_format.FOOTER_02.size

    def extension(self, dtype: np.dtype, **facts) -> dict:
        """The JSON body of a shard's extension; see `extension_format`."""
        return {
            "dtype": dtype.name,
            "block_bytes": self.block_bytes(dtype),
            "item_shape": list(self.item_shape),
            **extension_format.split_metadata(self.metadata),
            **facts,
        }


def parse_item_shape(item_shape) -> tuple[int | None, ...]:
    """`item_shape` as a tuple of ints; None is ().

    Raises:
        ConfigError: A dimension is not a positive int, nor None in the first place.
    """
    if item_shape is None:
        return ()
    try:
        shape = tuple(item_shape)
        head = tuple(None for size in shape[:1] if size is None)
        shape = head + tuple(operator.index(size) for size in shape[len(head) :])
    except TypeError:
        shape = (0,)
    if not shape or any(size is not None and size < 1 for size in shape):
        raise ConfigError(
            "item_shape must be a tuple of positive ints, the first of which may be"
            f" None for any length, got {item_shape!r}."
        )
    return shape


def plain_values(values: np.ndarray) -> list:
    """`values` as Python numbers that JSON can hold."""
    if dtypes.is_extension(values.dtype):
        values = values.astype(np.float64)
    return values.tolist()


def _bytes(name: str, value) -> int:
    try:
        size = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        size = 0
    if size < 1:
        raise ConfigError(f"{name} must be a positive number of bytes, got {value!r}.")
    return size


def _plain_metadata(metadata) -> dict:
    """`metadata` as it will be read: scalars of numpy are numbers, tuples lists."""
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"metadata must be a dict, got {metadata!r:.200}.")
    try:
        return json.loads(json.dumps(dict(metadata), default=_plain_scalar))
    except (TypeError, ValueError, RecursionError) as err:
        raise ConfigError(f"metadata must be plain JSON values: {err}.") from err


def _plain_scalar(value):
    if isinstance(value, np.bool_ | np.integer | np.floating):
        plain = value.item()
        if isinstance(plain, bool | int | float):
            return plain
    raise TypeError(
        f"{value!r:.100} of {type(value).__name__} is no str, number, bool, None, list"
        " or dict"
    )
