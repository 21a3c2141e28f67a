"""`--mode=import_config --from=FILE`: an experiment from another program's settings."""

import os
import pathlib

from roxxel.config.arguments import CommandLine
from roxxel.config.importing.maxtext import MAXTEXT
from roxxel.config.importing.nanogpt import NANOGPT
from roxxel.config.importing.settings import Program, translate
from roxxel.config.importing.writing import module_text
from roxxel.errors import ConfigError

PROGRAMS = {".yml": MAXTEXT, ".yaml": MAXTEXT, ".py": NANOGPT}


def run(line: CommandLine) -> str:
    """The module's text, or where `--output` has it now.

    Raises:
      ConfigError: the file cannot be read or translated, or the output is there.
    """
    given = line.get("from")
    if not given:
        raise ConfigError(
            "--mode=import_config: give --from=FILE, a MaxText YAML or a nanoGPT .py."
        )
    path = pathlib.Path(os.path.expanduser(given))
    program = _program(path, given)
    theirs = program.read(_text(path, given), str(path))
    _check_known(program, theirs, given)
    imported = translate(program, theirs, devices=_devices(line))
    text = module_text(program, imported, path.name)
    output = line.get("output")
    return text.rstrip() if output is None else _write(text, output)


def _program(path: pathlib.Path, given: str) -> Program:
    if path.suffix not in PROGRAMS:
        raise ConfigError(
            f"--from={given}: expected a MaxText .yml or a nanoGPT .py file."
        )
    return PROGRAMS[path.suffix]


def _text(path: pathlib.Path, given: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"--from={given} cannot be read: {err}") from err


def _check_known(program: Program, theirs: dict, given: str) -> None:
    if not program.names() & set(theirs):
        raise ConfigError(
            f"--from={given} holds none of the settings of {program.name}."
        )


def _devices(line: CommandLine) -> int:
    given = line.get("devices") or "1"
    if not given.isdigit() or int(given) < 1:
        raise ConfigError(f"--devices={given}: expected a whole number from 1.")
    return int(given)


def _write(text: str, output: str) -> str:
    path = pathlib.Path(os.path.expanduser(output))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as err:
        raise ConfigError(f"--output={output} is there already.") from err
    except OSError as err:
        raise ConfigError(f"--output={output} cannot be written: {err}") from err
    return f"{path}: run it by the name of its module, `--fdl_config=MODULE.imported`"
