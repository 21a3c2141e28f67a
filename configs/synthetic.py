"""Small data sets that are made rather than read: any vocabulary, no files needed."""

import os
import pathlib

import numpy as np

from roxxel.building import cache
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError

_CODE_VERSION = 1
_NUM_WORDS = 256
_WORD_LENGTH = 8


def tokens(
    vocab_size: int,
    *,
    num_elements: int = 65_536,
    seed: int = 0,
    cache_dir: str | os.PathLike | None = None,
) -> Roxxel:
    """Ids below `vocab_size`: random words out of a small list, so a model can learn.

    The words are the same for every seed; the seed chooses their order. Bytes where the
    vocabulary allows it. Built once, into the data cache.

    Raises:
      ConfigError: a size is not positive, or the cache cannot be written to.
    """
    for name, value in (("vocab_size", vocab_size), ("num_elements", num_elements)):
        if value < 1:
            raise ConfigError(f"synthetic data: {name} must be positive, got {value}.")
    key = [_CODE_VERSION, vocab_size, num_elements, seed]

    def build(folder: pathlib.Path) -> dict:
        ids = _words(vocab_size, num_elements, seed)
        Roxxel(str(folder / "tokens_*.rox")).write([ids])
        return {"vocab_size": vocab_size, "elements": num_elements}

    folder, _ = cache.find_or_build("synthetic", key, build, cache_dir=cache_dir)
    return Roxxel(str(folder / "tokens_*.rox"))


def _words(vocab_size: int, num_elements: int, seed: int) -> np.ndarray:
    shape = (_NUM_WORDS, _WORD_LENGTH)
    words = np.random.default_rng(0).integers(0, vocab_size, shape)
    count = -(-num_elements // _WORD_LENGTH)
    chosen = np.random.default_rng([1, seed]).integers(0, _NUM_WORDS, count)
    ids = words[chosen].reshape(-1)[:num_elements]
    return ids.astype(np.min_scalar_type(vocab_size - 1))
