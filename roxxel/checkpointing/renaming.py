"""Rules by which arrays of a checkpoint get the names that a model has for them.

A rule maps a pattern to a pattern, or to None to leave the array out. `*` stands for
any text and is put where the other side has its `*`: `{"old.*": "new.*"}`. Names are
dotted paths within the model, such as `layers.0.mixer.in_proj.kernel`; the first rule
that fits a name is used.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from roxxel.errors import ConfigError

Rules = Mapping[str, str | None]


def check_rules(rules: Any) -> None:
    """Raises a ConfigError unless `rules` is None or maps patterns to patterns."""
    if rules is None:
        return
    if not isinstance(rules, Mapping):
        raise ConfigError(f"init_rules must be a dict of patterns, got {rules!r}.")
    for old, new in rules.items():
        if not isinstance(old, str) or not (new is None or isinstance(new, str)):
            raise ConfigError(
                f"init_rules: {old!r}: {new!r} must map a pattern to a pattern or None."
            )
        if new is not None and new.count("*") > old.count("*"):
            raise ConfigError(
                f"init_rules: {new!r} has more * than {old!r}, which is to fill them."
            )


def origins(stored: Collection[str], rules: Rules | None) -> dict[str, str]:
    """Names of the stored arrays by the names that they get; those left out are not in.

    Args:
      stored: names as a checkpoint has them, `model/layers/0/kernel`.
      rules: None renames nothing.

    Raises:
      ConfigError: a rule fits no name, or two arrays get the same name.
    """
    check_rules(rules)
    unused = dict.fromkeys(rules or {})
    by_new: dict[str, str] = {}
    for name in stored:
        head, path = name.partition("/")[0], dotted(name)
        new = _renamed(path, rules or {}, unused)
        if new is None:
            continue
        new = name if new == path else f"{head}/{new.replace('.', '/')}"
        if new in by_new:
            raise ConfigError(
                f"init_rules: {by_new[new]} and {name} both become {new}."
            )
        by_new[new] = name
    if unused:
        raise ConfigError(
            f"init_rules: {', '.join(map(repr, unused))} fits no array of the "
            f"checkpoint; it has {', '.join(map(dotted, [*stored][:20]))}."
        )
    return by_new


def dotted(name: str) -> str:
    """The path within its object: `layers.0.kernel` of `model/layers/0/kernel`."""
    return name.partition("/")[2].replace("/", ".")


def fitting(names: Iterable[str], pattern: str) -> list[str]:
    """Those of `names` whose dotted path fits a pattern."""
    return [name for name in names if _match(pattern, dotted(name))]


def _match(pattern: str, path: str) -> re.Match[str] | None:
    return re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), path)


def _renamed(name: str, rules: Rules, unused: dict[str, None]) -> str | None:
    for old, new in rules.items():
        match = _match(old, name)
        if match is None:
            continue
        unused.pop(old, None)
        if new is None:
            return None
        for text in match.groups()[: new.count("*")]:
            new = new.replace("*", text, 1)
        return new
    return name
