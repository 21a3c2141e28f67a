"""Values that JSON cannot hold, and types of jax."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

import roxxel
from toy_experiments import parts


class Net:
    def __init__(
        self,
        activation: Callable[..., Any] = jax.nn.silu,
        dtype: DTypeLike = jnp.float32,
        param_dtype: Any = jnp.float32,
        numpy_dtype: np.dtype = np.dtype("float32"),  # noqa: B008
        untyped_dtype=None,
        maybe_dtype: DTypeLike | None = None,
        **others: Any,
    ):
        self.values = {k: v for k, v in locals().items() if k != "self"}


@roxxel.experiment
def awkward(**more: Any) -> fdl.Config:
    """What a dump has to cope with."""
    shared = fdl.Config(parts.Schedule, total=3, peak=np.float32(3e-4))
    net = fdl.Config(
        Net,
        activation=jax.nn.gelu,
        dtype=jnp.bfloat16,
        param_dtype=jnp.dtype("bfloat16"),
        jitted=jax.nn.silu,
        custom=jax.nn.relu,
        ufunc=np.exp,
        scalar=np.float32(3e-4),
        integer=np.int64(7),
        flag=np.bool_(True),
        path=Path("some/where"),
        partial=functools.partial(parts.linear, x=np.float64(2)),
        array=np.arange(6, dtype=np.int16).reshape(2, 3),
        spec=PartitionSpec("data", None, ("a", "b")),
        mode=parts.Mode.EVAL,
        nan=float("nan"),
        inf=float("inf"),
        complex=1 + 2j,
        span=range(3),
        bytes=b"\x00\xff",
        choices={1, 2},
        value_object=parts.Child(x=9),
        kind=np.float32,
        builtin=float,
        nested=[{"deep": (np.int32(1), Path("x"))}],
        shared=[shared, shared],
    )
    for name, value in more.items():
        setattr(net, name, value)
    return fdl.Config(parts.Job, model=net)


@roxxel.experiment
def lossy() -> fdl.Config:
    """Values that no file can hold."""
    config = awkward()
    config.model.activation = lambda x: x + 1
    config.model.lock = object()
    config.model.big = np.zeros(10_000)
    config.model.local = fdl.Config(lambda: 3)
    return config
