"""roxxel: pre-training of language models in JAX and Flax NNX, from data to runs.

Public names load their modules on first use: `import roxxel` alone imports neither
jax nor numpy.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel.config.registry import experiment as experiment
    from roxxel.data.aligned import AlignedStream as AlignedStream
    from roxxel.data.mixture_stream import MixtureStream as MixtureStream
    from roxxel.data.phases import Phase as Phase
    from roxxel.data.stream import RoxxelStream as RoxxelStream
    from roxxel.dataset import Roxxel as Roxxel
    from roxxel.errors import ConfigError as ConfigError
    from roxxel.errors import ShardFormatError as ShardFormatError
    from roxxel.logger import Logger as Logger
    from roxxel.train.inputs import Input as Input

__version__ = "0.1.0"

_MODULE_OF_NAME = {
    "AlignedStream": "roxxel.data.aligned",
    "ConfigError": "roxxel.errors",
    "Input": "roxxel.train.inputs",
    "Logger": "roxxel.logger",
    "MixtureStream": "roxxel.data.mixture_stream",
    "Phase": "roxxel.data.phases",
    "Roxxel": "roxxel.dataset",
    "RoxxelStream": "roxxel.data.stream",
    "ShardFormatError": "roxxel.errors",
    "experiment": "roxxel.config.registry",
}

__all__ = [
    "AlignedStream",
    "ConfigError",
    "Input",
    "Logger",
    "MixtureStream",
    "Phase",
    "Roxxel",
    "RoxxelStream",
    "ShardFormatError",
    "__version__",
    "experiment",
]


def __getattr__(name: str):
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'roxxel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
