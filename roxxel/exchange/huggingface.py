"""Models to and from Hugging Face checkpoints: Mamba-2 and Llama.

model = load_hf("mamba2-130m")                    # a folder of safetensors
export_hf(model, "exported", dtype="bfloat16")    # transformers loads it
"""

import os
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from roxxel import sharding
from roxxel.checkpointing import comparison, restoring, state
from roxxel.errors import ConfigError
from roxxel.exchange import hf_config, names, safetensors_files, tokenizer_files
from roxxel.exchange.folder_source import FolderSource
from roxxel.models import stack
from roxxel.models.language_model import LanguageModel

MAX_SHARD_BYTES = 5_000_000_000  # as transformers cuts
DTYPES = ("float32", "bfloat16", "float16")


def model_of(
    folder: str | os.PathLike,
    *,
    pad_vocab_to: int = 1,
    separator_id: int | None = None,
    compute_dtype: jax.typing.DTypeLike = jnp.float32,
    remat: stack.Remat = "none",
    scan_layers: bool = False,
    rngs: nnx.Rngs,
) -> LanguageModel:
    """A new model of the sizes and kind that a folder tells of; its values are fresh.

    As `Trainer.model` it goes with `init_from` of the same folder.

    Args:
      folder: `config.json` and safetensors.
      pad_vocab_to, separator_id, compute_dtype, remat, scan_layers: what the folder
        does not say, as in `language_model.LanguageModel`.
      rngs: key source of the values.

    Raises:
      ConfigError: it is no such folder, or no model here expresses it.
    """
    changes = {
        "pad_vocab_to": pad_vocab_to,
        "separator_id": separator_id,
        "compute_dtype": compute_dtype,
        "remat": remat,
        "scan_layers": scan_layers,
    }
    return _made(hf_config.read(folder), changes, rngs)


def _made(
    found: hf_config.Description, changes: dict[str, Any], rngs: nnx.Rngs
) -> LanguageModel:
    return found.architecture.MODEL(**(found.settings | changes), rngs=rngs)


def load_hf(
    folder: str | os.PathLike,
    *,
    dtype: str | None = "float32",
    mesh: Mesh | None = None,
    **changes: Any,
) -> LanguageModel:
    """The model of a folder with its values.

    Args:
      folder: `config.json` and safetensors.
      dtype: of the parameters, in which models here train; None: as they are stored.
      mesh: where the parameters come to lie, as `sharding.create_on` says; None: on
        the first device.
      **changes: arguments of the model, in place of the folder's or beside them:
        `remat`, `scan_layers`, `compute_dtype`, `pad_vocab_to`, `chunk_size`.

    Raises:
      ConfigError: it is no such folder, is damaged, holds values that are not finite,
        or differs from a changed model; all differences are in one line.
    """
    if dtype is not None:
        _check_dtype(dtype)
    found = hf_config.read(folder)

    def create():
        return (_made(found, changes, nnx.Rngs(0)),)

    (model,) = (
        nnx.eval_shape(create) if mesh is None else sharding.abstract_on(mesh, create)
    )
    source = FolderSource(found, model)
    _retype(
        model, {name: dtype or stored for name, (stored, _) in source.arrays.items()}
    )
    how = restoring.How(allowed=comparison.Allowed(cast="any"))
    restoring.into_objects(source, {"model": model}, how)
    return model


def _retype(model: nnx.Module, dtypes: dict[str, Any]) -> None:
    """Gives the model's abstract arrays these types."""
    leaves = state.named_leaves({"model": model})
    new = {}
    for name, dtype in dtypes.items():
        leaf = leaves.get(name)
        if leaf is not None:
            new[name] = leaf.update(dtype=np.dtype(dtype))
    state.assign({"model": model}, new)


def export_hf(
    model: LanguageModel,
    folder: str | os.PathLike,
    *,
    dtype: str | None = None,
    max_length: int = 2048,
    tokenizer: str | os.PathLike | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> pathlib.Path:
    """Writes a folder that transformers' `from_pretrained` reads; returns it, absolute.

    It appears when it is complete. Every process of a run calls this, the lead writes.

    Args:
      model: a `Mamba2LM` or a `TransformerLM`. Rows that pad its vocabulary are left
        out; a tied head is not written twice.
      folder: does not exist yet, or is empty.
      dtype: "float32", "bfloat16" or "float16"; None: as the parameters are.
      max_length: tokens that the model was trained to see, which `config.json` of a
        Llama has to say.
      tokenizer: file or folder whose tokenizer files are copied; None: none.
      max_shard_bytes: of one file; one tensor is never cut.

    Raises:
      ConfigError: the folder holds something, or no architecture of transformers
        expresses the model; nothing was written.
    """
    target = check_export(folder, dtype)
    made = hf_config.of_model(model)
    leaves = state.named_leaves({"model": model})
    pairs = made.pairs(made.settings_of(model))
    tensors = [_tensor(pair, leaves, model.vocab_size, dtype) for pair in pairs]
    if jax.process_index() != 0:
        for tensor in tensors:  # all processes bring their parts of each array
            tensor.make()
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as scratch:
        whole = pathlib.Path(scratch) / "whole"
        whole.mkdir()
        safetensors_files.write_folder(whole, tensors, max_shard_bytes=max_shard_bytes)
        names_of = {tensor.dtype.name for tensor in tensors}
        dtype_name = names_of.pop() if len(names_of) == 1 else "float32"
        hf_config.write(whole, model, dtype_name=dtype_name, max_length=max_length)
        if tokenizer is not None:
            tokenizer_files.copy(tokenizer, whole)
        os.replace(whole, target)
    return target


def check_export(folder: str | os.PathLike, dtype: str | None) -> pathlib.Path:
    """The absolute path of a folder that `export_hf` could write; creates nothing.

    Raises:
      ConfigError: as `export_hf`.
    """
    if dtype is not None:
        _check_dtype(dtype)
    target = pathlib.Path(os.path.expanduser(folder)).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there and not empty; choose another folder.")
    above = next(parent for parent in target.parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{target}: {above} cannot be written.")
    return target


def _tensor(
    pair: names.Pair, leaves: dict[str, Any], vocab_size: int, dtype: str | None
) -> safetensors_files.Tensor:
    leaf = leaves["model/" + pair.ours.replace(".", "/")]
    wanted = np.dtype(leaf.dtype if dtype is None else dtype)
    rows = slice(vocab_size) if pair.form == "rows" else slice(None)
    empty = np.broadcast_to(np.zeros((), bool), leaf.shape)  # a shape, no memory

    def make() -> np.ndarray:
        return pair.to_theirs(_on_host(leaf)[rows]).astype(wanted, copy=False)

    shape = pair.to_theirs(empty[rows]).shape
    return safetensors_files.Tensor(pair.theirs, wanted, shape, make)


def _on_host(array: jax.Array) -> np.ndarray:
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def _check_dtype(dtype: Any) -> None:
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}.")
