"""Copying what was read: all of it, or what is not noise."""

import dataclasses

import numpy as np

from roxxel.errors import ConfigError
from roxxel.tasks import rows

_NOISE, _GO = 0, 1
_FIRST_SYMBOL = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying:
    """Random symbols, a sign to begin, and the same symbols again.

        5 3 7 7 2 GO 5 3 7 7 2

    The task on which Transformers are told from models of a fixed state in Jelassi et
    al. 2024, "Repeat After Me" (arXiv:2402.01032).

    Attributes:
      vocab_size: symbols and two signs.
      length: symbols to be copied.
    """

    vocab_size: int = 32
    length: int = 16

    def __post_init__(self):
        _check("copying", self.vocab_size, length=self.length)

    @property
    def seq_len(self) -> int:
        """Predictions of a row."""
        return 2 * self.length

    @property
    def num_answers(self) -> int:
        """Symbols of the copy."""
        return self.length

    def rows(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `roxxel.tasks.Task`."""
        symbols = _symbols(rng, self.vocab_size, (count, self.length))
        return _with_answers(symbols, symbols)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopying:
    """Symbols scattered in noise, a sign to begin, and the symbols in their order.

        . . 5 . 3 . . 7 . GO 5 3 7

    Gu and Dao 2023, "Mamba" (arXiv:2312.00752), section 4.1.1, who train on 16 symbols
    in 4096 places. Here an answer stands in the row behind those before it, as in a
    text that is continued, where theirs are asked for all at once.

    Attributes:
      vocab_size: symbols and two signs.
      length: places of the context, noise included.
      num_symbols: to be copied.
    """

    vocab_size: int = 16
    length: int = 64
    num_symbols: int = 8

    def __post_init__(self):
        _check("selective copying", self.vocab_size, num_symbols=self.num_symbols)
        if self.length < self.num_symbols:
            raise ConfigError(
                f"selective copying: {self.num_symbols} symbols have no place in a "
                f"context of length={self.length}."
            )

    @property
    def seq_len(self) -> int:
        """Predictions of a row."""
        return self.length + self.num_symbols

    @property
    def num_answers(self) -> int:
        """Symbols to be copied."""
        return self.num_symbols

    def rows(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `roxxel.tasks.Task`."""
        shape = (count, self.num_symbols)
        symbols = _symbols(rng, self.vocab_size, shape)
        places = np.sort(rows.distinct(rng, self.length, shape), axis=1)
        context = np.full((count, self.length), _NOISE, np.int32)
        np.put_along_axis(context, places, symbols, axis=1)
        return _with_answers(context, symbols)


def _check(owner: str, vocab_size: int, **sizes: int) -> None:
    rows.positive(owner, **sizes)
    if vocab_size < _FIRST_SYMBOL + 2:
        raise ConfigError(
            f"{owner}: vocab_size must be at least {_FIRST_SYMBOL + 2} (two signs and "
            f"two symbols), got {vocab_size}."
        )


def _symbols(
    rng: np.random.Generator, vocab_size: int, shape: tuple[int, int]
) -> np.ndarray:
    return rng.integers(_FIRST_SYMBOL, vocab_size, shape, dtype=np.int32)


def _with_answers(
    context: np.ndarray, answers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Context, the sign, the answers; and the mask of the answers."""
    sign = np.full((len(context), 1), _GO, np.int32)
    tokens = np.concatenate([context, sign, answers], axis=1)
    mask = np.zeros(tokens.shape, bool)
    mask[:, -answers.shape[1] :] = True
    return tokens, mask
