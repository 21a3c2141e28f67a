"""One place that joins the processes of a run, before any device is touched."""

import os
import sys

from roxxel.errors import ConfigError

_VARIABLES = ("ROXXEL_COORDINATOR", "ROXXEL_NUM_PROCESSES", "ROXXEL_PROCESS_ID")


def initialize(timeout_secs: int = 300) -> None:
    """Joins the processes that ROXXEL_* in the environment describe; else does nothing.

    ROXXEL_COORDINATOR is `host:port` of process 0, ROXXEL_NUM_PROCESSES the number of
    processes, ROXXEL_PROCESS_ID this one's index from 0. On CPU the collectives run
    over gloo.

    Raises:
      ConfigError: only some of the variables are set, or one is not a number.
    """
    values = [os.environ.get(name) for name in _VARIABLES]
    if not any(values):
        return
    if not all(values):
        missing = [n for n, v in zip(_VARIABLES, values, strict=True) if not v]
        raise ConfigError(f"{', '.join(missing)} must be set beside the others.")
    coordinator, count, index = (str(value) for value in values)
    if not (count.isdigit() and index.isdigit()):
        raise ConfigError(
            f"ROXXEL_NUM_PROCESSES={count!r} and ROXXEL_PROCESS_ID={index!r} must be "
            "whole numbers."
        )
    import jax

    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator,
        int(count),
        int(index),
        initialization_timeout=timeout_secs,
    )


def is_lead() -> bool:
    """Whether this process writes what is written once; touches no device."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return True
    return jax.process_index() == 0
