"""In which types a run stores, computes, adds up and reduces."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel import optim
from roxxel.errors import ConfigError

Type = Literal["float32", "bfloat16"]
_TYPES = ("float32", "bfloat16")

# Axes over which a device has all parameters and some of the rows.
_DATA_AXES = ("data", "replica")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """Types of a run's numbers; what is not named here is float32.

    Attributes:
      params: in which the matrices of the model's blocks are stored, and gathered where
        an axis cuts them. With "bfloat16" the optimizer keeps a float32 copy that it
        updates (arXiv:1710.03740), so no small update is lost; embedding, head, norms,
        biases, convolutions and time scales stay float32. A checkpoint holds both.
      compute: of products and activations, the model's `compute_dtype`; None: what the
        model says.
      gradients: in which gradients of micro-batches are added up and given to the
        optimizer.
      reductions: in which gradients are added up over the devices of a batch.
        "bfloat16" halves what is sent. It needs a mesh whose only axes of more than
        one device are `data` and `replica`; micro-batches are then reduced once a step.
    """

    params: Type = "float32"
    compute: Type | None = None
    gradients: Type = "float32"
    reductions: Type = "float32"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value not in _TYPES and not (field.name == "compute" and value is None):
                raise ConfigError(
                    f"precision: {field.name} must be float32 or bfloat16, got "
                    f"{value!r}."
                )

    @property
    def has_master(self) -> bool:
        """Whether the optimizer keeps a float32 copy of the parameters."""
        return self.params != "float32"

    def model_options(self) -> dict[str, Any]:
        """What the model is made with."""
        return (
            {} if self.compute is None else {"compute_dtype": jnp.dtype(self.compute)}
        )

    def stored(self, params: Any) -> Any:
        """Float32 parameters in the types that the model stores."""
        if not self.has_master:
            return params

        def store(path: tuple, leaf: Any, is_matrix: bool) -> Any:
            name = optim.parameter_name(path)
            is_whole = name.startswith(("embed", "head")) or not is_matrix
            return leaf if is_whole else leaf.astype(self.params)

        mask = optim.decay_mask(params)
        return jax.tree_util.tree_map_with_path(store, params, mask)


def mesh_problem(
    precision: Precision | None, sizes: Mapping[str, int] | None
) -> str | None:
    """What of a precision a mesh (None: one device) does not allow, in one line."""
    if precision is None or precision.reductions == "float32" or sizes is None:
        return None
    others = [axis for axis in sizes if axis not in _DATA_AXES and sizes[axis] > 1]
    if not others:
        return None
    return (
        f"precision: reductions={precision.reductions} needs a mesh with axes data and "
        f"replica only, this one has {dict(sizes)}; leave reductions at float32."
    )


def check_mesh(precision: Precision | None, sizes: Mapping[str, int] | None) -> None:
    """Raises a ConfigError where `mesh_problem` finds one."""
    problem = mesh_problem(precision, sizes)
    if problem is not None:
        raise ConfigError(problem)


def mesh_to_reduce_over(precision: Precision, optimizer: nnx.Optimizer) -> Any:
    """The optimizer's mesh if gradients have a type of their own for it, or None.

    Raises:
      ConfigError: it has other axes than those of data.
    """
    place = getattr(optimizer.step.get_value(), "sharding", None)
    is_placed = isinstance(place, jax.sharding.NamedSharding)
    if precision.reductions == "float32" or not is_placed:
        return None
    check_mesh(precision, place.mesh.shape)
    return place.mesh
