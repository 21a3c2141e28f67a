"""Which rows of a batch are to blame, and what they hold.

A row is to blame where its own loss or gradient is not finite. The batch is halved
again and again for that: of each part, repeated until it fills the batch, the gradient
is taken, with the program of the same shape each time. Every process takes part.
"""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from roxxel import tokenizers
from roxxel.data import origins
from roxxel.train import accumulate

# Parts of a batch that are looked at; then all of it is to blame.
_MOST_PROBES = 64
_MOST_ROWS = 64  # written to a dump


def find(
    model: nnx.Module, loss_fn: Callable, batch: Any, *, count: int
) -> tuple[int, ...] | None:
    """Places of the rows that are not finite by themselves; None: no single ones.

    Args:
      model: as it was before the step, or soon after.
      loss_fn: of the training.
      batch: the whole batch, on the devices.
      count: micro-batches, for the memory of one.
    """
    graphdef, state = nnx.split(model)
    probe = jax.jit(
        functools.partial(_is_finite, loss_fn, count=count), static_argnums=1
    )
    rows = jax.tree.leaves(batch)[0].shape[0]
    found: list[int] = []
    parts, probes = [(0, rows)], 0
    while parts:
        start, stop = parts.pop()
        probes += 1
        if probes > _MOST_PROBES:
            return None
        if bool(np.asarray(probe(batch, graphdef, state, start, stop - start))):
            continue
        if stop - start == 1:
            found.append(start)
            continue
        middle = (start + stop) // 2
        parts += [(middle, stop), (start, middle)]
    return tuple(found) or None


def _is_finite(loss_fn, batch, graphdef, state, start, length, *, count):
    def part(rows: jax.Array) -> jax.Array:
        return rows[start + jnp.arange(rows.shape[0]) % length]

    loss, _, grads, _ = accumulate.gradients(
        loss_fn, jax.tree.map(part, batch), graphdef, state, count=count
    )
    return jnp.isfinite(loss + optax.tree.norm(grads))


def origin_of(stream: Any, batch: int) -> list[origins.Origin]:
    """Where the rows of a batch come from; empty where the stream does not tell."""
    tell = getattr(stream, "origins", None)
    return tell(batch) if tell is not None else []


def described(
    stream: Any, batch: int, rows: tuple[int, ...] | None
) -> list[dict[str, Any]]:
    """The rows (None: all, the first 64) as JSON values, their text included."""
    found = []
    for origin in origin_of(stream, batch):
        if rows is not None and origin.position not in rows:
            continue
        values = origins.elements(origin, stream.overlap)
        known = origins.describe(origin, stream.overlap)
        found.append({"position": origin.position, **known, **_text(origin, values)})
    return found[:_MOST_ROWS]


def _text(origin: origins.Origin, values: np.ndarray) -> dict[str, Any]:
    """The decoded text, by the data's own tokenizer, and the ids where they are few."""
    ids = {"ids": values[:4096].tolist()} if values.dtype.kind in "iu" else {}
    if values.dtype == np.uint8:
        return ids | {"text": values.tobytes().decode("utf-8", "replace")}
    known = origin.dataset.metadata.get("tokenizer")
    spec = known.get("spec") if isinstance(known, dict) else None
    if spec is None:
        return ids
    try:
        return ids | {"text": tokenizers.load(spec).decode(values)}
    except (ImportError, ValueError, OSError) as err:
        return ids | {"text_error": str(err)}


def write(workdir: pathlib.Path, step: int, facts: dict[str, Any]) -> pathlib.Path:
    """Writes `divergence/step_N.json`; the lead process does."""
    path = workdir / "divergence" / f"step_{step}.json"
    if jax.process_index() == 0:
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    return path
