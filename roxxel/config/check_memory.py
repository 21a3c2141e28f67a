"""Bytes of a training state on one device of a mesh, from shapes alone."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from roxxel.config import abstract, imports
from roxxel.errors import ConfigError


def mesh_sizes(
    axes: Mapping[str, int] | None,
    devices: int | None,
    problems: list[str],
    dcn_axes: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Axis sizes with -1 resolved, for `devices`, or for the fewest that fit.

    Adds a problem where they do not fit; -1 counts as 1 then.
    """
    from roxxel import sharding

    axes, outer = dict(axes or {"data": -1}), dict(dcn_axes or {})
    fixed = math.prod(size for size in (*axes.values(), *outer.values()) if size != -1)
    try:
        return sharding.axis_sizes(axes, devices or max(1, fixed), outer)
    except ConfigError as err:
        problems.append(str(err))
        return {name: max(1, size) for name, size in axes.items()}


def memory(
    model: Any,
    values: abstract.Values,
    mesh: Mapping[str, int],
    limit: int | None,
    *,
    problems: list[str],
) -> str:
    """Bytes by kind on one device; adds a problem where they exceed `limit`."""
    import jax
    from flax import nnx

    per_device = _per_device(mesh, values.get("axis_rules"))
    params = nnx.state(model, nnx.Param)
    precision = values.get("precision")
    grads = params if precision is None else _as_type(params, precision.gradients)
    parts = {"parameters": per_device(params), "gradients": per_device(grads)}
    others = _other_state(model)
    if _leaves(others):
        parts["other state"] = per_device(others)
    state = _optimizer_state(model, values.get("optimizer"), problems)
    if state is not None:
        parts["optimizer state"] = per_device(state)
    if precision is not None and precision.has_master:
        stored = jax.eval_shape(precision.stored, params)
        parts["parameters"] = per_device(stored)
        parts["float32 copy"] = per_device(params)
    if values.get("ema_decay") is not None:
        parts["mean of weights"] = per_device(params)  # both are float32
    total = sum(parts.values())
    lines = [f"memory of one device, mesh {_shown_mesh(mesh)}"]
    lines += [f"  {name:<16} {shown(size):>12}" for name, size in parts.items()]
    lines.append(f"  {'together':<16} {shown(total):>12}, without activations")
    if state is None:
        lines.append("  optimizer state  not known")
    if limit is not None and total > limit:
        problems.append(
            f"memory: {shown(total)} a device without activations, --memory allows "
            f"{shown(limit)}; use more devices on an axis 'fsdp' of mesh_axes, "
            "or a smaller model."
        )
    return "\n".join(lines)


def _as_type(params: Any, dtype: str) -> Any:
    import jax

    cast = lambda leaf: leaf.astype(dtype)  # noqa: E731
    return jax.eval_shape(lambda tree: jax.tree.map(cast, tree), params)


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


def _per_device(mesh: Mapping[str, int], rules: Any) -> Callable[[Any], int]:
    from roxxel import placed, sharding

    def size(leaf: Any, names: Any) -> int:
        given = (mesh, leaf.shape, names, rules or sharding.DEFAULT_RULES)
        entries = sharding.parameter_sharding(*given)
        axes = [(axes,) if isinstance(axes, str) else axes or () for axes in entries]
        parts = math.prod(mesh[axis] for axis in itertools.chain(*axes))
        whole = math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8)
        return whole // parts

    return lambda tree: sum(_leaves(placed.mapped(size, tree)))


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


def _other_state(model: Any) -> Any:
    from flax import nnx

    return nnx.state(model, nnx.Not(nnx.Param))


def _optimizer_state(model: Any, optimizer: Any, problems: list[str]) -> Any:
    if optimizer is None:
        return None
    import jax
    from flax import nnx

    params = nnx.state(model, nnx.Param)
    try:
        return jax.eval_shape(optimizer.init, params)
    except Exception as err:
        problems.append(f"optimizer: {imports.one_line(err)}")
        return None
