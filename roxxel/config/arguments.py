"""From the words of a command line to a checked list of directives.

The words are parsed here rather than by absl or `fiddle.absl_flags`, because those
apply fiddlers, tags and values kind by kind instead of in the order typed, ignore
stray words, accept abbreviations, and know no types. The flags keep their names.
Nothing but the standard library is imported, so a wrong command line ends at once.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from roxxel.config import options, paths, suggest
from roxxel.errors import ConfigError

_TRUE = {"true", "1", "yes", "t", "y"}
_FALSE = {"false", "0", "no", "f", "n"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directive:
    """One change of the graph: `kind` is "set", "tag" or "fiddler".

    `target` is a path, a tag or a fiddler call, `text` the value as typed, `flag` the
    whole word as typed, for messages.
    """

    kind: str
    target: str
    text: str
    flag: str


@dataclasses.dataclass(kw_only=True)
class CommandLine:
    """A parsed command line; `notes` are remarks for stderr, one line each."""

    text: dict[str, str] = dataclasses.field(default_factory=dict)
    switches: dict[str, bool] = dataclasses.field(default_factory=dict)
    lists: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    directives: list[Directive] = dataclasses.field(default_factory=list)
    log_flags: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def get(self, name: str) -> str | None:
        """The value of a text flag, or None where it was not given."""
        return self.text.get(name)

    def has(self, name: str) -> bool:
        """Whether a flag was given, whatever its value."""
        return name in self.text or name in self.switches or name in self.lists

    def on(self, name: str) -> bool:
        """Whether a switch was given and true."""
        return self.switches.get(name, False)


def parse(argv: Sequence[str]) -> CommandLine:
    """The command line in `argv` (without the program's name).

    Raises:
      ConfigError: an unknown flag, a stray word, a missing or malformed value.
    """
    line = CommandLine()
    words = iter(argv)
    for word in words:
        _parse_word(word, words, line)
    return line


def _parse_word(word: str, rest: Iterator[str], line: CommandLine) -> None:
    if word == "--":
        left = " ".join(rest)
        raise ConfigError(f"'--' ends no flags here; remove it and: {left or '(end)'}")
    if word == "-h":
        word = "--help"
    if not word.startswith("--"):
        raise ConfigError(_stray(word))
    name, equals, value = word[2:].partition("=")
    for prefix, kind in options.DIRECTIVE_PREFIXES.items():
        if name.startswith(prefix):
            target = name.removeprefix(prefix)
            if kind == "set":
                target, equals, value = _split_at_equals(word[2 + len(prefix) :])
            line.directives.append(_directive(kind, target, equals, value, word))
            return
    option = options.OPTIONS.get(name)
    if option is None:
        raise ConfigError(_unknown(name, word))
    if option.kind == "switch":
        line.switches[name] = _switch(word, value) if equals else True
        return
    if option.kind == "log":
        line.log_flags.append(word)
        return
    if not equals:
        value = _next_word(name, option, rest)
        word = f"--{name}={value}"
    _store(name, option, value, word, line)


def _store(
    name: str, option: options.Option, value: str, word: str, line: CommandLine
) -> None:
    if name in options.PLAIN_FIELDS:
        line.directives.append(_directive("set", name, "=", value, word))
    elif option.kind == "set":
        target, equals, text = _split_at_equals(value)
        line.directives.append(_directive("set", target, equals, text, word))
    elif option.kind == "fiddler":
        directive = Directive(kind="fiddler", target=value, text="", flag=word)
        if not value.strip():
            raise ConfigError("--fiddler= is empty; give the name of a fiddler.")
        line.directives.append(directive)
    elif not value.strip():
        raise ConfigError(f"--{name}= is empty; expected {option.value}.")
    elif option.kind == "list":
        line.lists.setdefault(name, []).append(value)
    else:
        _store_text(name, value, line)


def _store_text(name: str, value: str, line: CommandLine) -> None:
    before = line.text.get(name)
    if before is not None and before != value:
        line.notes.append(f"--{name} is given twice; {value!r} replaces {before!r}.")
    line.text[name] = value


def _directive(kind: str, target: str, equals: str, value: str, word: str) -> Directive:
    if not equals:
        raise ConfigError(f"{word}: '=' and a value are missing, as in {word}=VALUE.")
    if kind == "tag" and not target.strip():
        raise ConfigError(f"{word}: the name of the tag is missing before '='.")
    if kind == "set":
        try:
            paths.parse(target)
        except ConfigError as err:
            raise ConfigError(f"{word}: {err}") from err
    return Directive(kind=kind, target=target, text=value, flag=word)


def _split_at_equals(text: str) -> tuple[str, str, str]:
    """Split at the first '=' outside of brackets: a dict key may hold one."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "=" and depth <= 0:
            return text[:position], "=", text[position + 1 :]
    return text.partition("=")


def _next_word(name: str, option: options.Option, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None or value.startswith("--"):
        raise ConfigError(
            f"--{name}: a value is missing, as in --{name}={option.value}."
        )
    return value


def _switch(word: str, value: str) -> bool:
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ConfigError(f"{word}: expected true or false, got {value!r}.")


def _stray(word: str) -> str:
    text = f"stray argument {word!r}: every argument is a flag."
    stripped = word.lstrip("-")
    name = stripped.partition("=")[0]
    if name in options.OPTIONS or name.startswith(tuple(options.DIRECTIVE_PREFIXES)):
        return f"{text} Did you mean --{stripped}?"
    if "=" in word:
        return f"{text} To set a value, write --fdl.{stripped}."
    return f"{text} To choose an experiment, write --fdl_config={word}."


def _unknown(name: str, word: str) -> str:
    known = [*options.OPTIONS, "fdl_tag"]
    text = f"unknown flag {word!r}."
    if name in ("fdl", "fdl_tag"):
        return f"{text} Write --{name}.PATH=VALUE."
    matches = suggest.close_matches(name, known)
    if matches:
        return f"{text} Did you mean --{' or --'.join(matches)}?"
    if "=" in word:
        return f"{text} To set a value of the graph, write --fdl.{word[2:]}."
    return (
        f"{text} Flags: {suggest.listing('--' + known_name for known_name in known)}."
    )
