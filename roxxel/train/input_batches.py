"""One item of an input as token ids, checked and placed: never cut, never wrapped."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from roxxel.errors import ConfigError

# Where a batch that is a dict has its token ids.
KEYS = ("tokens", "input_ids")
# Where it says which of them count as targets.
MASK_KEY = "loss_mask"

Array = np.ndarray | jax.Array


def to_ids(item: Any, key: str | None, where: str) -> Array:
    """The ids of `item` as `[rows, width]` or `[width]` int32, in memory of their own.

    Args:
      item: array, nested lists, tensor, or a dict that holds one of them.
      key: of the dict; None takes the first of `KEYS` that is there.
      where: what `item` is, for errors.

    Raises:
      ConfigError: there are no whole numbers, another number of dimensions, rows of
        different lengths, or ids that int32 does not hold.
    """
    item = _picked(item, key, where)
    if isinstance(item, jax.Array) and item.dtype == jnp.int32 and item.ndim == 2:
        return item
    try:
        array = np.asarray(item)
    except ValueError as err:
        raise ConfigError(f"{where} has rows of different lengths: {err}.") from err
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise ConfigError(
            f"{where} is {array.dtype}{list(array.shape)}; expected whole numbers "
            "[rows, seq_len + 1], or one row of them."
        )
    if array.size and not np.can_cast(array.dtype, np.int32):
        least, most = int(array.min()), int(array.max())
        if least < -(2**31) or most >= 2**31:
            raise ConfigError(
                f"{where} holds ids from {least} to {most}, which int32 does not "
                "hold; they are never wrapped."
            )
    # A copy: the source may use its buffer again behind a live batch.
    return array.astype(np.int32, copy=True)


def _picked(item: Any, key: str | None, where: str) -> Any:
    if not isinstance(item, Mapping):
        return item
    found = key or next((name for name in KEYS if name in item), None)
    if found is None or found not in item:
        wanted = key or " or ".join(KEYS)
        raise ConfigError(
            f"{where} is a dict of {', '.join(map(str, item))}; expected {wanted}, or "
            "name the one with the token ids: Input(..., key=)."
        )
    return item[found]


def to_masked_ids(item: Any, key: str | None, where: str) -> Array:
    """As `to_ids`; an id that its `loss_mask` leaves out comes as `~id`, below zero.

    One array then carries both to where `placed` takes them apart.

    Raises:
      ConfigError: as `to_ids`; or the mask has another shape than the ids, holds
        anything but 0 and 1, or stands beside negative ids.
    """
    ids = to_ids(item, key, where)
    if not is_masked(item):
        return ids
    ids, mask = np.asarray(ids), np.asarray(item[MASK_KEY])
    counts = mask != 0
    if mask.shape != ids.shape or np.any(mask[counts] != 1) or np.any(ids < 0):
        raise ConfigError(
            f"{where}: {MASK_KEY} is {mask.dtype}{list(mask.shape)}; expected 0 or 1 "
            f"for each of the ids {list(ids.shape)}, none of them negative."
        )
    return np.where(counts, ids, ~ids)


def is_masked(item: Any) -> bool:
    """Whether a batch says which of its ids count as targets."""
    return isinstance(item, Mapping) and MASK_KEY in item


def parted(batch: np.ndarray) -> dict[str, np.ndarray]:
    """`tokens` and `loss_mask` of what `to_masked_ids` gave for a masked batch."""
    return {"tokens": np.where(batch < 0, ~batch, batch), MASK_KEY: batch >= 0}


def digest(batch: Array) -> str | None:
    """A hash of the ids; None where all are the same or lie on other processes."""
    if isinstance(batch, jax.Array) and not batch.is_fully_addressable:
        return None
    array = np.ascontiguousarray(batch)
    if not array.size or (array == array.flat[0]).all():
        return None
    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


def placed(
    batch: Array, *, shape: tuple[int, int], sharding: Any, is_part: bool
) -> jax.Array:
    """The global array `[batch_size, width]` int32.

    Args:
      batch: the whole batch, or this process's rows of it.
      shape: of the global array.
      sharding: of the global array; None for the default device.
      is_part: whether `batch` is this process's part.
    """
    if isinstance(batch, jax.Array):
        return batch if sharding is None else jax.device_put(batch, sharding)
    if sharding is None:
        return jnp.asarray(batch)
    if is_part:
        return jax.make_array_from_process_local_data(sharding, batch, shape)
    return jax.make_array_from_callback(shape, sharding, lambda index: batch[index])
