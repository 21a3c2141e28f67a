"""Looking up what followed a token when it was read before."""

import dataclasses

import numpy as np

from roxxel.errors import ConfigError
from roxxel.tasks import rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Induction:
    """A sign among random tokens, and at the end the sign again: what came after it?

        4 9 SIGN 7 2 8 ... 3 SIGN 7

    The induction head of Olsson et al. 2022 (arXiv:2209.11895) as a task, after Gu and
    Dao 2023, "Mamba" (arXiv:2312.00752), section 4.1.2, who train on 256 tokens of a
    vocabulary of 16. One answer a row.

    Attributes:
      vocab_size: tokens and the sign, which is the last id.
      length: tokens before the sign comes again.
    """

    vocab_size: int = 16
    length: int = 64

    def __post_init__(self):
        if self.vocab_size < 3 or self.length < 2:
            raise ConfigError(
                "induction: expected vocab_size >= 3 and length >= 2, got "
                f"{self.vocab_size} and {self.length}."
            )

    @property
    def seq_len(self) -> int:
        """Predictions of a row."""
        return self.length + 1

    @property
    def num_answers(self) -> int:
        """One."""
        return 1

    def rows(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `roxxel.tasks.Task`."""
        sign, every = self.vocab_size - 1, np.arange(count)
        shape = (count, self.length + 2)
        tokens = rng.integers(0, sign, shape, dtype=np.int32)
        place = rng.integers(0, self.length - 1, count)
        tokens[every, place] = tokens[:, self.length] = sign
        tokens[:, -1] = tokens[every, place + 1]
        mask = np.zeros(shape, bool)
        mask[:, -1] = True
        return tokens, mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssociativeRecall:
    """Keys with their values, then all keys again in another order, among noise.

        A 4 B 3 C 6 F 1 | . . C 6 . A 4 F 1 . B 3

    Multi-query associative recall (MQAR): Arora et al. 2023, "Zoology"
    (arXiv:2312.04927), section 3; also the measure of "Based" (arXiv:2402.18668). Keys
    are from the first half of the vocabulary and values from the second, none twice in
    a row. The distance to a key's second place follows a power law of exponent
    `power - 1`. There a key is asked for without its value being written; here the
    value stands behind it, as in a text.

    Attributes:
      vocab_size: ids of keys and values; noise is from all of them.
      num_pairs: keys of a row, each asked for once.
      length: tokens of a row; the pairs take `4 * num_pairs` of them.
      power: of the law of distances; 1 places them evenly.
    """

    vocab_size: int = 64
    num_pairs: int = 8
    length: int = 64
    power: float = 0.01

    def __post_init__(self):
        rows.positive("associative recall", num_pairs=self.num_pairs)
        if self.length < 4 * self.num_pairs:
            raise ConfigError(
                f"associative recall: {self.num_pairs} pairs and their queries take "
                f"{4 * self.num_pairs} tokens, length is {self.length}."
            )
        if self.vocab_size // 2 < self.num_pairs:
            raise ConfigError(
                f"associative recall: vocab_size {self.vocab_size} has no "
                f"{self.num_pairs} different keys and values; give at least "
                f"{2 * self.num_pairs}."
            )
        if not 0 < self.power <= 1:
            raise ConfigError(
                f"associative recall: power must be in (0, 1], got {self.power}."
            )

    @property
    def seq_len(self) -> int:
        """Predictions of a row."""
        return self.length - 1

    @property
    def num_answers(self) -> int:
        """One a pair."""
        return self.num_pairs

    def rows(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `roxxel.tasks.Task`."""
        shape, half = (count, self.num_pairs), self.vocab_size // 2
        keys = rows.distinct(rng, half, shape)
        values = half + rows.distinct(rng, self.vocab_size - half, shape)
        tokens = rng.integers(0, self.vocab_size, (count, self.length), dtype=np.int32)
        tokens[:, 0 : 2 * self.num_pairs : 2] = keys
        tokens[:, 1 : 2 * self.num_pairs : 2] = values
        places = 2 * self.num_pairs + 2 * self._gaps(rng, shape)
        np.put_along_axis(tokens, places, keys.astype(np.int32), axis=1)
        np.put_along_axis(tokens, places + 1, values.astype(np.int32), axis=1)
        mask = np.zeros(tokens.shape, bool)
        np.put_along_axis(mask, places + 1, True, axis=1)
        return tokens, mask

    def _gaps(self, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        """Places of queries, in pairs of tokens, none twice, by the power law.

        The largest of log weight plus Gumbel noise are a weighted draw without
        replacement (Efraimidis and Spirakis 2006).
        """
        space = (self.length - 2 * self.num_pairs) // 2
        weights = np.arange(1, space + 1, dtype=np.float64) ** (self.power - 1)
        scores = np.log(weights) + rng.gumbel(size=(shape[0], space))
        return np.argsort(-scores, axis=1)[:, : shape[1]]
