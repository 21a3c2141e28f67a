"""From a command line to the graph of a run, with all directives applied in order."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from roxxel.config import (
    arguments,
    calls,
    discover,
    fiddlers,
    fields,
    graph,
    imports,
    load,
    locate,
    override,
    paths,
    sharing,
    suggest,
    symbols,
    tags,
    wiring,
)
from roxxel.errors import ConfigError


@dataclasses.dataclass
class Experiment:
    """A resolved experiment.

    `name` is its short name, `source` the dotted function that made the graph.
    """

    name: str
    source: str
    config: fdl.Buildable
    module: str | None = None
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def target(self) -> Callable[..., Any]:
        """The function or class that the root of the graph builds."""
        return fdl.get_callable(self.config)


def experiment(line: arguments.CommandLine) -> Experiment:
    """The experiment that a command line asks for.

    Raises:
      ConfigError: one line saying what is wrong with which flag.
    """
    file = line.get("fdl_config_file")
    if file is not None:
        found = _from_file(file, line)
    else:
        found = from_name(str(line.get("fdl_config")))
    apply(found, line.directives)
    wiring.complete(found.config)
    _check(found)
    return found


def from_name(text: str) -> Experiment:
    """The experiment of a name or a call, before any directive."""
    flag = f"--fdl_config={text}"
    try:
        call = calls.parse(text)
    except ConfigError as err:
        raise ConfigError(f"--fdl_config: {err}{_meant(text)}") from err
    located = locate.experiment(call.name)
    config = _made(located, call, flag)
    module = inspect.unwrap(located.function).__module__
    notes = [] if "." in call.name else discover.shadowed(call.name, located.function)
    return Experiment(located.name, located.dotted, config, module, notes)


def _meant(text: str) -> str:
    """A name close to what is no name: `ssm-tiny`, `'ssm_tiny'`, `ssm_tiny.py`."""
    word = text.strip("'\" ").removesuffix(".py").rpartition("/")[2].partition("(")[0]
    close = suggest.close_matches(word.replace("-", "_"), discover.names())
    return f" Did you mean {' or '.join(close)}?" if close else ""


def apply(found: Experiment, directives: list[arguments.Directive]) -> None:
    """Apply directives in their order; remarks go to `found.notes`."""
    seen = _Seen()
    for directive in directives:
        if directive.kind == "fiddler":
            found.config = fiddlers.apply(
                found.config,
                directive.target,
                flag=directive.flag,
                module=found.module,
            )
            continue
        setter = override.set_value if directive.kind == "set" else tags.set_tag
        slots = setter(
            found.config, directive.target, directive.text, flag=directive.flag
        )
        for slot in slots if isinstance(slots, list) else [slots]:
            found.notes += seen.notes(slot, directive)
            found.notes += _still_shared(found.config, slot.value, directive)


def _still_shared(
    root: fdl.Buildable, replaced: Any, directive: arguments.Directive
) -> list[str]:
    """Who still uses a node that a directive has replaced in one place."""
    if not isinstance(replaced, fdl.Buildable):
        return []
    users = sharing.users(root, replaced)
    if not users:
        return []
    return [
        f"{directive.flag} replaces a shared node in this place only; "
        f"{suggest.listing(users)} still holds it. Setting a field of the node moves "
        "all."
    ]


def _check(found: Experiment) -> None:
    try:
        fields.check_names(found.config)
    except ConfigError as err:
        raise ConfigError(f"{found.source or found.name}: {err}") from err


class _Seen:
    """Which directive set which field, to tell when a later one replaces it."""

    def __init__(self):
        self._by_place: dict[tuple[int, Any], arguments.Directive] = {}
        self._by_path: dict[str, arguments.Directive] = {}
        self._owners: list[Any] = []  # keeps ids from being used again

    def notes(self, slot: graph.Slot, directive: arguments.Directive) -> list[str]:
        before = self._by_place.get((id(slot.owner), slot.key))
        path = ""
        if directive.kind == "set":
            path = paths.show(paths.parse(directive.target))
            before = before or self._by_path.get(path)
        lost = [] if before is None else [before]
        lost += [
            old
            for known, old in self._by_path.items()
            if path and known.startswith((f"{path}.", f"{path}["))
        ]
        self._by_place[id(slot.owner), slot.key] = directive
        self._by_path = {
            known: old for known, old in self._by_path.items() if old not in lost
        }
        if path:
            self._by_path[path] = directive
        self._owners.append(slot.owner)
        return [f"{directive.flag} replaces {old.flag}." for old in lost]


def _from_file(file: str, line: arguments.CommandLine) -> Experiment:
    if line.get("fdl_config") is not None:
        raise ConfigError(
            f"--fdl_config={line.get('fdl_config')} and --fdl_config_file={file} "
            "exclude each other; give one of them."
        )
    loaded = load.load_file(
        file,
        trusted=line.lists.get("trust_module", []),
        trust_all=line.on("trust_config"),
    )
    return Experiment(loaded.name, loaded.source, loaded.config)


def _made(located: locate.Located, call: calls.Call, flag: str) -> fdl.Buildable:
    function = getattr(located.function, "as_buildable", located.function)
    values = _bound(function, call, flag)
    result = _called(function, values, flag)
    if isinstance(result, fdl.Buildable):
        return result
    got = suggest.shown(result)
    raise ConfigError(
        f"{flag}: {located.dotted} returned {got}; expected a fdl.Config. "
        "An experiment is a function that returns one."
    )


def _bound(function: Callable[..., Any], call: calls.Call, flag: str) -> dict:
    try:
        values = symbols.bind(function, call)
    except ConfigError as err:
        raise ConfigError(f"--fdl_config: {err}") from err
    missing = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in values
    ]
    if missing:
        example = ", ".join(f"{name}=..." for name in missing)
        raise ConfigError(
            f"{flag}: {call.name} needs {', '.join(map(repr, missing))}; "
            f"write --fdl_config='{call.name}({example})'."
        )
    return values


def _called(function: Callable[..., Any], values: dict, flag: str) -> Any:
    try:
        return function(**values)
    except ConfigError as err:
        raise ConfigError(f"{flag}: {err}") from err
    except imports.FAILURES as err:
        where = imports.location(err, within=imports.file_of(function))
        message = f"{flag}: failed at {where}: {imports.one_line(err)}"
        raise ConfigError(message) from err
