"""A Hugging Face folder as a source of arrays: by the names and layouts used here."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel.checkpointing import state
from roxxel.errors import ConfigError
from roxxel.exchange import hf_config, names


class FolderSource:
    """The tensors of a folder as arrays of a model here, see `restoring.Source`.

    Args:
      found: what the folder holds.
      model: what they are for. Where it has the same vocabulary, tables get the rows
        that pad its own; None: they stay as they are.
    """

    def __init__(self, found: hf_config.Description, model: nnx.Module | None = None):
        self._found = found
        self._pairs = {_array_name(pair): pair for pair in found.pairs()}
        self._rows = _padded_rows(found, model)
        self.title = f"the checkpoint {found.folder}"
        self.arrays = {
            name: [found.stored[pair.theirs].dtype.name, list(self._shape(pair))]
            for name, pair in self._pairs.items()
        }

    @property
    def unused(self) -> list[str]:
        """Tensors of the files that no model here has a place for."""
        used = {pair.theirs for pair in self._pairs.values()}
        return sorted({*self._found.stored} - used)

    def read(self, targets: dict[str, Any]) -> dict[str, jax.Array]:
        """Values for `targets` by name, each as stored and placed as its target is.

        One tensor after another; of each, a process reads what its devices hold.

        Raises:
          ConfigError: values are not finite, or a file cannot be read.
        """
        values = {name: self._read(name, targets[name]) for name in targets}
        wrong = [name for name, value in values.items() if not _all_finite(value)]
        if wrong:
            theirs = ", ".join(self._pairs[name].theirs for name in wrong[:5])
            raise ConfigError(
                f"{self._found.folder}: {len(wrong)} tensors hold values that are not "
                f"finite: {theirs}{', ...' if wrong[5:] else ''}."
            )
        return values

    def _read(self, name: str, target: Any) -> jax.Array:
        pair = self._pairs[name]
        stored, shape = self._found.stored[pair.theirs], self._shape(pair)
        view = pair.to_ours(stored.read())
        sharding = state.sharding_of(target)
        if sharding is None:
            return jnp.array(_part(view, shape, ...), copy=True)
        return jax.make_array_from_callback(
            shape, sharding, lambda index: _part(view, shape, index)
        )

    def _shape(self, pair: names.Pair) -> tuple[int, ...]:
        stored = self._found.stored[pair.theirs].shape
        if pair.form == "rows" and self._rows is not None:
            return (max(stored[0], self._rows), *stored[1:])
        empty = np.broadcast_to(np.zeros((), bool), stored)  # a shape, no memory
        return pair.to_ours(empty).shape


def _array_name(pair: names.Pair) -> str:
    return "model/" + pair.ours.replace(".", "/")


def _padded_rows(found: hf_config.Description, model: Any) -> int | None:
    if getattr(model, "vocab_size", None) != found.settings["vocab_size"]:
        return None
    return model.embedding.shape[0]


def _part(view: np.ndarray, shape: tuple[int, ...], index: Any) -> np.ndarray:
    """`view[index]` in memory of its own, with rows of zeros up to `shape` behind."""
    if view.shape != shape:
        padding = [
            (0, whole - part) for whole, part in zip(shape, view.shape, strict=True)
        ]
        view = np.pad(view, padding)
    return np.array(view[index], order="C", copy=True)


def _all_finite(value: jax.Array) -> bool:
    return bool(jnp.isfinite(value).all())
