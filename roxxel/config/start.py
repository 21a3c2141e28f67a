"""From a resolved experiment to its run in a work directory."""

import contextlib
import functools
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl

from roxxel import distributed, errors
from roxxel.config import (
    abstract,
    arguments,
    data_facts,
    failures,
    imports,
    joining,
    minutes,
    record,
    resolve,
    run_info,
    say,
    sharing,
)
from roxxel.config import workdir as workdir_lib
from roxxel.errors import ConfigError


def train(
    found: resolve.Experiment, line: arguments.CommandLine, argv: Sequence[str]
) -> int:
    """Run an experiment in the work directory of the line, or its own; the exit code.

    Raises:
      ConfigError: it cannot run, or not there; nothing has been created then.
    """
    given = line.get("workdir") or configured_workdir(found)
    workdir = workdir_lib.choose(given, found.name)
    flag = f"--workdir={given or workdir}"
    workdir_lib.check_writable(workdir, flag)
    workdir_lib.check_same_experiment(workdir, found.name, found.source, flag)
    check_runs(found.target, found.name)
    with joining.joined(found, line, workdir) as joined:
        is_new = not workdir.exists()
        with explained(found, only_building=False):
            say.lines(minutes.resolve(found, workdir, flag))
        built = build(found)
        joined.check_data(data_facts.of(built))
        joined_as = {"distributed": str(joined)}
        return run(
            found, built, workdir, argv, flag=flag, is_new=is_new, extra=joined_as
        )


def configured_workdir(found: resolve.Experiment) -> str | None:
    """The work directory that the graph names, as text; None where it names none."""
    value = found.config.__arguments__.get("workdir")
    return os.fspath(value) if isinstance(value, str | os.PathLike) else None


def build(found: resolve.Experiment) -> Any:
    """What the graph builds, which has a method `run`.

    A mistake anywhere in the graph is found before a data set is built.
    """
    abstract.check_before_building(found.config)
    with explained(found):
        try:
            built = fdl.build(found.config)
        except SystemExit as err:
            where = imports.location(err)
            raise ConfigError(
                f"{found.name}: failed at {where}: {imports.one_line(err)}"
            ) from err
    check_runs(type(built), found.name)
    return built


@contextlib.contextmanager
def explained(
    found: resolve.Experiment, *, only_building: bool = True
) -> Generator[None]:
    """Turns what is raised while a graph is built into one line that names the node.

    Where the block does more than build, only errors that fiddle saw count.
    """
    try:
        yield
    except Exception as err:
        shorten = functools.partial(sharing.canonical, found.config)
        is_seen = hasattr(err, "proxy_message") or isinstance(err, ConfigError)
        counts = only_building or is_seen
        error = failures.from_build(err, shorten) if counts else None
        if error is None:
            raise
        raise error from err


def run(
    found: resolve.Experiment,
    built: Any,
    workdir: Path,
    argv: Sequence[str],
    *,
    flag: str,
    is_new: bool,
    extra: Mapping[str, Any] | None = None,
) -> int:
    """Run what was built in a work directory; the exit code.

    A run that is refused, or has nothing left to do, leaves the description of the one
    before it. What is written into a folder that `is_new` is taken away when the run is
    refused. `extra` is added to `run.json`.
    """
    diff = run_info.uncommitted(run_info.repository(found.source))
    info = run_info.collect(
        argv=argv,
        experiment=found.name,
        source=found.source,
        workdir=workdir,
        diff=diff,
    )
    info |= {"data": data_facts.of(built), **(extra or {})}
    from roxxel.train import timing  # here, for it loads jax

    info["process_secs"] = timing.process_age()
    workdir_lib.make(workdir, flag)
    if not distributed.is_lead():
        return _exit_code_of(built.run(workdir=workdir, run_info=info))
    before = workdir_lib.snapshot(workdir)
    is_done = getattr(built, "nothing_left", None)
    keeps = bool(before) and is_done is not None and is_done(workdir)
    say.lines(record.write(found, workdir, info, diff))
    try:
        code = _exit_code_of(built.run(workdir=workdir, run_info=info))
    except ConfigError:
        workdir_lib.restore(workdir, before)  # the run that is there stays as it was
        if is_new:
            workdir_lib.remove_started(workdir)
        raise
    if keeps:
        workdir_lib.restore(workdir, before)
    return code


def check_runs(target: Any, name: str) -> None:
    """Check that what is built can run: a class is asked before it is built."""
    if isinstance(target, type) and not callable(getattr(target, "run", None)):
        raise ConfigError(
            f"{name} builds an object of type {target.__name__}, which has no method "
            "run(workdir, run_info)."
        )


def _exit_code_of(result: Any) -> int:
    if result is None:
        return errors.EXIT_OK
    return result if isinstance(result, int) else errors.EXIT_ERROR
