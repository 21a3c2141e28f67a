"""Which axes of a mesh cut which dimension of an array, by the dimension's name.

Parameters name their dimensions where they are made (`nnx.Param(value,
logical_axes=("embed", "mlp"))`), activations where they are used. Pure: needs no
devices, axis sizes by name do.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from roxxel import extras
from roxxel.errors import ConfigError

try:
    from jax.sharding import PartitionSpec
except ImportError as err:
    raise extras.missing("roxxel.sharding", "checkpoint", err) from err

Axes = str | tuple[str, ...] | None

# Arrays of fewer elements are not cut: gathering them costs more than they take.
MIN_SHARDED_ELEMENTS = 2**12

# Dimensions of parameters that are cut where they are kept and whole where they are
# used: gathered as a block begins, their gradients scattered again.
_GATHERED = ("largest", "in_columns")

# Dimensions that activations have together.
_STEPS, _FEATURES = ("batch", "length"), ("vocab", "heads", "mlp", "inner")
_TOGETHER = (_STEPS, *itertools.product(_STEPS, _FEATURES))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxisRules:
    """For each logical dimension the axis, or the axes, of the mesh that cut it.

    None leaves it whole; axes that a mesh does not have do nothing.

    Attributes:
      batch: rows of a batch.
      length: the sequence of activations; one axis. Tokens themselves are whole on it.
      vocab: rows of embedding and head, and the logits of the loss.
      embed: the width of the residual stream, of parameters.
      heads: heads of attention, of queries and keys.
      mlp: the inner width of the feed-forward part.
      inner: heads of a Mamba-2 mixer with their channels; its groups where they divide.
      in_columns: columns of a mixer's in-projection, which are of several kinds side
        by side: cut where they are kept, gathered for use.
      largest: of what is left of a parameter the largest dimension that divides; it is
        gathered for use. That is FSDP.
    """

    batch: Axes = ("data", "replica", "fsdp")
    length: Axes = "context"
    vocab: Axes = "tensor"
    embed: Axes = None
    heads: Axes = "tensor"
    mlp: Axes = "tensor"
    inner: Axes = "tensor"
    in_columns: Axes = "tensor"
    largest: Axes = "fsdp"

    def __post_init__(self):
        for name, value in vars(self).items():
            is_given = value is None or isinstance(value, str | tuple | list)
            if not is_given or not all(isinstance(v, str) for v in _tuple(value)):
                raise ConfigError(
                    f"axis_rules: {name} must be an axis, a tuple of axes or None, got "
                    f"{value!r}."
                )
        for first, second in _TOGETHER:
            one, other = (_tuple(getattr(self, name)) for name in (first, second))
            if both := set(one) & set(other):
                raise ConfigError(
                    f"axis_rules: {first} and {second} name the same axis "
                    f"{min(both)!r}; an axis cuts one dimension of an array."
                )

    def axes(self, name: str | None, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The axes longer than 1 that cut the dimension `name`, as a mesh has them."""
        chosen = _tuple(getattr(self, name)) if name else ()
        return tuple(axis for axis in sizes if axis in chosen and sizes[axis] > 1)

    def parts(self, name: str, sizes: Mapping[str, int]) -> int:
        """Into how many parts a mesh of these sizes cuts the dimension `name`."""
        return math.prod(sizes[axis] for axis in self.axes(name, sizes))

    def in_use(self) -> "AxisRules":
        """The rules for parameters while a block uses them."""
        return dataclasses.replace(self, **dict.fromkeys(_GATHERED))


def _tuple(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def spec(
    rules: AxisRules,
    sizes: Mapping[str, int],
    shape: Sequence[int],
    names: Sequence[str | None],
) -> PartitionSpec:
    """How an activation lies whose dimensions have `names`; uneven ones stay whole."""
    found = [rules.axes(name, sizes) for name in names]
    parts = [math.prod(sizes[axis] for axis in axes) for axes in found]
    cuts = zip(found, parts, shape, strict=True)
    return _partition([axes if not size % n else () for axes, n, size in cuts])


def parameter_spec(
    rules: AxisRules,
    sizes: Mapping[str, int],
    shape: Sequence[int],
    names: Sequence[str | None] | None = None,
) -> PartitionSpec:
    """How an array of a model's or an optimizer's state lies.

    Its named dimensions are cut by their rules where they divide; then the largest one
    left (of equals the first) by the rule `largest`, or a cut one further. Arrays of
    fewer than `MIN_SHARDED_ELEMENTS` are whole. Names that do not fit the shape, as
    those of a parameter do not fit its factored second moment, count as none.
    """
    if math.prod(shape) < MIN_SHARDED_ELEMENTS:
        return PartitionSpec()
    if names is None or len(names) != len(shape):
        names = (None,) * len(shape)
    cuts = [
        axes if size % math.prod(sizes[axis] for axis in axes) == 0 else ()
        for axes, size in zip((rules.axes(n, sizes) for n in names), shape, strict=True)
    ]
    cuts = _without_doubles(cuts)
    taken = {axis for axes in cuts for axis in axes}
    more = tuple(a for a in rules.axes("largest", sizes) if a not in taken)
    if more:
        _cut_largest(cuts, more, sizes, shape)
    return _partition(cuts)


def _cut_largest(cuts, more, sizes, shape):
    parts = math.prod(sizes[axis] for axis in more)
    left = [
        size // math.prod(sizes[axis] for axis in axes)
        for axes, size in zip(cuts, shape, strict=True)
    ]
    fitting = [dim for dim, size in enumerate(left) if size and size % parts == 0]
    whole = [dim for dim in fitting if not cuts[dim]] or fitting
    if whole:
        largest = max(whole, key=lambda dim: left[dim])
        cuts[largest] = (*cuts[largest], *more)


def _without_doubles(cuts):
    """`cuts` in which an axis cuts only the first dimension that names it."""
    seen: set[str] = set()
    kept = []
    for axes in cuts:
        kept.append(axes if seen.isdisjoint(axes) else ())
        seen.update(axes)
    return kept


def _partition(cuts) -> PartitionSpec:
    entries = [
        None if not axes else axes[0] if len(axes) == 1 else axes for axes in cuts
    ]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
