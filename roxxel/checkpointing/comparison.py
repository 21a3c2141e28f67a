"""Arrays that a checkpoint holds against arrays that the model has: by name, no jax.

An array is described as `[dtype, shape]`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import ml_dtypes
import numpy as np

from roxxel.checkpointing import renaming
from roxxel.errors import ConfigError

# Of floating-point arrays: none, to types that hold every value, to any type.
Cast = Literal["none", "widen", "any"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allowed:
    """What may differ between an array of a checkpoint and that of the model.

    Attributes:
      cast: the type of floating-point numbers.
      resize: patterns of dotted names in the model whose arrays may have another
        number of rows (first dimension).
      optional: beginnings of names, as `optimizer/ema/`, of arrays that may be missing,
        extra or different: the objects' own keep their values.
    """

    cast: Cast = "none"
    resize: Sequence[str] = ()
    optional: Sequence[str] = ()


EXACT = Allowed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Names in a checkpoint against names wanted; the lists read as sentences."""

    matching: list[str]  # taken as they are
    missing: list[str]  # wanted, not in the checkpoint
    extra: list[str]  # in the checkpoint, not wanted
    different: list[str]  # in both, with another shape or dtype
    cast: list[str] = dataclasses.field(default_factory=list)  # to the model's type
    resized: list[str] = dataclasses.field(default_factory=list)  # common rows taken
    left_out: list[str] = dataclasses.field(default_factory=list)  # by a rule

    @property
    def complete(self) -> bool:
        """Nothing is missing, extra or different."""
        return not (self.missing or self.extra or self.different)

    @property
    def taken(self) -> list[str]:
        """Names of the model's arrays that get values."""
        return [_name(text) for text in (*self.matching, *self.cast, *self.resized)]

    def __str__(self):
        parts = [
            f"{title} ({len(names)}): {', '.join(names)}"
            for title, names in (
                ("missing in the checkpoint", self.missing),
                ("extra in the checkpoint", self.extra),
                ("different", self.different),
                ("resized", self.resized),
                ("left out by a rule", self.left_out),
            )
            if names
        ]
        return "; ".join(parts) or f"all {len(self.taken)} arrays match"


def compare(
    wanted: dict[str, list],
    stored: dict[str, list],
    allowed: Allowed = EXACT,
    left_out: Sequence[str] = (),
) -> Comparison:
    """Compares descriptions (`describe`) of the wanted arrays with the stored ones.

    Raises:
      ConfigError: a pattern of `allowed.resize` fits no wanted array.
    """
    resizable = _resizable(wanted, allowed.resize)
    found: dict[str, list[str]] = {
        kind: [] for kind in ("matching", "cast", "resized", "different")
    }
    for name in wanted:
        if name in stored:
            kind = _kind(wanted[name], stored[name], allowed.cast, name in resizable)
            there, here = _text(stored[name]), _text(wanted[name])
            detail = (
                "" if kind == "matching" else f" (checkpoint {there}, model {here})"
            )
            found[kind].append(name + detail)
    found["missing"] = [name for name in wanted if name not in stored]
    found["extra"] = [name for name in stored if name not in wanted]
    for kind in ("missing", "extra", "different"):
        found[kind] = [
            name for name in found[kind] if not name.startswith(tuple(allowed.optional))
        ]
    return Comparison(left_out=list(left_out), **found)


def _kind(wanted: list, stored: list, cast: Cast, resizable: bool) -> str:
    if wanted == stored:
        return "matching"
    (dtype, shape), (old_dtype, old_shape) = wanted, stored
    if dtype != old_dtype and not _may_cast(old_dtype, dtype, cast):
        return "different"
    if shape == old_shape:
        return "cast"
    same_rows = len(shape) == len(old_shape) > 0 and shape[1:] == old_shape[1:]
    return "resized" if resizable and same_rows else "different"


def _may_cast(old: str, new: str, cast: Cast) -> bool:
    limits = [_float_limits(old), _float_limits(new)]
    if cast == "none" or None in limits:
        return False
    (digits, least, most), (new_digits, new_least, new_most) = limits  # type: ignore[misc]
    exact = new_digits >= digits and new_least <= least and new_most >= most
    return exact or cast == "any"


def _float_limits(name: str) -> tuple[int, int, int] | None:
    """Digits of the mantissa and range of exponents; None for other than floats."""
    try:
        info = ml_dtypes.finfo(np.dtype(name))
    except (TypeError, ValueError):
        return None
    return info.nmant, info.minexp, info.maxexp


def _resizable(wanted: dict[str, list], patterns: Sequence[str]) -> set[str]:
    fitting = {pattern: renaming.fitting(wanted, pattern) for pattern in patterns}
    unused = [pattern for pattern, names in fitting.items() if not names]
    if unused:
        dotted = [renaming.dotted(name) for name in wanted]
        raise ConfigError(
            f"init_resize: {', '.join(map(repr, unused))} fits no array of the model; "
            f"it has {', '.join(dotted[:20])}."
        )
    return {name for names in fitting.values() for name in names}


def _name(text: str) -> str:
    return text.partition(" (")[0]


def _text(description: list) -> str:
    dtype, shape = description
    return f"{dtype}[{','.join(map(str, shape))}]"
