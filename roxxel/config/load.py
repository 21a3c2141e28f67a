"""Reads the graph in a `config.json`. The file is data: it may not import at will.

A config file names functions and classes, which loading has to import and building has
to call. Only names from roxxel, `experiments`, `configs` and the pure parts of jax,
flax, optax and numpy are taken; other packages need the user's word.
"""

import dataclasses
import enum
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import fiddle as fdl
from fiddle.experimental import serialization

from roxxel.config import encode, imports, suggest, text
from roxxel.errors import ConfigError

MAX_FILE_BYTES = 64 * 1024**2
MAX_VALUES = 1_000_000  # of a graph with every shared part counted where it is used
FORMAT = 1  # of the "roxxel" section of config.json

OWN_PACKAGES = ("roxxel", "experiments", "configs")
# Modules whose functions only compute. `numpy` is in for its types and ufuncs alone:
# numpy.load and its like read pickles.
PURE_MODULES = (
    "flax.linen",
    "flax.nnx",
    "jax.nn",
    "jax._src.nn",
    "jax._src.numpy.scalar_types",
    "jax.random",
    "jax._src.random",
    "jax.lax",
    "jax.sharding",
    "optax",
)
_TYPES_ONLY = ("numpy", "jax.numpy", "jax", "ml_dtypes", "flax", "jaxlib")
_BUILTINS = {
    *("bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list"),
    *("max", "min", "set", "slice", "str", "sum", "tuple", "abs", "round", "len"),
}
_FIDDLE_TYPES = ("fiddle._src.config", "fiddle._src.partial", "fiddle._src.signatures")
_CLOSED = ("roxxel.main", "roxxel.config")  # own modules that no config file may call
_STORED = "roxxel.config.stored"


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
    config = _deserialized(content, _Policy(trusted, trust_all), flag)
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
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(
                f"{flag}: is over {MAX_FILE_BYTES} bytes; no config file."
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        raise ConfigError(f"{flag}: there is no such file.") from err
    except (OSError, UnicodeDecodeError) as err:
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


def _deserialized(content: str, policy: "_Policy", flag: str) -> Any:
    try:
        loaded = encode.decode(serialization.load_json(content, policy))
        if isinstance(loaded, fdl.Buildable):
            text.render(loaded)  # reads all of it: names and tags of the wrong kind
        return loaded
    except serialization.PyrefPolicyError as err:
        raise ConfigError(f"{flag}: {_not_allowed(err, policy)}") from err
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


def _not_allowed(error: serialization.PyrefPolicyError, policy: "_Policy") -> str:
    package = f"{error.module}".partition(".")[0]  # of a file: any kind of value
    wants = f"wants {error.module}.{error.symbol}, which a config file may not import."
    if policy.is_own(package) or package in sys.builtin_module_names or not package:
        return wants
    return (
        f"{wants} If it is yours: --trust_module={package} (or --trust_config for any)."
    )


class _Policy(serialization.PyrefPolicy):
    """Which names a config file may import."""

    def __init__(self, trusted: Sequence[str], trust_all: bool):
        self._trusted = (*OWN_PACKAGES, *trusted)
        self._trust_all = trust_all

    def is_own(self, package: str) -> bool:
        """Whether a package is trusted as a whole."""
        return package in self._trusted

    def allows_import(self, module: str, symbol: str) -> bool:
        if self._trust_all:
            return True
        if not isinstance(module, str) or not isinstance(symbol, str):
            return False
        if any(part.startswith("__") for part in f"{module}.{symbol}".split(".")):
            return False
        if module == "builtins":
            return symbol in _BUILTINS
        known = (*self._trusted, *PURE_MODULES, *_TYPES_ONLY, *_FIDDLE_TYPES)
        return _is_within(module, (*known, "collections", "fiddle"))

    def allows_value(self, value: Any) -> bool:
        if self._trust_all:
            return True
        if isinstance(value, ModuleType):
            return False
        home = _home(value)
        if home == "builtins":
            return getattr(value, "__name__", "") in _BUILTINS
        if _is_within(home, _CLOSED):
            return home == _STORED
        if _is_within(home, (*self._trusted, *PURE_MODULES, *_FIDDLE_TYPES)):
            return True
        is_type = isinstance(value, (type, enum.Enum))
        if home == "collections":
            return is_type
        return _is_within(home, _TYPES_ONLY) and (is_type or _only_computes(value))


def _home(value: Any) -> str:
    """The module in which a value, or the type of an object, was defined."""
    if isinstance(value, enum.Enum):
        return type(value).__module__
    home = getattr(value, "__module__", None)
    if home is None:
        home = type(value).__module__
    return str(home)


def _only_computes(value: Any) -> bool:
    """Whether a numpy or jax object is a ufunc or a jitted function."""
    kind = type(value).__name__
    return kind in ("ufunc", "PjitFunction", "custom_jvp", "_ScalarMeta")


@functools.lru_cache(maxsize=1024)
def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)
