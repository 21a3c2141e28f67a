"""The order of rows: a keyed permutation of [0, N) that needs no array of N.

A balanced Feistel network on pairs (left, right) of Z_a x Z_b, a * b just above N
(J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): each round
adds a keyed hash of one half to the other, modulo its range. Values of N and above are
walked on along their cycle until one falls below N; a * b exceeds N by less than
sqrt(N) + 1, so this is rare. Any position costs the same; memory is that of the answer.

The order is part of every checkpoint's meaning: a run that resumes must see the rows
that it would have seen. A test pins it.
"""

import hashlib
import math
import operator

import numpy as np

_ROUNDS = 6
_MAX_ROWS = 1 << 62
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)  # the finalizer of splitmix64
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFT = np.uint64(32)
_FEW = 8  # positions that are faster one by one than as arrays
_MASK = (1 << 64) - 1


class Permutation:
    """A permutation of [0, size) chosen by `seed` and `epoch`.

    Called with an int64 array of positions it returns the row ids there, int64.
    """

    def __init__(self, size: int, seed: int, epoch: int):
        if not 0 < size <= _MAX_ROWS:
            raise ValueError(f"size must be in 1 to {_MAX_ROWS}, got {size}")
        self.size = size
        left = math.isqrt(size - 1) + 1  # ceil(sqrt(size))
        self._left = np.uint64(left)
        self._right = np.uint64(-(-size // left))
        self._keys = _round_keys(seed, epoch)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Row ids at `positions`, each in [0, size)."""
        if len(positions) <= _FEW:
            ids = [self._one(position) for position in positions.tolist()]
            return np.array(ids, np.int64)
        values = self._encrypt(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            walked = self._encrypt(values[outside])
            values[outside] = walked
            outside = outside[walked >= self.size]
        return values.astype(np.int64)

    def _one(self, value: int) -> int:
        """The same for one position, in Python's integers."""
        left_size, right_size = int(self._left), int(self._right)
        keys = [int(key) for key in self._keys]
        while True:
            left, right = divmod(value, right_size)
            for i in range(0, _ROUNDS, 2):
                left = (left + _hash(right, left_size, keys[i])) % left_size
                right = (right + _hash(left, right_size, keys[i + 1])) % right_size
            value = left * right_size + right
            if value < self.size:
                return value

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        """One pass of the network, a bijection of [0, a * b)."""
        left, right = np.divmod(values, self._right)
        for i in range(0, _ROUNDS, 2):
            _add_hash(left, right, self._left, self._keys[i])
            _add_hash(right, left, self._right, self._keys[i + 1])
        return left * self._right + right


def check_seed(seed) -> int:
    """`seed` as a Python int: any integer, also negative or beyond 64 bits.

    Raises:
        TypeError: It is None, a bool, a float, an array or a jax key.
    """
    try:
        if isinstance(seed, bool | np.bool_) or getattr(seed, "ndim", 0):
            raise TypeError
        return operator.index(seed)
    except TypeError:
        raise TypeError(
            f"seed must be an int, got {seed!r} of type {type(seed).__name__}"
        ) from None


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    text = f"roxxel order 1 {seed} {epoch}".encode()
    digest = hashlib.blake2b(text, digest_size=8 * _ROUNDS).digest()
    return list(np.frombuffer(digest, "<u8").astype(np.uint64))


def _hash(source: int, modulus: int, key: int) -> int:
    """What `_add_hash` adds, for one value."""
    mixed = (source ^ key) * int(_MULTIPLIER_1) & _MASK
    mixed = (mixed ^ mixed >> 32) * int(_MULTIPLIER_2) & _MASK
    return (mixed >> 32) * modulus >> 32


def _add_hash(
    target: np.ndarray, source: np.ndarray, modulus: np.uint64, key: np.uint64
) -> None:
    """target = (target + hash(source, key)) mod modulus, in place."""
    mixed = source ^ key
    mixed *= _MULTIPLIER_1
    mixed ^= mixed >> _SHIFT
    mixed *= _MULTIPLIER_2
    mixed >>= _SHIFT
    mixed *= modulus  # below 2**32 * 2**31
    mixed >>= _SHIFT  # uniform in [0, modulus)
    target += mixed
    np.minimum(target, target - modulus, out=target)  # below modulus it wraps to huge
