"""Arrays of NNX objects by name, to and from an Orbax folder.

A name is the path of an array joined by `/`: `model/blocks/0/kernel`,
`optimizer/opt_state/0/mu/...`. A random key is stored as its uint32 data and described
as `key<impl>`, an array without elements by its description alone.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import nnx

from roxxel.errors import ConfigError

_IMPL_OF_DTYPE = {
    "key<fry>": "threefry2x32",
    "key<rbg>": "rbg",
    "key<urbg>": "unsafe_rbg",
}


def named_leaves(objects: dict[str, Any]) -> dict[str, Any]:
    """Arrays and numbers of `objects` (a dict of NNX objects) by name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(nnx.state(objects))
    named = {_name(path): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ConfigError("two arrays of the model have the same path as text.")
    return named


def assign(objects: dict[str, Any], values: dict[str, Any]) -> None:
    """Puts `values` (by name) into `objects`; other arrays keep what they have."""
    state = nnx.state(objects)
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    new = [values.get(_name(path), leaf) for path, leaf in leaves]
    nnx.update(objects, jax.tree_util.tree_unflatten(structure, new))


def _name(path: tuple) -> str:
    parts = list(path)
    for index, part in enumerate(parts):
        if isinstance(part, jax.tree_util.GetAttrKey) and part.name == "value":
            del parts[index]  # the variable's own level says nothing
            break
    return "/".join(_key_text(part) for part in parts)


def _key_text(part: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def describe(name: str, leaf: Any) -> list:
    """`[dtype, shape]` of a leaf, as the record holds it.

    Raises:
      ConfigError: the leaf is neither an array nor a number.
    """
    if _is_key(leaf):
        return [str(leaf.dtype), list(leaf.shape)]
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if np.dtype(array.dtype).kind in "OUSMm":
        raise ConfigError(
            f"{name} is {leaf!r}; a checkpoint holds arrays and numbers only."
        )
    return [str(np.dtype(array.dtype)), list(array.shape)]


def snapshot(leaves: dict[str, Any]) -> dict:
    """Nested dict of arrays that no later training step can change.

    On CPU a "transfer to the host" shares the array's memory, which the next donated
    step may overwrite: so CPU arrays are copied. Elsewhere Orbax copies to the host
    before `save` returns, and a second copy on the device would cost memory.
    """
    deleted = [n for n, leaf in leaves.items() if getattr(leaf, "is_deleted", bool)()]
    if deleted:
        raise ConfigError(
            f"{len(deleted)} arrays were donated and hold nothing, the first is "
            f"{deleted[0]}. Put the step's results into the model (nnx.update) "
            "before save."
        )
    plain = {
        name: jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for name, leaf in leaves.items()
    }
    to_copy = {n: a for n, a in plain.items() if _shares_host_memory(a)}
    copies = jax.device_put(to_copy, _shardings(to_copy), may_alias=False)
    rest = {n: _on_host(a) for n, a in plain.items() if n not in to_copy}
    jax.block_until_ready(copies)
    return _nested({n: a for n, a in {**rest, **copies}.items() if a.size})


def is_in_host_memory(snapshot: dict) -> bool:
    """Whether nothing of a `snapshot` is left to be copied from an accelerator."""
    return all(
        not isinstance(leaf, jax.Array) or _shares_host_memory(leaf)
        for leaf in jax.tree.leaves(snapshot)
    )


def _shardings(arrays: dict[str, jax.Array]) -> dict:
    return {name: array.sharding for name, array in arrays.items()}


def _process_local(array: jax.Array) -> bool:
    """Each process has its own copy; Orbax takes such arrays from numpy only."""
    return jax.process_count() > 1 and array.is_fully_addressable


def _shares_host_memory(leaf: Any) -> bool:
    return (
        isinstance(leaf, jax.Array)
        and not _process_local(leaf)
        and next(iter(leaf.sharding.device_set)).platform == "cpu"
    )


def _on_host(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and not _process_local(leaf):
        return leaf
    return np.array(leaf, copy=True)


def _nested(named: dict[str, Any]) -> dict:
    tree: dict = {}
    for name, value in named.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def read(folder: pathlib.Path, targets: dict[str, Any]) -> dict[str, Any]:
    """Values for `targets` (leaves by name), each placed where its target lies.

    A target that is tied to no device (as a model made without a mesh is) gives an
    array that is tied to none, so that jit may still move it next to sharded batches.
    """
    filled = {n: t for n, t in targets.items() if 0 not in getattr(t, "shape", ())}
    restored: dict = {}
    if filled:
        restored = ocp.PyTreeCheckpointHandler().restore(
            epath.Path(folder),
            args=ocp.args.PyTreeRestore(
                item=_nested(dict.fromkeys(filled, 0)),
                restore_args=_nested({n: _how(t) for n, t in filled.items()}),
                partial_restore=True,
            ),
        )
    return {
        name: _like(target, _lookup(restored, name) if name in filled else None)
        for name, target in targets.items()
    }


def _lookup(tree: dict, name: str) -> Any:
    node: Any = tree
    for part in name.split("/"):
        node = node[part]
    return node


def sharding_of(target: Any) -> jax.sharding.Sharding | None:
    """Where the target is tied to, None where it is not."""
    if isinstance(target, jax.Array) and not getattr(target, "committed", True):
        return None
    sharding = getattr(target, "sharding", None)
    if sharding is not None and _is_key(target):
        shape = jax.eval_shape(jax.random.key_data, target).shape
        if isinstance(target, jax.Array):
            return jax.random.key_data(target).sharding
        if isinstance(sharding, jax.sharding.NamedSharding):
            spec = jax.sharding.PartitionSpec(*sharding.spec)
            assert len(spec) < len(shape)
            return jax.sharding.NamedSharding(sharding.mesh, spec)
    return sharding


def released(leaf: Any) -> Any:
    """What describes `leaf` in its place; the memory of an array is free from now on.

    Random keys and what is no array of JAX stay as they are.
    """
    if not isinstance(leaf, jax.Array) or _is_key(leaf):
        return leaf
    description = jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding_of(leaf)
    )
    leaf.delete()
    return description


def _how(target: Any) -> ocp.RestoreArgs:
    sharding = sharding_of(target)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=sharding)


def _like(target: Any, value: Any) -> Any:
    """`value` in the form of its target: random key, jax array, numpy or number."""
    if _is_key(target):
        return jax.random.wrap_key_data(jnp.asarray(value), impl=_impl(target))
    if value is None:
        value = np.zeros(target.shape, target.dtype)
    if isinstance(target, np.ndarray | np.generic):
        return np.asarray(value).astype(target.dtype, copy=False)[()]
    if not hasattr(target, "dtype"):
        return type(target)(np.asarray(value).item())
    sharding = sharding_of(target)
    if isinstance(value, np.ndarray | np.generic):
        copied = jnp.array(value, dtype=target.dtype, copy=True)
        return copied if sharding is None else jax.device_put(copied, sharding)
    return value


def _impl(target: Any) -> Any:
    if isinstance(target, jax.Array):
        return jax.random.key_impl(target)
    return _IMPL_OF_DTYPE[str(target.dtype)]
