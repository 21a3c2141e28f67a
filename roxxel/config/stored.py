"""How values that JSON cannot hold are written to `config.json`, and read back.

| value                                   | stored as                                |
|-----------------------------------------|------------------------------------------|
| numpy and ml_dtypes scalar              | the Python number                        |
| `np.dtype` (`jnp.dtype`)                | its name                                 |
| `pathlib` path                          | its text                                 |
| numpy or jax array, up to 4096 elements | its values, dtype and shape; read as numpy |
| `functools.partial`                     | function, arguments, keywords            |
| `PartitionSpec`                         | its axes                                 |
| complex number, range, `...`            | its parts                                |
| dataclass instance                      | class and fields                         |
| importable object that is no function   | module and name (ufuncs, jitted functions) |
| anything else (lambdas, meshes, ...)    | a description; named in one warning      |

Each stored value is a `fdl.Config` of a function of this module, so that building the
file's graph with plain fiddle gives the right values too.
"""

import collections.abc
import dataclasses
import functools
from pathlib import Path
from typing import Any

from roxxel.errors import ConfigError


def path(text: str) -> Path:
    """A stored path."""
    return Path(text)


def dtype(name: str) -> Any:
    """A stored `np.dtype`."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def array(values: Any, dtype_name: str, shape: collections.abc.Sequence[int]) -> Any:
    """A stored array, as numpy."""
    import numpy as np

    return np.asarray(values, dtype=dtype(dtype_name)).reshape(tuple(shape))


def partial(function: Any, args: Any, keywords: Any) -> functools.partial:
    """A stored `functools.partial`."""
    return functools.partial(function, *args, **keywords)


def partition_spec(axes: Any) -> Any:
    """A stored `jax.sharding.PartitionSpec`."""
    from jax.sharding import PartitionSpec

    return PartitionSpec(*axes)


def number(real: float, imag: float) -> complex:
    """A stored complex number."""
    return complex(real, imag)


def span(start: int, stop: int, step: int) -> range:
    """A stored range."""
    return range(start, stop, step)


def dots() -> Any:
    """A stored ellipsis."""
    return ...


def instance(cls: Any, fields: dict[str, Any]) -> Any:
    """A stored dataclass instance.

    Raises:
      ConfigError: `cls` is no dataclass.
    """
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise ConfigError(f"the config file stores an object of {cls!r}, no dataclass.")
    return cls(**fields)


def unstorable(description: str) -> Any:
    """A value that could not be stored.

    Raises:
      ConfigError: always; a replay has to set the value first.
    """
    raise ConfigError(
        f"the config file holds no value here, only {description!r}; set it by a flag."
    )
