"""Who may import whom (docs/architecture.md); read from the sources themselves."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def imports_of(path: pathlib.Path, *, top_level_only: bool = False) -> set[str]:
    """Dotted names of the modules that a file imports, type checking aside."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif top_level_only and isinstance(node, ast.FunctionDef | ast.Lambda):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def files(folder: str) -> list[pathlib.Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports_any(path: pathlib.Path, *packages: str, **options) -> set[str]:
    return {
        name
        for name in imports_of(path, **options)
        if any(name == p or name.startswith(p + ".") for p in packages)
    }


def relative(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", files("roxxel"), ids=relative)
def test_library_does_not_know_fiddle_flags_or_experiments(path):
    assert not imports_any(path, "experiments", "configs", "launch", "tests")
    front = relative(path) == "roxxel/main.py" or relative(path).startswith(
        "roxxel/config/"
    )
    if not front:
        assert not imports_any(path, "fiddle", "absl.flags", "absl.app")
        assert not imports_any(path, "roxxel.main", "roxxel.config") or relative(
            path
        ) == ("roxxel/__init__.py")


@pytest.mark.parametrize("path", files("roxxel/data"), ids=relative)
def test_data_below_the_stream_does_not_know_jax(path):
    if path.name != "stream.py" and not path.name.startswith("placement"):
        assert not imports_any(path, "jax", "flax", "orbax", "optax")


# name of a module -> packages it must not import: nothing flows back up the line
FORBIDDEN = {
    "roxxel/models": ("roxxel.data", "roxxel.train", "roxxel.dataset", "roxxel.optim"),
    "roxxel/data": (
        "roxxel.train",
        "roxxel.models",
        "roxxel.builders",
        "roxxel.logger",
    ),
    "roxxel/sinks": ("roxxel.data", "roxxel.train", "roxxel.models", "jax"),
}


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_nothing_points_back_up(folder):
    for path in files(folder):
        assert not imports_any(path, *FORBIDDEN[folder]), relative(path)


def test_optimizer_and_checkpoints_do_not_know_the_trainer():
    for name in ("optim", "checkpoint", "sharding", "distributed", "generate"):
        assert not imports_any(ROOT / f"roxxel/{name}.py", "roxxel.train"), name


def test_launch_imports_only_the_standard_library():
    for path in files("launch"):
        foreign = {
            name.split(".")[0]
            for name in imports_of(path)
            if name.split(".")[0] not in sys.stdlib_module_names
        }
        assert foreign <= {"launch"}, relative(path)


def test_the_wheel_holds_roxxel_only():
    top = {p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()}
    assert {"roxxel", "experiments", "configs"} <= top
    assert 'include = ["roxxel", "roxxel.*"]' in (ROOT / "pyproject.toml").read_text()


LIGHT_IMPORT = """
import sys
import roxxel
assert "jax" not in sys.modules and "numpy" not in sys.modules, "import roxxel"
roxxel.Roxxel, roxxel.Logger, roxxel.RoxxelStream
import roxxel.rox, roxxel.builders
assert "jax" not in sys.modules, "data and logging"
import roxxel.main
import roxxel.checkpoint, roxxel.optim, roxxel.train.trainer, roxxel.models.ssm
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""


def test_imports_are_light_and_touch_no_backend():
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_IMPORT], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


WITHOUT_EXTRAS = """
import importlib, importlib.abc, sys


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ("jax", "flax", "optax", "orbax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as err:
        print(err)
"""


def test_a_missing_extra_is_named_by_whatever_needs_it():
    names = ["optim", "generate", "sharding", "models.ssm", "train.trainer"]
    names += ["checkpoint"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *(f"roxxel.{name}" for name in names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(names)
    for line in lines:
        assert "pip install 'roxxel[" in line
