"""Bytes of a training state on one device of a mesh, from shapes alone."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roxxel.config import abstract, check_model, imports

FSDP_AXIS = "fsdp"  # over which parameters and the optimizer's state are cut


def mesh_sizes(
    axes: Mapping[str, int] | None, devices: int | None, problems: list[str]
) -> dict[str, int]:
    """Axis sizes with -1 resolved, for `devices`, or for the fewest that fit.

    Adds a problem where they do not fit; -1 counts as 1 then.
    """
    sizes = dict(axes or {"data": -1})
    free = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    total = devices or max(1, known)
    fits = known > 0 and (total % known == 0 if free else total == known)
    if len(free) > 1 or not fits:
        problems.append(
            f"mesh_axes: {sizes} do not fit {total} device(s): the sizes must multiply "
            "to that number, and at most one may be -1."
        )
        return sizes | dict.fromkeys(free, 1)
    return sizes | {name: total // known for name in free}


def memory(
    model: Any,
    values: abstract.Values,
    mesh: Mapping[str, int],
    limit: int | None,
    *,
    problems: list[str],
) -> str:
    """Bytes by kind on one device; adds a problem where they exceed `limit`."""
    per_device = _per_device(mesh)
    params = [leaf for _, leaf in check_model.leaves(model)]
    parts = {"parameters": per_device(params), "gradients": per_device(params)}
    others = _other_state(model)
    if others:
        parts["other state"] = per_device(others)
    state = _optimizer_state(model, values.get("optimizer"), problems)
    if state is not None:
        parts["optimizer state"] = per_device(state)
    total = sum(parts.values())
    lines = [f"memory of one device, mesh {_shown_mesh(mesh)}"]
    lines += [f"  {name:<16} {shown(size):>12}" for name, size in parts.items()]
    lines.append(f"  {'together':<16} {shown(total):>12}, without activations")
    if state is None:
        lines.append("  optimizer state  not known")
    if limit is not None and total > limit:
        problems.append(
            f"memory: {shown(total)} a device without activations, --memory allows "
            f"{shown(limit)}; use more devices on an axis {FSDP_AXIS!r} of mesh_axes, "
            "or a smaller model."
        )
    return "\n".join(lines)


def shown(size: float) -> str:
    """Bytes in the largest fitting binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.2f} {unit}"
        size /= 1024
    raise AssertionError


def _shown_mesh(mesh: Mapping[str, int]) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in mesh.items())
    return f"{axes} ({math.prod(mesh.values())} device(s))"


def _per_device(mesh: Mapping[str, int]) -> Callable[[Iterable[Any]], int]:
    shards = mesh.get(FSDP_AXIS, 1)
    return lambda leaves: sum(_leaf_bytes(leaf, shards) for leaf in leaves)


def _leaf_bytes(leaf: Any, shards: int) -> int:
    """Bytes on one device: the largest dimension that divides is cut, if any does."""
    size = math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8)
    cut = any(dim % shards == 0 for dim in leaf.shape)
    return size // shards if cut else size


def _other_state(model: Any) -> list[Any]:
    import jax
    from flax import nnx

    return jax.tree.leaves(nnx.state(model, nnx.Not(nnx.Param)))


def _optimizer_state(model: Any, optimizer: Any, problems: list[str]) -> Any:
    if optimizer is None:
        return None
    import jax
    from flax import nnx

    params = nnx.state(model, nnx.Param)
    try:
        return jax.tree.leaves(jax.eval_shape(optimizer.init, params))
    except Exception as err:
        problems.append(f"optimizer: {imports.one_line(err)}")
        return None
