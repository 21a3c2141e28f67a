"""A Mamba-2 mixer on a mesh: each device has some heads, and a part of the sequence.

The in-projection is used whole, its columns by kind: z, x and dt of the device's heads,
B and C of its groups; several devices may share a group. Along the sequence each
device scans its part from an empty state. Its end and its decay go to the right, where
the states that enter are combined from them; what they add to the outputs is linear.
The convolution needs the last T inputs of the left neighbour.

Legend: as in `mixer`, B and L of a device's part.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from roxxel.models import layers, placement, ssd, ssd_chunk
from roxxel.models.mixer_core import MixerState

if TYPE_CHECKING:
    from roxxel.models.mixer import Mamba2Mixer


# Of these the devices of a shared group have the same.
_OF_GROUPS = ("B", "C")


class _Columns(NamedTuple):
    """One value for each kind of columns of the in-projection."""

    z: Any
    x: Any
    B: Any
    C: Any
    dt: Any


@dataclasses.dataclass(frozen=True)
class _Part:
    """Which part of a mixer a device has: the axes, and how groups are shared."""

    length: placement.Axis
    inner: placement.Axis
    groups: int
    inner_parts: int

    @property
    def sharing(self) -> int:
        """Devices that share a group; 1: each has groups of its own."""
        return max(1, self.inner_parts // self.groups)

    def axis_of(self, kind: str) -> placement.Axis:
        """The axis that cuts columns of a kind."""
        return None if kind in _OF_GROUPS and self.sharing > 1 else self.inner

    def here(self, kind: str, array: jax.Array) -> jax.Array:
        """Of columns of all groups those of the one shared here."""
        if kind not in _OF_GROUPS or self.sharing == 1:
            return array
        size = array.shape[-1] // self.groups
        first = jax.lax.axis_index(self.inner) // self.sharing * size
        return jax.lax.dynamic_slice_in_dim(array, first, size, axis=-1)

    def joined(self, x_B_C: Sequence[jax.Array]) -> jax.Array:
        """x, B and C of this device side by side."""
        kinds = zip(("x", *_OF_GROUPS), x_B_C, strict=True)
        return jnp.concatenate([self.here(*pair) for pair in kinds], axis=-1)


def mix(
    mixer: "Mamba2Mixer",
    u_BLD: jax.Array,
    runs_BL: jax.Array | None,
    where: placement.Placement,
) -> tuple[jax.Array, MixerState]:
    """What `out_proj` takes, `[B, L, I]`, and the state after the last step.

    Args:
      mixer: whose parameters these are.
      u_BLD: normalised inputs.
      runs_BL: document number of each step; None: one document.
      where: the mesh.

    Raises:
      ValueError: a part of the sequence is shorter than the convolution's history.
    """
    part = _Part(
        length=where.axis("length", u_BLD.shape[1]),
        inner=where.axis("inner", mixer.n_heads),
        groups=mixer.n_groups,
        inner_parts=where.parts("inner"),
    )
    _check_length(mixer, u_BLD.shape[1], where)
    core, kinds = mixer.core(), _Columns._fields
    weights = [
        where.constrained(weight, (None, "inner" if part.axis_of(kind) else None))
        for kind, weight in zip(
            kinds, _split(mixer, mixer.in_proj[...], kinds), strict=True
        )
    ]
    columns = [layers.dense(u_BLD, weight, mixer.dtype) for weight in weights]
    convolved = [
        _split(mixer, v, kinds[1:4]) for v in (core.conv_weight, core.conv_bias)
    ]
    heads = (core.A_log, core.D, core.dt_bias, core.norm_scale)
    rows = tuple(where.spec(u_BLD.shape[:2], ("batch", "length")))
    rows += (None,) * (2 - len(rows))
    axes = [part.axis_of(kind) for kind in kinds]
    column_specs = [PartitionSpec(*rows, axis) for axis in axes]
    conv_specs = [PartitionSpec(None, axis) for axis in axes[1:4]]
    bias_specs = [PartitionSpec(axis) for axis in axes[1:4]]
    tails = [PartitionSpec(rows[0], None, axis) for axis in axes[1:4]]
    run = where.on_parts(
        functools.partial(_mix_part, core, part),
        (
            column_specs,
            PartitionSpec(*rows),
            [conv_specs, bias_specs],
            (PartitionSpec(part.inner),) * 4,
        ),
        (column_specs[0], PartitionSpec(rows[0], part.inner), tails),
    )
    y_BLI, ssm, conv = run(columns, runs_BL, convolved, heads)
    ssm = ssd.group_state(ssm, ssm.shape, mixer.n_groups)
    return y_BLI, MixerState(ssm, jnp.concatenate(conv, axis=-1))


def _mix_part(core, part, columns, runs, convolved, heads):
    """`mix` of one device: y, the state by head, and the tails of x, B and C."""
    z, *x_B_C, dt = columns
    before = jnp.zeros(z.shape[0], jnp.int32)
    if runs is not None:
        before = placement.from_left(runs[:, -1], part.length)
    former = convolved[0][0].shape[0] - 1
    tails = [_tail(v, former, runs, before) for v in x_B_C]
    history = part.joined(placement.from_left(tails, part.length))
    core = _core_here(core, part, convolved, heads)
    state = MixerState(_empty(core, z, x_B_C[1], part), history)
    own = (z, part.joined(x_B_C), dt)
    if part.length is None:
        y, after = core.mix(own, state, runs)
    else:
        scan = functools.partial(_scan_part, core, part.length)
        y, after = core.mix_whole(scan, (state, before), own, runs)
    ssm = ssd.head_state(after.ssm, core.A_log.shape[0])
    return y, placement.of_last(ssm, part.length), placement.of_last(tails, part.length)


def _core_here(core, part, convolved, heads):
    kernels, biases = convolved
    shared = None
    if part.sharing > 1:
        shared = layers.Shared(part.inner, part.groups, part.sharing)
    names = ("A_log", "D", "dt_bias", "norm_scale")
    return dataclasses.replace(
        core,
        conv_weight=part.joined(kernels),
        conv_bias=part.joined(biases),
        n_groups=max(1, part.groups // part.inner_parts),
        norm_shared=shared,
        **dict(zip(names, heads, strict=True)),
    )


def _empty(core, z, b, part):
    """The state before the first step, `[B, G, N, W]`."""
    size = part.here("B", b).shape[-1] // core.n_groups
    return jnp.zeros((z.shape[0], core.n_groups, size, z.shape[-1] // core.n_groups))


def _tail(x, former, runs, before):
    """The last inputs of a part; zero where they are of a former document."""
    empty = jnp.zeros((x.shape[0], former, x.shape[-1]), x.dtype)
    return layers.next_history(x, empty, runs, before)


def _scan_part(core, axis, state, x, a, b, c, *, runs, before):
    """The state space part of one group, of one device's part of the sequence.

    `state` is empty, and so is what a document that began further left leaves in it.
    """
    y, own = core.scan(state, x, a, b, c, runs=runs, before=before)
    sums = jnp.cumsum(a, axis=1)
    if runs is not None:
        goes_on = (runs == before[:, None])[..., None]
        sums = jnp.where(goes_on, sums, -jnp.inf)
    decays = jnp.exp(sums)
    whole = ssd_chunk.spread(decays[:, -1], own.shape[::2])[:, None]
    entering = placement.carried_from_left(own, whole, axis)
    read = jnp.einsum("bln,bnw->blw", c, entering)
    y += read * ssd_chunk.spread(decays, read.shape)
    return y, own + whole * entering


def _split(mixer, array, kinds):
    """The last axis of `array` by kinds of columns."""
    group = mixer.n_groups * mixer.state_dim
    sizes = _Columns(mixer.d_inner, mixer.d_inner, group, group, mixer.n_heads)
    ends = list(itertools.accumulate(getattr(sizes, kind) for kind in kinds))
    return jnp.split(array, ends[:-1], axis=-1)


def _check_length(mixer, length, where):
    parts = where.parts("length") if where.axis("length", length) else 1
    former = mixer.conv_weight.shape[0] - 1
    if parts > 1 and length // parts < former:
        raise ValueError(
            f"{length} tokens in {parts} parts (context) are {length // parts} a part; "
            f"conv_width = {former + 1} needs at least {former}."
        )
