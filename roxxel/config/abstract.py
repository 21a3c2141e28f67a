"""The values of a graph's nodes without a device and without building any data.

Nodes are built one by one. A data set that is already built is found; where it is not,
what depends on its content is `Unknown`, and a stream of it is an `UnbuiltStream` that
knows its sizes.
"""

import dataclasses
import inspect
from typing import Any

import fiddle as fdl
from fiddle import daglish

from roxxel.config import failures, fields, imports, sharing, text
from roxxel.config.unbuilt import UnbuiltStream
from roxxel.data.reading_only import NotBuiltError, reading_only
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError

# Fields of a trainer that say nothing without another one.
_NEEDED_BY = {"evaluation": ("best", "early_stopping")}


@dataclasses.dataclass(frozen=True)
class Unknown:
    """In place of a value that could not be made; `reason` is a sentence.

    `arguments` are what it would have been made from.
    """

    reason: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Values:
    """What the fields of a graph's root are built to.

    Attributes:
      root: what the root is built to, or `Unknown`.
      fields: by name; what is not set is left out.
      datasets: every data set that was found, by path.
      unbuilt: the paths of data sets that have to be built first.
      problems: what is wrong with the configuration, a line each.
    """

    root: Any = None
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    datasets: dict[str, Roxxel] = dataclasses.field(default_factory=dict)
    unbuilt: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)

    def get(self, name: str) -> Any:
        """A field's value; None where it is unknown or not set."""
        value = self.fields.get(name)
        return None if isinstance(value, Unknown) else value


def evaluate(root: fdl.Buildable, *, assumed_steps: int | None = None) -> Values:
    """The values of a graph's nodes; the root itself is built where all are known.

    `assumed_steps` is taken for a field `total_steps` that is not known otherwise.
    """
    maker = _Maker(root, assumed_steps)
    with reading_only():
        maker.values.root = daglish.MemoizedTraversal.run(maker.visit, root)
    return maker.values


def check_before_building(root: fdl.Buildable) -> None:
    """Find mistakes before data sets are built; does nothing where all are there.

    Raises:
      ConfigError: the first of them.
    """
    datasets = [node for node in _nodes(root) if _makes_data(node)]
    with reading_only():
        if all(_is_there(node) for node in datasets):
            return
    values = evaluate(root)
    if values.problems:
        raise ConfigError(values.problems[0])


class _Maker:
    """Makes the values of nodes, children first."""

    def __init__(self, root: fdl.Buildable, assumed_steps: int | None):
        self.root, self.assumed_steps = root, assumed_steps
        self.steps_node = root.__arguments__.get("total_steps")
        self.values = Values()

    def visit(self, value: Any, state: daglish.State) -> Any:
        if not state.is_traversable(value):
            return value
        made = state.map_children(value)
        if not isinstance(value, fdl.Buildable):
            return made
        if value is self.root:
            self.values.fields = {
                str(name): child for name, child in made.__arguments__.items()
            }
            _leave_out_unknown(made)
        path = daglish.path_str(state.current_path).lstrip(".")
        value_made = self._make(made, sharing.canonical(self.root, path))
        is_assumed = value is self.steps_node and isinstance(value_made, Unknown)
        return self.assumed_steps if is_assumed and self.assumed_steps else value_made

    def _make(self, node: fdl.Buildable, path: str) -> Any:
        missing = [leaf for leaf in _leaves(node) if isinstance(leaf, Unknown)]
        target = fdl.get_callable(node)
        try:
            if missing and hasattr(target, "steps_for"):
                return UnbuiltStream.like(target, node.__arguments__, missing[0].reason)
            if missing:
                return Unknown(missing[0].reason, _arguments(node))
            value = fdl.build(node)
        except imports.FAILURES as err:
            return self._failed(err, path, text.show_target(node))
        if isinstance(value, Roxxel):
            return self._found(value, path)
        return value

    def _found(self, dataset: Roxxel, path: str) -> Any:
        try:
            self.values.datasets[path] = dataset.open()
        except Exception as err:
            return self._failed(err, path, "data set")
        return dataset

    def _failed(self, error: BaseException, path: str, target: str) -> Unknown:
        base = getattr(error, "proxy_base_exception", error)
        if isinstance(base, NotBuiltError):
            if not base.is_used:
                self.values.unbuilt.append(path)
            return Unknown(f"{path}: {base}")
        problem = failures.from_build(error, lambda below: path)
        problem_text = str(problem) if problem else imports.one_line(base)
        if not hasattr(error, "proxy_message"):  # not from within fiddle
            problem_text = f"{path} ({target}): {problem_text}"
        self.values.problems.append(problem_text)
        return Unknown(problem_text)


def _leave_out_unknown(root: fdl.Buildable) -> None:
    """Take fields that are not known from the root where it can do without them."""
    for name, value in list(root.__arguments__.items()):
        if not _holds_unknown(value) or not isinstance(name, str):
            continue
        if fields.default_of(root, name) is fields.UNSET:
            continue
        for each in (name, *_NEEDED_BY.get(name, ())):
            if each in root.__arguments__:
                delattr(root, each)


def _holds_unknown(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else [value]
    return any(isinstance(each, Unknown) for each in values)


def _arguments(node: fdl.Buildable) -> dict[str, Any]:
    """Fields with their defaults."""
    return {
        name: node.__arguments__.get(name, fields.default_of(node, name))
        for name in fields.names(node)
    }


def _leaves(node: fdl.Buildable) -> list[Any]:
    return [value for value, _ in daglish.iterate(node, memoized=True)]


def _nodes(root: fdl.Buildable) -> list[fdl.Buildable]:
    return [
        value
        for value, _ in daglish.iterate(root, memoized=True)
        if isinstance(value, fdl.Buildable)
    ]


def _makes_data(node: fdl.Buildable) -> bool:
    """Whether a node's annotation says that it makes a `Roxxel`."""
    target = fdl.get_callable(node)
    if not inspect.isfunction(target):
        return False
    returns = inspect.unwrap(target).__annotations__.get("return")
    return returns is Roxxel or str(returns).rpartition(".")[2] == "Roxxel"


def _is_there(node: fdl.Buildable) -> bool:
    try:
        fdl.build(node)
    except imports.FAILURES as err:
        base = getattr(err, "proxy_base_exception", err)
        return not isinstance(base, NotBuiltError)
    return True
