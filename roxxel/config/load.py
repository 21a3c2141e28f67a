"""Reads the graph in a `config.json`. The file is data: it may not import at will.

A config file names functions and classes, which loading has to import and building has
to call. `allowed` says which names are taken; others need the user's word.
"""

import dataclasses
import json
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
from fiddle.experimental import serialization

from roxxel.config import allowed, encode, imports, suggest, text
from roxxel.errors import ConfigError

MAX_FILE_BYTES = 4 * 1024**2  # those of experiments have a hundredth
MAX_VALUES = 1_000_000  # of a graph with every shared part counted where it is used
FORMAT = 1  # of the "roxxel" section of config.json


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The graph of a file and what the file says about its experiment."""

    config: fdl.Buildable
    name: str
    source: str


def load_file(
    file: str, *, trusted: Sequence[str] = (), trust_all: bool = False
) -> Loaded:
    """The graph that a run wrote to `config.json`.

    Args:
      file: the path of the file.
      trusted: names of more packages that the file may import from.
      trust_all: whether the file may import anything.

    Raises:
      ConfigError: one line saying what is wrong with the file.
    """
    flag = f"--fdl_config_file={file}"
    path = Path(file)
    content = _read(path, flag)
    data = _parsed(content, flag)
    config = _deserialized(content, allowed.Policy(trusted, trust_all), flag)
    if not isinstance(config, fdl.Buildable):
        raise ConfigError(f"{flag}: holds {suggest.shown(config)}, not a fdl.Config.")
    section = data.get("roxxel")
    section = section if isinstance(section, dict) else {}
    name = str(section.get("experiment") or path.resolve().parent.name)
    return Loaded(config, name, str(section.get("source") or ""))


def _read(path: Path, flag: str) -> str:
    try:
        if path.is_dir():
            raise ConfigError(f"{flag}: is a folder; did you mean {path}/config.json?")
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait
            raise ConfigError(f"{flag}: is no regular file; expected a config.json.")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(
                f"{flag}: is over {MAX_FILE_BYTES} bytes; no config file."
            )
        return content.decode("utf-8")
    except FileNotFoundError as err:
        raise ConfigError(f"{flag}: there is no such file.") from err
    except (OSError, ValueError) as err:  # ValueError: a NUL in the path, no UTF-8
        raise ConfigError(f"{flag}: cannot be read: {imports.one_line(err)}") from err


def _parsed(content: str, flag: str) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except json.JSONDecodeError as err:
        where = f"line {err.lineno} column {err.colno}"
        raise ConfigError(f"{flag}: is no JSON: {err.msg} at {where}.") from err
    except (RecursionError, ValueError) as err:
        raise ConfigError(f"{flag}: is no config: {imports.one_line(err)}") from err
    if not isinstance(data, dict) or not {"root", "objects"} <= data.keys():
        raise ConfigError(
            f"{flag}: is JSON, but not the config.json of a run (it has no 'root' and "
            "'objects')."
        )
    try:
        size = _expanded(data["root"], data["objects"], {})
    except (AttributeError, KeyError, TypeError):
        return data  # not of the format; what is wrong is said when it is read
    except RecursionError as err:
        raise ConfigError(f"{flag}: is nested too deeply, or in a circle.") from err
    if size > MAX_VALUES:
        raise ConfigError(f"{flag}: holds more than {MAX_VALUES:,} values; no config.")
    return data


def _expanded(value: Any, objects: dict[str, Any], known: dict[str, int]) -> int:
    """How many values a stored one stands for; a small file can stand for millions."""
    if isinstance(value, list):
        return 1 + sum(_expanded(item, objects, known) for item in value)
    if not isinstance(value, dict) or value.get("type") == "leaf":
        return 1
    if value.get("type") != "ref":
        return 1 + _expanded(value.get("items", []), objects, known)
    key = value["key"]
    if key not in known:
        known[key] = _expanded(objects[key], objects, known)
    return known[key]


def _deserialized(content: str, policy: allowed.Policy, flag: str) -> Any:
    try:
        loaded = encode.decode(serialization.load_json(content, policy))
        if isinstance(loaded, fdl.Buildable):
            text.render(loaded)  # reads all of it: names and tags of the wrong kind
        return loaded
    except serialization.PyrefPolicyError as err:
        raise ConfigError(f"{flag}: {_not_allowed(err)}") from err
    except ConfigError as err:
        raise ConfigError(f"{flag}: {err}") from err
    except RecursionError as err:
        raise ConfigError(f"{flag}: is nested too deeply, or in a circle.") from err
    except ImportError as err:
        raise ConfigError(f"{flag}: {_first_line(err)}; is it installed?") from err
    except AttributeError as err:
        message = f"{flag}: {_first_line(err)}; the code has changed since."
        raise ConfigError(message) from err
    except Exception as err:
        raise ConfigError(f"{flag}: is no config: {imports.one_line(err)}") from err


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def _not_allowed(error: serialization.PyrefPolicyError) -> str:
    package = f"{error.module}".partition(".")[0]  # of a file: any kind of value
    wants = f"wants {error.module}.{error.symbol}, which a config file may not import."
    if package in sys.builtin_module_names or not package:
        return wants
    if package in allowed.OWN_PACKAGES:
        return f"{wants} If you know what it does: --trust_module={error.module}."
    return (
        f"{wants} If it is yours: --trust_module={package} (or --trust_config for any)."
    )
