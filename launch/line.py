"""The command line that all launchers share: own flags, `--`, the experiment's line."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from launch.problems import did_you_mean

_NAMES_A_RUN = ("--fdl_config", "--fdl_config_file", "--run")


class LaunchError(ValueError):
    """A launcher's command line is wrong; the message is one line."""


class Parser(argparse.ArgumentParser):
    """Takes `--name=value` as roxxel.main does, and says in one line what is wrong."""

    def __init__(self, module: str, about: str):
        super().__init__(
            prog=f"python -m {module}",
            usage=f"python -m {module} [flags] -- --fdl_config=EXPERIMENT [--fdl...]",
            description=about,
            allow_abbrev=False,
        )
        self.add_argument(
            "--dry_run", action="store_true", help="print what would run, run nothing"
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise LaunchError(f"{message}.")

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The launcher's own flags, and the experiment's line behind `--`.

        Raises:
          LaunchError: an unknown flag, a wrong value, or a line that names nothing.
        """
        own, line = split(argv)
        given, unknown = self.parse_known_args(own)
        if unknown:
            known = [option for a in self._actions for option in a.option_strings]
            name = unknown[0].partition("=")[0]
            raise LaunchError(
                f"unknown flag {unknown[0]!r} before `--`.{did_you_mean(name, known)}"
            )
        check(line)
        return given, line


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and behind the first `--`."""
    argv = list(argv)
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def check(line: Sequence[str]) -> None:
    """Refuses a line that cannot be one of `python -m roxxel.main`."""
    names = [word.partition("=")[0] for word in line]
    if not any(name in _NAMES_A_RUN for name in names):
        raise LaunchError(
            "no experiment: give its line behind `--`, as in -- "
            "--fdl_config=experiments.ssm_small --workdir=DIR."
        )


def number(least: int, most: int = 2**31):
    """The type of a flag that takes a whole number within bounds, both included."""

    def parse(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least}, got {text!r}"
                if most == 2**31
                else f"expected a whole number from {least} to {most}, got {text!r}"
            )
        return int(text)

    return parse


def shown(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """A command as it would be typed, its variables in front."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    return " ".join([*variables, *map(shlex.quote, command)])


def say(program: str, text: str) -> None:
    """A line about the launch itself, on stderr."""
    sys.stderr.write(f"{program}: {text}\n")
    sys.stderr.flush()
