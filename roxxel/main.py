"""`python -m roxxel.main`: from flags to a checked graph, and from the graph to a run.

Everything that can be wrong is found before a device is claimed or a file created.
Exit codes are those of `roxxel.errors`: 0 done, 2 the configuration is wrong, 3
diverged, 42 stopped after saving (start the same command again), 1 anything else.
"""

import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roxxel import allocator, errors
from roxxel.config import arguments, failures, joining, options, say, suggest
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
        say.lines([f"{failures.PREFIX} interrupted."])
        return EXIT_INTERRUPTED
    except Exception as err:
        code = failures.exit_code(err)
        if code is None or show_traceback:
            traceback.print_exc()
        if code is None:
            return errors.EXIT_ERROR
        say.lines(failures.lines(failures.printable(str(err), argv), code))
        return code


def _main(argv: list[str]) -> int:
    line = arguments.parse(argv)
    mode = _mode(line)
    if line.on("help") or line.on("version"):
        return _show(_about(line))
    if mode == "list" or (line.on("fdl_help") and not _names_experiment(line)):
        return _show(_listing(line))
    if mode == "import_config":
        return _show(_imported(line))
    _check_flags(line, mode)
    found = _resolve(line)
    if line.on("fdl_help") or line.on("print_config"):
        return _show(_described(found, line))
    return _done(found, line, argv, mode)


def _mode(line: arguments.CommandLine) -> str:
    mode = line.get("mode") or "train"
    if mode not in options.MODES:
        known = suggest.did_you_mean(mode, options.MODES, what="modes")
        raise errors.ConfigError(f"--mode={mode}: there is no such mode.{known}")
    if line.on("print_config") and line.get("mode") not in (None, "train"):
        raise errors.ConfigError(
            f"--print_config and --mode={mode} exclude each other."
        )
    for name, option in options.OPTIONS.items():
        if option.modes and mode not in option.modes and line.has(name):
            owners = " and ".join(f"--mode={owner}" for owner in option.modes)
            raise errors.ConfigError(f"--{name} belongs to {owners}.")
    return mode


def _about(line: arguments.CommandLine) -> str:
    import roxxel

    return options.usage() if line.on("help") else f"roxxel {roxxel.__version__}"


def _listing(line: arguments.CommandLine) -> str:
    _check_fiddle()
    from roxxel.config import listing

    shown = listing.overview()
    return f"{options.usage()}\n\n{shown}" if line.on("fdl_help") else shown


def _imported(line: arguments.CommandLine) -> str:
    from roxxel.config.importing import command

    if _names_experiment(line) or line.directives:
        raise errors.ConfigError(
            "--mode=import_config takes --from, --devices and --output only."
        )
    return command.run(line)


def _names_experiment(line: arguments.CommandLine) -> bool:
    return not (line.get("fdl_config") is None and line.get("fdl_config_file") is None)


def _check_fiddle() -> None:
    if importlib.util.find_spec("fiddle") is None:
        raise errors.ConfigError(
            "roxxel.main needs fiddle: pip install 'roxxel[train]'."
        )


def _check_flags(line: arguments.CommandLine, mode: str) -> None:
    """Check what needs no experiment, so that it ends before anything is imported."""
    if mode in options.MODES_OF_A_RUN:
        _take_run(line, mode)
    if not _names_experiment(line):
        raise errors.ConfigError(_no_experiment())
    _check_fiddle()
    joining.check(line)
    given = line.get("workdir")
    if given is not None:
        path = workdir_lib.choose(given, "")
        workdir_lib.check_writable(path, f"--workdir={given}")


def _take_run(line: arguments.CommandLine, mode: str) -> None:
    """The configuration in the folder `--run` is what `mode` is about.

    A replay runs it as it is. Other modes take an experiment and its work directory as
    well, and changes.
    """
    folder = line.get("run")
    if folder is None:
        if mode == "replay" or not _names_experiment(line):
            raise errors.ConfigError(
                f"--mode={mode}: give --run=DIR, the work directory of a run."
            )
        return
    if mode == "replay" and (_names_experiment(line) or line.directives):
        raise errors.ConfigError(
            f"--mode=replay runs what --run={folder} ran; take away all that names or "
            "changes an experiment."
        )
    if mode != "replay" and (_names_experiment(line) or line.has("workdir")):
        raise errors.ConfigError(
            f"--run={folder} names a run; take away --fdl_config, --fdl_config_file "
            "and --workdir, which name one too."
        )
    file = os.path.join(os.path.expanduser(folder), workdir_lib.CONFIG_JSON)
    if not os.path.isfile(file):
        inside = os.path.join(workdir_lib.DEFAULT_ROOT, folder)
        is_there = os.path.isfile(os.path.join(inside, workdir_lib.CONFIG_JSON))
        hint = f" Did you mean --run={inside}?" if is_there else ""
        raise errors.ConfigError(
            f"--run={folder}: there is no {file}; expected the work directory of a run."
            f"{hint}"
        )
    line.text["fdl_config_file"] = file


def _no_experiment() -> str:
    from roxxel.config import discover

    names = suggest.listing(discover.names()) or "none here"
    usage = options.usage(brief=True)
    return f"no experiment: give --fdl_config=NAME (known: {names}).\n{usage}"


def _resolve(line: arguments.CommandLine) -> "Experiment":
    from roxxel.config import resolve

    _parse_log_flags(line.log_flags)
    found = resolve.experiment(line)
    say.lines([f"roxxel: note: {note}" for note in line.notes + found.notes])
    return found


def _parse_log_flags(words: list[str]) -> None:
    """Hand the logging flags to absl, whose libraries expect its flags parsed."""
    from absl import flags, logging

    logging.get_verbosity()  # absl defines the logging flags with its logger
    try:
        flags.FLAGS(["roxxel", *words])
    except flags.Error as err:
        raise errors.ConfigError(str(err)) from err


def _described(found: "Experiment", line: arguments.CommandLine) -> str:
    from roxxel.config import dump, help

    if line.on("fdl_help"):
        return help.overview(found)
    return dump.to_text(found.config, name=found.name, source=found.source).rstrip()


def _done(
    found: "Experiment", line: arguments.CommandLine, argv: list[str], mode: str
) -> int:
    """Do what `mode` says; the exit code."""
    from roxxel.config import (
        check,
        drawing,
        early_stop,
        evaluating,
        explain,
        export,
        replay,
        sampling,
        serving,
        start,
    )

    if mode == "train":
        with early_stop.until_started():
            return start.train(found, line, argv)
    if mode == "replay":
        with early_stop.until_started():
            return replay.run(found, line, argv)
    if mode == "eval":
        return evaluating.run(found, line)
    if mode == "sample":
        return sampling.run(found, line)
    if mode == "serve":
        return serving.run(found, line)
    if mode == "export":
        return _show(export.run(found, line))
    if mode == "check":
        shown, problems = check.report(found, line)
        _show(shown)
        if problems:
            raise errors.ConfigError("\n".join(problems))
        return errors.EXIT_OK
    if mode == "graph":
        return _show(drawing.draw(found, line.get("path"), line.get("output")))
    if mode == "explain":
        return _show(explain.origins(found, line.get("path")))
    return _show(explain.difference(found, line))


def _show(shown: str) -> int:
    """Write to stdout; a reader that has seen enough (`| head`) is no error."""
    try:
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return errors.EXIT_OK


if __name__ == "__main__":
    allocator.restart_with_kept_memory()
    sys.exit(main())
