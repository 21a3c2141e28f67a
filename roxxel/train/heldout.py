"""The rows that an evaluation predicts: a data set cut into windows, none left out."""

from typing import Any, Protocol

import numpy as np

from roxxel.errors import ConfigError


class Rows(Protocol):
    """A held-out set as rows of one length."""

    @property
    def seq_len(self) -> int:
        """Predictions a row."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of the set."""
        ...

    @property
    def num_targets(self) -> int:
        """Predictions that count, in all rows."""
        ...

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [start, stop): tokens `[rows, seq_len + 1]` int32, and what counts.

        The second is a float32 mask of the same shape, 1 for each token that counts as
        a target.
        """
        ...


class Windows:
    """A `roxxel.Roxxel` in windows of `seq_len` predictions, in order.

    Window i predicts elements [i*seq_len + 1, (i+1)*seq_len] from those before them in
    the window; the last one is padded and the padding not counted.
    """

    def __init__(self, dataset: Any, seq_len: int):
        self._dataset, self.seq_len = dataset, seq_len

    @property
    def num_targets(self) -> int:
        """All elements but the first."""
        return max(0, self._dataset.num_elements - 1)

    @property
    def num_rows(self) -> int:
        """Windows, the padded one included."""
        return -(-self.num_targets // self.seq_len)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Windows [start, stop) and their mask, see `Rows`.

        Raises:
          ConfigError: an id does not fit int32.
        """
        width = self.seq_len + 1
        tokens = np.zeros((stop - start, width), np.int32)
        for row, index in enumerate(range(start, stop)):
            window = self._window(index)
            tokens[row, : len(window)] = window
        left = self.num_targets - np.arange(start, stop)[:, None] * self.seq_len
        places = np.arange(width)[None]
        return tokens, ((places >= 1) & (places <= left)).astype(np.float32)

    def _window(self, index: int) -> np.ndarray:
        first = index * self.seq_len
        stop = min(first + self.seq_len + 1, self._dataset.num_elements)
        window = np.asarray(self._dataset.elements(min(first, stop), stop))
        if not np.can_cast(window.dtype, np.int32) and window.size:
            _check_fits(window)
        return window


def _check_fits(ids: np.ndarray) -> None:
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most > np.iinfo(np.int32).max:
        raise ConfigError(
            f"evaluation: ids from {least} to {most} do not fit int32; they are never "
            "wrapped. Store ids below 2**31."
        )


def padded(rows: Rows, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """As `rows.read`, with rows of zeros that do not count behind the last one."""
    last = min(stop, rows.num_rows)
    tokens, mask = rows.read(min(start, last), last)
    missing = ((0, stop - start - len(tokens)), (0, 0))
    return np.pad(tokens, missing), np.pad(mask, missing)


def bytes_per_token(dataset: Any) -> float | None:
    """Bytes of text behind a token, where the data set tells: 1 for bytes.

    Tokenised data tell by `bytes_per_token` in their metadata, the mean over the set.
    """
    metadata = getattr(dataset, "metadata", None)
    if metadata is None:
        return None
    told = metadata.get("bytes_per_token")
    if isinstance(told, int | float) and told > 0:
        return float(told)
    tokenizer = metadata.get("tokenizer")
    is_bytes = np.dtype(dataset.dtype) == np.uint8 and _is_of_bytes(tokenizer)
    return 1.0 if is_bytes else None


def _is_of_bytes(tokenizer: Any) -> bool:
    name = tokenizer.get("name") if isinstance(tokenizer, dict) else tokenizer
    return name in (None, "bytes")
