"""Which token comes next: temperature, filters and penalties, each row with its own.

Legend: B batch, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from roxxel.errors import ConfigError

_LEAST_TEMPERATURE = 1e-6  # below, logits over it overflow
_MOST = 1e30  # factors beyond, and those below one over it, make no float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the tokens of one row are drawn.

    Filters apply in the order temperature, top_k, top_p, min_p, each to what the former
    left.

    Attributes:
      temperature: divides the logits; 0 takes the most likely token.
      top_k: only the k most likely tokens; None: all.
      top_p: only the most likely ones that together have this probability (Holtzman et
        al. 2020, arXiv:1904.09751).
      min_p: only tokens with at least this share of the most likely one's probability
        (Nguyen et al. 2024, arXiv:2407.01082).
      repetition_penalty: positive logits of tokens that the row holds already are
        divided by it, negative ones multiplied (Keskar et al. 2019, arXiv:1909.05858).
      seed: of the row's draws.

    Raises:
      ConfigError: a value is out of its range; names it.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self):
        _check("temperature", self.temperature, self.temperature >= 0, "0 or more")
        good_k = self.top_k is None or self.top_k >= 1
        _check("top_k", self.top_k, good_k, "at least 1, or none for all")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        penalty = self.repetition_penalty
        _check("repetition_penalty", penalty, penalty > 0, "above 0")
        _check("seed", self.seed, 0 <= self.seed < 2**63, "from 0 to 2**63 - 1")


class Kinds(NamedTuple):
    """What a compiled program has to be able to do.

    Attributes:
      draws: some row's temperature is not 0.
      sorts: some row has top_k or top_p.
      penalises: some row has a repetition penalty.
    """

    draws: bool
    sorts: bool
    penalises: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> "Kinds":
        """The least that these rows need."""
        drawn = [row for row in rows if row.temperature >= _LEAST_TEMPERATURE]
        return cls(
            draws=bool(drawn),
            sorts=any(row.top_k is not None or row.top_p < 1 for row in drawn),
            penalises=any(row.repetition_penalty != 1 for row in rows),
        )


class Knobs(NamedTuple):
    """The settings of all rows as arrays `[B]`; `keys` `[B, 2]` uint32."""

    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    penalty: Any
    keys: Any


def knobs(rows: Sequence[Sampling], vocab_size: int) -> Knobs:
    """The settings of some rows, on the host."""

    def column(name, dtype):
        return np.array([getattr(row, name) for row in rows], dtype)

    def factors(name):
        values = [getattr(row, name) for row in rows]
        return np.clip(values, 1 / _MOST, _MOST).astype(np.float32)

    top_k = [min(row.top_k or vocab_size, vocab_size) for row in rows]
    seeds = column("seed", np.uint64)
    return Knobs(
        temperature=factors("temperature"),
        top_k=np.array(top_k, np.int32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        penalty=factors("repetition_penalty"),
        keys=np.stack([seeds >> 32, seeds & 0xFFFFFFFF], 1).astype(np.uint32),
    )


def choose(
    logits_BV: jax.Array,
    knobs: Knobs,
    drawn_B: jax.Array,
    seen_BV: jax.Array | None,
    kinds: Kinds,
) -> jax.Array:
    """The next token of each row, int32.

    Args:
      logits_BV: float32; tokens that must not come have -inf.
      knobs: the settings.
      drawn_B: number of tokens that each row has drawn: with its key it decides about
        the draw, whatever the other rows are.
      seen_BV: whether a row holds a token already; used where `kinds.penalises`.
      kinds: what is compiled in.
    """
    if kinds.penalises:
        assert seen_BV is not None
        penalty = knobs.penalty[:, None]
        lowered = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
        logits_BV = jnp.where(seen_BV, lowered, logits_BV)
    likeliest_B = _first_max(logits_BV)
    if not kinds.draws:
        return likeliest_B
    is_drawn_B = knobs.temperature >= _LEAST_TEMPERATURE
    warmth_B = jnp.where(is_drawn_B, knobs.temperature, 1.0)
    kept_BV = _filtered(logits_BV / warmth_B[:, None], knobs, kinds)
    noise_BV = jax.vmap(_gumbel, (0, 0, None))(knobs.keys, drawn_B, logits_BV.shape[-1])
    return jnp.where(is_drawn_B, _first_max(kept_BV + noise_BV), likeliest_B)


def _filtered(logits_BV, knobs, kinds):
    """-inf for all tokens that a row does not draw from."""
    top_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    least_B1 = top_B1 + jnp.log(knobs.min_p)[:, None]
    if kinds.sorts:
        sorted_BV = -jnp.sort(-logits_BV, axis=-1)
        rank_V = jnp.arange(logits_BV.shape[-1])
        within_BV = rank_V < knobs.top_k[:, None]
        shares_BV = jax.nn.softmax(jnp.where(within_BV, sorted_BV, -jnp.inf))
        before_BV = jnp.cumsum(shares_BV, axis=-1) - shares_BV
        within_BV &= (before_BV < knobs.top_p[:, None]) | (rank_V == 0)
        last_B1 = jnp.min(
            jnp.where(within_BV, sorted_BV, jnp.inf), axis=-1, keepdims=True
        )
        least_B1 = jnp.maximum(least_B1, last_B1)
    return jnp.where(logits_BV < least_B1, -jnp.inf, logits_BV)


def _gumbel(key_data, drawn, vocab_size):
    key = jax.random.wrap_key_data(key_data, impl="threefry2x32")
    return jax.random.gumbel(jax.random.fold_in(key, drawn), (vocab_size,))


def _first_max(values_BV):
    """As argmax, by two plain reductions: XLA on CPU runs those by vectors.

    Rows with NaN give the last token.
    """
    top_B1 = jnp.max(values_BV, axis=-1, keepdims=True)
    last = values_BV.shape[-1] - 1
    index_V = jnp.arange(last + 1, dtype=jnp.int32)
    return jnp.min(jnp.where(values_BV == top_B1, index_V, last), axis=-1)


def _check(name, value, good, expected):
    if not good or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{name} must be {expected}, got {value}.")
