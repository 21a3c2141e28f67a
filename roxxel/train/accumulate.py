"""Loss and gradients of a global batch, in micro-batches one after the other.

The result is that of the whole batch: with micro-batches of mean loss `m` and counted
targets `w` it is `sum(m * w) / sum(w)`, and its gradient, whatever the loss masks are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel import sharding
from roxxel.data.steps import Span
from roxxel.errors import ConfigError


def gradients(
    loss_fn: Callable,
    batch: Any,
    graphdef: Any,
    state: Any,
    *,
    count: int = 1,
    dtype: jax.typing.DTypeLike = jnp.float32,
) -> tuple[jax.Array, jax.Array, Any, Any]:
    """Mean loss, counted targets, gradients, and the state behind the batch.

    Args:
      loss_fn: `(model, batch) -> (mean loss, counted targets)`.
      batch: arrays with the rows of the global batch first.
      graphdef, state: of the model; its `nnx.Param` state is differentiated, other
        state is handed from one micro-batch to the next.
      count: micro-batches, of which each lies over all devices of the batch.
      dtype: in which gradients of micro-batches are added up.
    """
    params, rest = nnx.split_state(state, nnx.Param, ...)

    def total_loss(params, rest, rows, is_mean):
        model = nnx.merge(graphdef, params, rest, copy=True)
        mean, weight = loss_fn(model, rows)
        weight = jnp.asarray(weight, jnp.float32)
        rest = nnx.state(model, nnx.Not(nnx.Param))
        loss = mean if is_mean else mean * jax.lax.stop_gradient(weight)
        return loss, (weight, rest)

    grad_fn = jax.value_and_grad(total_loss, has_aux=True)
    if count == 1:
        (loss, (weight, rest)), grads = grad_fn(params, rest, batch, True)
        grads = jax.tree.map(lambda leaf: leaf.astype(dtype), grads)
        return loss, weight, grads, nnx.merge_state(params, rest)

    def body(carry, rows):
        sums, rest = carry
        (loss, (weight, rest)), grads = grad_fn(params, rest, rows, False)
        return (jax.tree.map(_added, sums, (loss, weight, grads)), rest), None

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, dtype), params)
    start = (jnp.float32(0), jnp.float32(0), zeros)
    (sums, rest), _ = jax.lax.scan(body, (start, rest), micro_batches(batch, count))
    loss, weight, grads = sums
    share = 1.0 / jnp.where(weight == 0, 1.0, weight)
    grads = jax.tree.map(lambda leaf: leaf * share.astype(leaf.dtype), grads)
    return loss * share, weight, grads, nnx.merge_state(params, rest)


def reduced_gradients(
    mesh: Any,
    reduction: jax.typing.DTypeLike,
    loss_fn: Callable,
    batch: Any,
    graphdef: Any,
    state: Any,
    **options: Any,
) -> tuple[jax.Array, jax.Array, Any, Any]:
    """As `gradients`, which each device takes of its own rows; then they are added up.

    Args:
      mesh: all its axes cut the rows and none the parameters.
      reduction: the type in which gradients are sent and added up.
      loss_fn, batch, graphdef, state, options: as of `gradients`.
    """
    axes = tuple(mesh.shape)
    rows, whole = jax.sharding.PartitionSpec(axes), jax.sharding.PartitionSpec()

    def loss_of_own_rows(model: nnx.Module, rows: Any) -> Any:
        for _, part in nnx.iter_modules(model):
            if hasattr(part, "placement"):
                setattr(part, "placement", None)  # noqa: B010, there is no mesh in here
        return loss_fn(model, rows)

    def of_own_rows(batch: Any, state: Any) -> Any:
        loss, weight, grads, state = gradients(
            loss_of_own_rows, batch, graphdef, state, **options
        )
        total = jax.lax.psum(weight, axes)
        share = weight / jnp.where(total == 0, 1.0, total)
        sent = jax.tree.map(lambda leaf: (leaf * share).astype(reduction), grads)
        added = jax.tree.map(
            lambda leaf, like: leaf.astype(like.dtype), jax.lax.psum(sent, axes), grads
        )
        return jax.lax.psum(loss * share, axes), total, added, state

    mapped = jax.shard_map(
        of_own_rows,
        mesh=mesh,
        in_specs=(rows, whole),
        out_specs=whole,
        check_vma=False,
    )
    return mapped(batch, state)


def _added(total: jax.Array, value: jax.Array) -> jax.Array:
    return total + value.astype(total.dtype)


def micro_batches(batch: Any, count: int) -> Any:
    """Rows `[B, ...]` as `[count, B / count, ...]`: micro-batch i has rows i + count*j.

    So rows that lie over devices in turn stay where they are, and each micro-batch lies
    over all of them.
    """

    def cut(rows: jax.Array) -> jax.Array:
        parts = rows.reshape(rows.shape[0] // count, count, *rows.shape[1:])
        return jnp.swapaxes(parts, 0, 1)

    return jax.tree.map(cut, batch)


def check_count(count: Any) -> None:
    """Raises a ConfigError unless `count` is an int of at least 1."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(
            f"trainer: accumulate must be an int of at least 1, got {count!r}."
        )


def problems(spans: Sequence[Span], count: int, shards: int) -> list[str]:
    """What is wrong with cutting the batches of `spans`, a line each.

    Args:
      spans: of the stream, as far as the run goes.
      count: micro-batches of a step.
      shards: devices that the rows of a batch are cut over.
    """
    parts, found = count * shards, []
    for span in spans:
        size = span.batch_size
        if count > 1 and size % parts:
            below = size // parts * parts
            near = f"{below} or {below + parts}" if below else f"{parts}"
            found.append(
                f"trainer: batch_size {size} does not divide into accumulate={count} "
                f"micro-batches over {shards} device(s); nearest that do: {near}."
            )
    return list(dict.fromkeys(found))


def check_divides(
    spans: Sequence[Span], count: int, mesh: jax.sharding.Mesh | None
) -> None:
    """Raises a ConfigError where `problems` finds one; `mesh` None is one device."""
    shards = 1 if mesh is None else sharding.batch_shards(mesh)
    for problem in problems(spans, count, shards):
        raise ConfigError(problem)
