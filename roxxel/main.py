"""`python -m roxxel.main`: from flags to a checked graph, and from the graph to a run.

Everything that can be wrong is found before a device is claimed or a file created.
Exit codes are those of `roxxel.errors`: 0 done, 2 the configuration is wrong, 3
diverged, 42 stopped after saving (start the same command again), 1 anything else.
"""

import functools
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roxxel import allocator, distributed, errors
from roxxel.config import arguments, failures, options, suggest
from roxxel.config import workdir as workdir_lib

if TYPE_CHECKING:
    from roxxel.config.resolve import Experiment

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    show_traceback = "--traceback" in argv
    try:
        return _main(argv)
    except KeyboardInterrupt:
        _say([f"{failures.PREFIX} interrupted."])
        return EXIT_INTERRUPTED
    except Exception as err:
        code = failures.exit_code(err)
        if code is None or show_traceback:
            traceback.print_exc()
        if code is None:
            return errors.EXIT_ERROR
        _say(failures.lines(str(err), code))
        return code


def _main(argv: list[str]) -> int:
    line = arguments.parse(argv)
    mode = _mode(line)
    if line.on("help") or line.on("version"):
        return _show(_about(line))
    if mode == "list" or (line.on("fdl_help") and not _names_experiment(line)):
        return _show(_listing(line))
    _check_flags(line)
    found = _resolve(line)
    if mode != "train" or line.on("fdl_help") or line.on("print_config"):
        return _show(_printed(found, line, mode))
    return _train(found, line, argv)


def _mode(line: arguments.CommandLine) -> str:
    mode = line.get("mode") or "train"
    if mode not in options.MODES:
        known = suggest.did_you_mean(mode, options.MODES, what="modes")
        raise errors.ConfigError(f"--mode={mode}: there is no such mode.{known}")
    for flag, owner in (("path", "explain"), ("against", "diff")):
        if line.get(flag) is not None and mode != owner:
            raise errors.ConfigError(f"--{flag} belongs to --mode={owner}.")
    return mode


def _about(line: arguments.CommandLine) -> str:
    import roxxel

    return options.usage() if line.on("help") else f"roxxel {roxxel.__version__}"


def _listing(line: arguments.CommandLine) -> str:
    _check_fiddle()
    from roxxel.config import listing

    shown = listing.overview()
    return f"{options.usage()}\n\n{shown}" if line.on("fdl_help") else shown


def _names_experiment(line: arguments.CommandLine) -> bool:
    return not (line.get("fdl_config") is None and line.get("fdl_config_file") is None)


def _check_fiddle() -> None:
    if importlib.util.find_spec("fiddle") is None:
        raise errors.ConfigError(
            "roxxel.main needs fiddle: pip install 'roxxel[train]'."
        )


def _check_flags(line: arguments.CommandLine) -> None:
    """Check what needs no experiment, so that it ends before anything is imported."""
    if not _names_experiment(line):
        raise errors.ConfigError(_no_experiment())
    _check_fiddle()
    given = line.get("workdir")
    if given is not None:
        path = workdir_lib.choose(given, "")
        workdir_lib.check_writable(path, f"--workdir={given}")


def _no_experiment() -> str:
    from roxxel.config import discover

    names = suggest.listing(discover.names()) or "none here"
    return f"no experiment: give --fdl_config=NAME (known: {names}).\n{options.usage()}"


def _resolve(line: arguments.CommandLine) -> "Experiment":
    from roxxel.config import resolve

    _parse_log_flags(line.log_flags)
    found = resolve.experiment(line)
    _say([f"roxxel: note: {note}" for note in line.notes + found.notes])
    return found


def _parse_log_flags(words: list[str]) -> None:
    """Hand the logging flags to absl, whose libraries expect its flags parsed."""
    from absl import flags, logging

    logging.get_verbosity()  # absl defines the logging flags with its logger
    try:
        flags.FLAGS(["roxxel", *words])
    except flags.Error as err:
        raise errors.ConfigError(str(err)) from err


def _printed(found: "Experiment", line: arguments.CommandLine, mode: str) -> str:
    from roxxel.config import dump, explain, help

    if line.on("fdl_help"):
        return help.overview(found)
    if mode == "explain":
        return explain.origins(found, line.get("path"))
    if mode == "diff":
        return explain.difference(found, line)
    return dump.to_text(found.config, name=found.name, source=found.source).rstrip()


def _train(found: "Experiment", line: arguments.CommandLine, argv: list[str]) -> int:
    from roxxel.config import record, run_info

    given = line.get("workdir")
    workdir = workdir_lib.choose(given, found.name)
    flag = f"--workdir={given or workdir}"
    workdir_lib.check_writable(workdir, flag)
    workdir_lib.check_same_experiment(workdir, found.name, found.source, flag)
    _check_runs(found.target, found.name)
    distributed.initialize()
    run = _build(found)
    info = run_info.collect(
        argv=argv, experiment=found.name, source=found.source, workdir=workdir
    )
    is_new = not workdir.exists()
    workdir_lib.make(workdir, flag)
    if not distributed.is_lead():
        return _exit_code_of(run(workdir=workdir, run_info=info))
    before = workdir_lib.snapshot(workdir)
    _say(record.write(found, workdir, info))
    try:
        return _exit_code_of(run(workdir=workdir, run_info=info))
    except errors.ConfigError:
        workdir_lib.restore(workdir, before)  # the run that is there stays as it was
        if is_new:
            workdir_lib.remove_started(workdir)
        raise


def _check_runs(target: Any, name: str) -> None:
    """Check that what is built can run: a class is asked before it is built."""
    if isinstance(target, type) and not callable(getattr(target, "run", None)):
        raise errors.ConfigError(
            f"{name} builds an object of type {target.__name__}, which has no method "
            "run(workdir, run_info)."
        )


def _build(found: "Experiment") -> Any:
    """The `run` method of what the graph builds."""
    import fiddle as fdl

    from roxxel.config import sharing

    shorten = functools.partial(sharing.canonical, found.config)
    try:
        built = fdl.build(found.config)
    except Exception as err:
        error = failures.from_build(err, shorten)
        if error is None:
            raise
        raise error from err
    _check_runs(type(built), found.name)
    return built.run


def _exit_code_of(result: Any) -> int:
    if result is None:
        return errors.EXIT_OK
    return result if isinstance(result, int) else errors.EXIT_ERROR


def _show(shown: str) -> int:
    """Write to stdout; a reader that has seen enough (`| head`) is no error."""
    try:
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.EXIT_OK


def _say(lines: list[str]) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    allocator.restart_with_kept_memory()
    sys.exit(main())
