"""One place that joins the processes of a run, before any device is touched.

What says how many processes there are, the first that does:

1. arguments (`--coordinator`, `--num_processes`, `--process_id`),
2. ROXXEL_COORDINATOR, ROXXEL_NUM_PROCESSES and ROXXEL_PROCESS_ID,
3. what jax finds: a TPU pod, Slurm, Open MPI, Kubernetes, where it is more than one,
4. nothing: one process.

ROXXEL_INIT_TIMEOUT is the time limit in seconds where no argument gives it.
"""

import dataclasses
import importlib.util
import os
import sys
import time
import warnings

from roxxel import roll_call
from roxxel.errors import ConfigError

DEFAULT_TIMEOUT_SECS = 300.0

# A process that is gone without a word is noticed after so long, by jax's service.
HEARTBEAT_SECS = 30

# For what follows once all processes are known to be there.
_LEAST_SECS = 30.0

_NAMES = ("coordinator", "num_processes", "process_id")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """Which process of how many this is, and who says so.

    Attributes:
      source: "one process", or what named the others.
      coordinator: `host:port` of process 0; None for one process.
    """

    source: str
    coordinator: str | None = None
    num_processes: int = 1
    process_id: int = 0
    local_device_ids: tuple[int, ...] | None = None

    def __str__(self):
        if self.coordinator is None:
            return f"distributed: {self.source}"
        return (
            f"distributed: process {self.process_id} of {self.num_processes}, "
            f"coordinator {self.coordinator} ({self.source})"
        )


def initialize(
    coordinator: str | None = None,
    num_processes: int | str | None = None,
    process_id: int | str | None = None,
    *,
    timeout_secs: float | str | None = None,
) -> Processes:
    """Joins the processes of this run; what was chosen, and why.

    Touches no device. On CPU the collectives run over gloo.

    Args:
      coordinator, num_processes, process_id: as flags give them; all three or none.
      timeout_secs: for all to come; None: ROXXEL_INIT_TIMEOUT, or 300.

    Raises:
      ConfigError: a value is wrong or missing, or two processes contradict each other.
      roll_call.JoinError: not all came in time; tells the address and who is missing.
    """
    timeout = limit_secs(timeout_secs)
    chosen = choose((coordinator, num_processes, process_id), timeout_secs=timeout)
    if chosen.coordinator is not None and chosen.num_processes > 1:
        _join(chosen, timeout)
    return chosen


def check(
    given: tuple[object, object, object], timeout_secs: float | str | None
) -> None:
    """Checks what is given, and the environment's variables where nothing is.

    Raises:
      ConfigError: a value is wrong, or one of three is missing.
    """
    limit_secs(timeout_secs)
    _chosen(given)


def choose(
    given: tuple[object, object, object] = (None, None, None),
    *,
    timeout_secs: float = DEFAULT_TIMEOUT_SECS,
) -> Processes:
    """What `initialize` goes by; asks nobody but the environment, or a TPU's own.

    Raises:
      ConfigError: as `initialize`.
    """
    found = _chosen(given) or _detected(timeout_secs)
    return found or Processes(source="one process")


def _chosen(given: tuple[object, object, object]) -> Processes | None:
    """What arguments say, or else the environment; None where both say nothing."""
    variables = [f"ROXXEL_{name.upper()}" for name in _NAMES]
    from_environment = tuple(os.environ.get(name) or None for name in variables)
    flags = [f"--{name}" for name in _NAMES]
    for names, values in ((flags, given), (variables, from_environment)):
        if any(value is not None for value in values):
            return _checked(names, values)
    return None


def _checked(names: list[str], values: tuple) -> Processes:
    missing = [n for n, value in zip(names, values, strict=True) if value is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} must be given too: {', '.join(names)} belong "
            "together."
        )
    coordinator, *numbers = map(str, values)
    for name, text in zip(names[1:], numbers, strict=True):
        if not text.isdecimal():
            raise ConfigError(f"{name}={text}: expected a whole number.")
    count, index = map(int, numbers)
    if not index < count:
        raise ConfigError(
            f"{names[2]}={index}: expected less than {names[1]}={count}, from 0."
        )
    roll_call.split_address(coordinator)
    return Processes(
        source=f"{names[0]}={coordinator}",
        coordinator=coordinator,
        num_processes=count,
        process_id=index,
    )


def limit_secs(given: float | str | None) -> float:
    """Seconds for all processes to come: as given, or ROXXEL_INIT_TIMEOUT, or 300.

    Raises:
      ConfigError: it is no number from 1.
    """
    name, value = "--init_timeout", given
    if value is None:
        name, value = "ROXXEL_INIT_TIMEOUT", os.environ.get("ROXXEL_INIT_TIMEOUT")
    if value is None:
        return DEFAULT_TIMEOUT_SECS
    try:
        seconds = float(value)
    except ValueError:
        seconds = float("nan")
    if not 1 <= seconds < 1e6:
        raise ConfigError(f"{name}={value}: expected seconds, from 1.")
    return seconds


def _detected(timeout_secs: float) -> Processes | None:
    """What jax's own detection finds, where that is more than one process."""
    if importlib.util.find_spec("jax") is None:
        return None
    from jax._src import clusters

    for cluster in clusters.ClusterEnv._cluster_types:
        with warnings.catch_warnings():
            # In a Kubernetes pod without its client: nothing that a run must know.
            warnings.simplefilter("ignore")
            if cluster.opt_in_only_method or not cluster.is_env_present():
                continue
        count = cluster.get_process_count()
        if count < 2:
            return None
        port = os.environ.get("JAX_COORDINATOR_PORT")
        address = cluster.get_coordinator_address(
            timeout_secs=int(timeout_secs), override_coordinator_port=port
        )
        local = cluster.get_local_process_id()
        alone = local is None or _processes_here() == 1
        return Processes(
            source=f"found by jax: {cluster.name or cluster.__name__}",
            coordinator=address,
            num_processes=count,
            process_id=cluster.get_process_id(),
            local_device_ids=None if alone else (local,),
        )
    return None


def _processes_here() -> int | None:
    """Processes of the run on this host, where Slurm or Open MPI tell."""
    sizes = os.environ.get("SLURM_STEP_TASKS_PER_NODE")
    text = sizes or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or ""
    # Slurm: "2(x3),1" for three hosts with two and one with one.
    numbers = {part.partition("(")[0] for part in text.split(",")}
    return int(text[0]) if numbers == {"1"} else None


# -- joining -----------------------------------------------------------------------


def _join(chosen: Processes, timeout_secs: float) -> None:
    assert chosen.coordinator is not None
    began = time.monotonic()
    who = (chosen.coordinator, chosen.num_processes)
    if chosen.process_id == 0:
        roll_call.gather(*who, timeout_secs)
    else:
        roll_call.call(chosen.coordinator, chosen.process_id, who[1], timeout_secs)
    import jax

    if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # All are there: what is left is short, and jax's own limit ends the process.
    left = max(timeout_secs - (time.monotonic() - began), _LEAST_SECS)
    jax.distributed.initialize(
        chosen.coordinator,
        chosen.num_processes,
        chosen.process_id,
        local_device_ids=chosen.local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=int(left),
        heartbeat_timeout_seconds=HEARTBEAT_SECS,
    )


def is_lead() -> bool:
    """Whether this process writes what is written once; touches no device."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return True
    return jax.process_index() == 0
