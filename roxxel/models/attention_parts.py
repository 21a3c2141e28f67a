"""Attention on a mesh: each device has some heads, and queries of a part of the length.

Keys and values come together along the sequence; of grouped heads they are a small
part of the activations. Key heads that are fewer than the devices are shared.

Legend: as in `attention_kernels`, B, L, N and K of a device's part, S whole.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from roxxel.models import attention_kernels, placement
from roxxel.models.attention_kernels import Causal
from roxxel.models.documents import Documents


def attend(
    attention: Causal,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    documents: Documents,
    where: placement.Placement,
) -> jax.Array:
    """`attention(q, k, v, documents)` on a mesh."""
    names = ("batch", "length", "heads", None)
    q_spec, k_spec = where.spec(q.shape, names), where.spec(k.shape, names)
    part = _Part(
        length=where.axis("length", q.shape[1]),
        heads=where.axis("heads", q.shape[2]),
        kv_heads=where.axis("heads", k.shape[2]),
    )
    attention = dataclasses.replace(attention, platform=where.platform)
    kernel, kernel_spec = _splash(attention, q, k, documents, where)
    positions = documents.positions_BL
    run = where.on_parts(
        functools.partial(_attend_part, attention, part),
        (
            kernel_spec,
            q_spec,
            (k_spec, k_spec),
            where.spec(q.shape[:2], names[:2]),
            where.spec(positions.shape, names[:2]),
        ),
        q_spec,
    )
    return run(kernel, q, (k, v), documents.runs_BL, positions)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Axes that cut the length, and the heads of queries and of keys."""

    length: placement.Axis
    heads: placement.Axis
    kv_heads: placement.Axis


def _splash(attention, q, k, documents, where):
    """The TPU kernel and where its arrays lie, or None for both."""
    parts = where.parts("length") if where.axis("length", q.shape[1]) else 1
    if attention.kernel(q, k, documents, parts) != "splash":
        return None, None
    heads = q.shape[2]
    heads //= where.parts("heads") if where.axis("heads", heads) else 1
    kernel = attention.splash(heads, q.shape[1], parts)
    axis = where.axis("length", q.shape[1])
    place = jax.sharding.NamedSharding(where.mesh, PartitionSpec(None, axis))
    return kernel, kernel.manual_sharding_spec(place)


def _attend_part(attention, part, kernel, q, kv, runs, positions):
    """`attend` of one device."""
    k, v = (_all_steps(_own_heads(x, q, part), part.length) for x in kv)
    if kernel is not None:
        all_runs = None if runs is None else _all_steps(runs, part.length)
        return attention_kernels.splash(kernel, q, k, v, runs, all_runs)
    if part.length is None:
        return attention(q, k, v, Documents(runs, positions, jnp.int32(0)))
    first = jax.lax.axis_index(part.length) * q.shape[1]
    query_L, key_S = first + jnp.arange(q.shape[1]), jnp.arange(k.shape[1])
    return attention.masked(q, k, v, positions, query_L, key_S)


def _all_steps(array, axis):
    if axis is None:
        return array
    return jax.lax.all_gather(array, axis, axis=1, tiled=True)


def _own_heads(x, q, part):
    """Of all key heads those that the query heads here read."""
    if part.heads is None or part.kv_heads is not None:
        return x
    devices = placement.axis_size(part.heads)
    head = jax.lax.axis_index(part.heads) * x.shape[2] // devices
    return jax.lax.dynamic_slice_in_dim(x, head, 1, axis=2)
