"""The processes of a run, by flags, with the same configuration and data in all."""

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from roxxel import agreement, distributed, leaving
from roxxel.config import arguments, resolve, say
from roxxel.config import text as text_lib

_PACKAGES = ("roxxel", "jax", "jaxlib", "flax", "optax")


def given(line: arguments.CommandLine) -> tuple[str | None, str | None, str | None]:
    """What the flags say of coordinator, number of processes and own index."""
    return line.get("coordinator"), line.get("num_processes"), line.get("process_id")


def check(line: arguments.CommandLine) -> None:
    """Checks flags and variables, before anything is imported or asked.

    Raises:
      ConfigError: a value is wrong, or one is missing.
    """
    distributed.check(given(line), line.get("init_timeout"))


class Joined:
    """The processes of a run that is being started."""

    def __init__(self, processes: distributed.Processes, timeout: str | None):
        self._processes, self._timeout = processes, timeout

    def __str__(self):
        return str(self._processes)

    def check_config(self, found: resolve.Experiment, workdir: Path) -> None:
        """Raises a ConfigError in all processes if one has another configuration."""
        if self._processes.num_processes < 2:
            return
        from roxxel.config import run_info

        lines = text_lib.render(found.config).splitlines()
        pairs = (line.partition("  #")[0].partition("=")[::2] for line in lines)
        values = {name.strip(): value.strip() for name, value in pairs}
        versions = run_info.versions(_PACKAGES)
        values |= {f"version of {name}": text for name, text in versions.items()}
        values |= {"experiment": found.source, "--workdir": str(workdir)}
        agreement.check_same("configuration", values, self._timeout)

    def check_data(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises a ConfigError in all processes if one has other data."""
        values = {
            f"{place} ({kind})": str(fact.get(kind))
            for place, fact in facts.items()
            for kind in ("fingerprint", "elements", "dtype")
        }
        agreement.check_same("data", values, self._timeout)


@contextlib.contextmanager
def joined(
    found: resolve.Experiment, line: arguments.CommandLine, workdir: Path
) -> Generator[Joined]:
    """The processes of the run, joined; an error in the block is told to all.

    Raises:
      ConfigError: flags are wrong, or a process has another configuration.
      roxxel.roll_call.JoinError: not all processes came in time.
    """
    timeout = line.get("init_timeout")
    processes = distributed.initialize(*given(line), timeout_secs=timeout)
    if processes.num_processes > 1:
        say.lines([f"roxxel: {processes}"])
    result = Joined(processes, timeout)
    try:
        result.check_config(found, workdir)
        yield result
    except BaseException as err:
        leaving.tell_failure(err)
        raise
