"""Imports that tell "there is no such module" apart from "the module is broken"."""

import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from types import ModuleType
from typing import Any

from roxxel.errors import ConfigError

_TRAIN_EXTRA = {"fiddle", "flax", "jax", "jaxlib", "optax", "orbax"}


# What a function of a graph may raise: `sys.exit()` there says nothing about a run.
FAILURES = (Exception, SystemExit)


class BrokenModuleError(ConfigError):
    """A module exists and its import failed."""


class MissingNameError(ConfigError):
    """A module, or a name in one, does not exist.

    `parent` is the longest part of the dotted name that exists, `missing` the next
    part after it.
    """

    def __init__(self, message: str, *, parent: object = None, missing: str = ""):
        super().__init__(message)
        self.parent = parent
        self.missing = missing


def exists(name: str) -> bool:
    """Whether a module can be found; imports its parent packages only.

    Raises:
      BrokenModuleError: a parent package exists and its import failed.
    """
    if name in sys.modules:
        return sys.modules[name] is not None
    parent, _, _ = name.rpartition(".")
    if parent:
        if not exists(parent):
            return False
        if not hasattr(load(parent), "__path__"):
            return False
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def is_standard(module: str) -> bool:
    """Whether a module is of Python's standard library, and no file called like one."""
    first = module.partition(".")[0]
    if first not in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return True
    if spec is None or not spec.has_location or not spec.origin:
        return True
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return any(os.path.dirname(spec.origin).startswith(path) for path in paths)


def load(name: str) -> ModuleType:
    """Import a module that exists.

    Raises:
      BrokenModuleError: naming module, file, line and the error.
    """
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as err:
        raise BrokenModuleError(_why_broken(name, err)) from err


def load_longest(dotted: str) -> tuple[ModuleType, list[str]]:
    """The longest prefix of a dotted name that is a module, and the names left over.

    Raises:
      MissingNameError: the first name is no module.
      BrokenModuleError: a module on the way failed to import.
    """
    names = dotted.split(".")
    if not exists(names[0]):
        raise MissingNameError(f"there is no module {names[0]!r}", missing=names[0])
    length = 1
    while length < len(names) and exists(".".join(names[: length + 1])):
        length += 1
    return load(".".join(names[:length])), names[length:]


def symbol(dotted: str) -> Any:
    """The object of a dotted name: a module, or something in one.

    Raises:
      MissingNameError: the name does not lead anywhere.
      BrokenModuleError: a module on the way failed to import.
    """
    value, names = load_longest(dotted)
    for name in names:
        try:
            value = getattr(value, name)
        except AttributeError as err:
            owner = getattr(value, "__name__", type(value).__name__)
            raise MissingNameError(
                f"{owner} has no {name!r}", parent=value, missing=name
            ) from err
    return value


def location(error: BaseException, *, within: str | None = None) -> str:
    """`file:line` where an error arose.

    Args:
      error: a caught exception.
      within: prefer the deepest frame whose file starts with this text.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    own = [frame for frame in frames if within and frame.filename.startswith(within)]
    for frame in reversed(own or frames):
        if "importlib" not in frame.filename:
            return f"{frame.filename}:{frame.lineno}"
    return "unknown place"


def one_line(error: BaseException) -> str:
    """Type and message of an error without line breaks, at most 300 characters."""
    if isinstance(error, SyntaxError):
        text = error.msg
    elif isinstance(error, KeyError) and error.args:
        text = f"key {error.args[0]!r}"
    else:
        text = str(error)
    text = re.sub(r" on <(Config|Partial)\[.*", "", " ".join(text.split()))
    if len(text) > 300:
        text = f"{text[:297]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _why_broken(name: str, error: BaseException) -> str:
    if isinstance(error, BrokenModuleError):
        return str(error)
    if isinstance(error, ConfigError):
        return f"importing {name} failed: {error}"
    where = location(error, within=_root_of(name))
    text = f"the module {name} exists, but importing it failed at {where}: "
    text += one_line(error)
    missing = getattr(error, "name", None)
    if isinstance(error, ModuleNotFoundError) and missing:
        if missing.partition(".")[0] in _TRAIN_EXTRA:
            return f"{text}. Install it: pip install 'roxxel[train]'."
        return f"{text} (a dependency of that file, not an experiment)."
    return text


def _root_of(name: str) -> str | None:
    """Directory of the top-level package of a module, or the file of the module."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations), None)
    return spec.origin


def file_of(function: Any) -> str | None:
    """The file that defines a function, or None."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if code is not None else None
