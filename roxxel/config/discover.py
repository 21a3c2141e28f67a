"""Experiments of a package, found by reading its source rather than importing it.

Listing names must not cost the import of jax, nor fail because one file is broken.
"""

import ast
import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from roxxel.config import imports, registry
from roxxel.errors import ConfigError

DEFAULT_PACKAGE = "experiments"
ENTRY_POINT_GROUP = "roxxel.experiments"


@dataclasses.dataclass(frozen=True)
class Found:
    """An experiment seen in source: its name, module, function, first doc line."""

    name: str
    module: str
    function: str
    summary: str


def in_package(package: str) -> list[Found]:
    """The decorated functions in a package's files (not its subpackages), by name."""
    found = [
        experiment for path in _files(package) for experiment in _in_file(package, path)
    ]
    return sorted(found, key=lambda experiment: experiment.name)


def names(package: str = DEFAULT_PACKAGE) -> list[str]:
    """The short names known to the registry and to a package, without importing."""
    registered = [entry.name for entry in registry.entries()]
    advertised = [
        point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)
    ]
    found = [experiment.name for experiment in in_package(package)]
    return sorted({*registered, *advertised, *found})


def place(package: str = DEFAULT_PACKAGE) -> str | None:
    """The folder of a package, or None where it cannot be imported."""
    return next((str(folder) for folder in _folders(package)), None)


def load_by_name(name: str) -> registry.Entry | None:
    """The experiment called `name`: registered, in `experiments`, or advertised.

    Modules are imported only when their source defines the name. An installed
    package advertises one by an entry point of the group `roxxel.experiments`.
    """
    entry = registry.find(name)
    if entry is not None:
        return entry
    for found in in_package(DEFAULT_PACKAGE):
        if found.name == name:
            imports.load(found.module)
            return registry.find(name)
    return _from_entry_point(name)


def lazy_getattr(package: str) -> Callable[[str], Any]:
    """A module `__getattr__` that imports an experiment of the package on first use.

    A name that is also a file of the package stays that module.
    """

    def __getattr__(name: str) -> Any:
        for found in in_package(package):
            if found.function == name and not found.module.endswith(f".{name}"):
                return getattr(imports.load(found.module), found.function)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__


def of_module(module: ModuleType) -> list[registry.Entry]:
    """The registered experiments that a loaded module or package defines."""
    prefix = f"{module.__name__}."
    inside = hasattr(module, "__path__")
    return [
        entry
        for entry in registry.entries()
        if entry.module == module.__name__
        or (inside and entry.module.startswith(prefix))
    ]


def shadowed(name: str, function: Callable[..., Any]) -> list[str]:
    """Remarks on entry points called `name` that lead to another function."""
    module = getattr(function, "__module__", "")
    return [
        f"{name} is {module}.{name}; the experiment of that name of the package "
        f"{_package_of(point)} ({point.value}) is not used."
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)
        if point.value.partition(":")[0] != module
    ]


def _package_of(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"


def _from_entry_point(name: str) -> registry.Entry | None:
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            value = imports.symbol(point.value.replace(":", "."))
        except ConfigError as err:
            raise ConfigError(
                f"the entry point {name} = {point.value} of the package "
                f"{_package_of(point)} leads nowhere: {err}"
            ) from err
        entry = registry.find(name)
        return entry or registry.Entry(name, value)
    return None


def _files(package: str) -> Iterator[Path]:
    for folder in _folders(package):
        for path in sorted(folder.glob("*.py")):
            if not path.name.startswith("_"):
                yield path


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    folders = spec.submodule_search_locations if spec is not None else None
    return [Path(folder) for folder in folders or []]


def _in_file(package: str, path: Path) -> list[Found]:
    try:
        stat = path.stat()
    except OSError:
        return []
    return _parsed(package, path, stat.st_mtime_ns)


@functools.lru_cache(maxsize=512)
def _parsed(package: str, path: Path, mtime_ns: int) -> list[Found]:
    del mtime_ns  # part of the cache's key
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source) if "experiment" in source else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return []  # a broken file is reported when it is asked for
    module = f"{package}.{path.stem}"
    return [
        Found(name, module, node.name, _summary(node))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for name in _decorated_names(node)
    ]


def _decorated_names(node: ast.FunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = call.func if call else decorator
        if ast.unparse(target).rpartition(".")[2] == "experiment":
            yield (_literal_name(call) if call else None) or node.name


def _literal_name(call: ast.Call) -> str | None:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    for value in [*call.args, *given]:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def _summary(node: ast.FunctionDef) -> str:
    lines = (ast.get_docstring(node) or "").splitlines()
    return lines[0] if lines else ""
