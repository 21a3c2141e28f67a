"""What one setting of another program is here, as a table that code and docs share."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from roxxel.errors import ConfigError

# Takes the whole configuration of the other program, defaults included.
Value = Callable[[Mapping[str, Any]], Any]

# What a `Value` gives where ours stays at its default.
OMIT = object()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting and where its meaning goes.

    Attributes:
      name: theirs.
      default: what it is where their file does not say.
      ours: path in the experiment that is made, or None: it has no place here.
      value: ours, from all of theirs; None takes it as it is.
      note: what differs, or why it is left out; for the docs and the report.
      must_be: values for which ours does the same; others are refused with `note`.
    """

    name: str
    default: Any
    ours: str | None = None
    value: Value | None = None
    note: str = ""
    must_be: tuple[Any, ...] | None = None


def setting(
    name: str,
    default: Any,
    ours: str | None = None,
    value: Value | None = None,
    note: str = "",
    must_be: tuple[Any, ...] | None = None,
) -> Setting:
    """A row of a table, in the order of its columns."""
    return Setting(
        name=name, default=default, ours=ours, value=value, note=note, must_be=must_be
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A program whose files are understood.

    Attributes:
      name: of the program.
      settings: all that are mapped or left out with a reason.
      remarks: what is not the same whatever the file says.
      read: text of a file to its settings.
    """

    name: str
    settings: tuple[Setting, ...]
    remarks: tuple[str, ...]
    read: Callable[[str, str], dict[str, Any]]

    def names(self) -> set[str]:
        """The settings that are known."""
        return {setting.name for setting in self.settings}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """What came of a file.

    Attributes:
      values: ours by path.
      left_out: lines about settings of the file that have no place here.
      unknown: names that the table does not hold.
    """

    values: dict[str, Any]
    left_out: list[str]
    unknown: list[str]


def translate(program: Program, theirs: Mapping[str, Any], *, devices: int) -> Imported:
    """Their settings as ours.

    Raises:
      ConfigError: a setting has a value that nothing here does the same for.
    """
    whole = {setting.name: setting.default for setting in program.settings}
    whole |= {**theirs, "devices": devices}
    values, left_out = {}, []
    for setting in program.settings:
        value = whole[setting.name]
        _check(program, setting, value)
        if setting.ours is not None:
            ours = setting.value(whole) if setting.value else value
            if ours is not OMIT:
                values[setting.ours] = ours
        elif setting.must_be is None and setting.name in theirs:
            left_out.append(f"{setting.name} = {value!r}: {setting.note}")
    unknown = sorted(set(theirs) - program.names())
    return Imported(values=values, left_out=left_out, unknown=unknown)


def _check(program: Program, setting: Setting, value: Any) -> None:
    _check_kind(program, setting, value)
    if setting.must_be is None or value in setting.must_be:
        return
    expected = " or ".join(map(repr, setting.must_be))
    raise ConfigError(
        f"{program.name}: {setting.name} is {value!r}; only {expected} has an equal "
        f"here. {setting.note}".rstrip()
    )


def _check_kind(program: Program, setting: Setting, value: Any) -> None:
    """Check that a value is of its default's kind, and sizes of the model positive."""
    default = setting.default
    if default is None or value == default:
        return
    kind: Any = type(default)
    if kind in (int, float):
        is_right = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        is_right = isinstance(value, kind)
    is_size = kind is int and (setting.ours or "").startswith(("model.", "stream.seq"))
    if not is_right or (is_size and (value < 1 or value != int(value))):
        expected = "a positive whole number" if is_size else kind.__name__
        raise ConfigError(
            f"{program.name}: {setting.name} is {value!r}, expected {expected}."
        )
