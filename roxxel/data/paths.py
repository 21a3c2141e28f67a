"""Where the shards of a data set lie: one pattern both written to and read back."""

import dataclasses
import glob
import os
import re
from collections.abc import Sequence

from roxxel.data import series
from roxxel.errors import ConfigError

_DIGITS = re.compile(r"(\d+)")
_INDEX_DIGITS = 4


class MissingShardsError(ConfigError, FileNotFoundError):
    """No shard is where the data set should be."""

    def __str__(self) -> str:
        return str(self.args[0])


class ShardsExistError(ConfigError, FileExistsError):
    """Shards are there already and `mode="new"` leaves them alone."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """How the shards of one data set are named: prefix, number, suffix.

    `single` is the one file of a data set that is not numbered, else None.
    """

    directory: str
    prefix: str
    suffix: str
    digits: int
    single: str | None = None

    def path(self, number: int) -> str:
        """Path of shard `number`."""
        name = f"{self.prefix}{number:0{self.digits}d}{self.suffix}"
        return os.path.join(self.directory, name)

    def number(self, path: str) -> int | None:
        """Number of the shard at `path`, None when another writer named it."""
        pattern = re.escape(self.prefix) + r"(\d+)" + re.escape(self.suffix)
        match = re.fullmatch(pattern, os.path.basename(path))
        return int(match[1]) if match else None

    @property
    def journal(self) -> str:
        """Path of the list of renames that publishes several shards at once."""
        name = f".{self.prefix}{self.suffix}.swap"
        return os.path.join(self.directory, name)

    @property
    def lock(self) -> str:
        """Path of the file that the one writer of this data set holds a lock on."""
        name = f".{self.prefix}{self.suffix}.lock"
        return os.path.join(self.directory, name)


def natural_key(path: str) -> tuple[list, str]:
    """Sort key by which part2 comes before part10."""
    pieces = _DIGITS.split(path)
    return [int(p) if i % 2 else p for i, p in enumerate(pieces)], path


def find(location: str | Sequence[str]) -> list[str]:
    """Paths of the shards at `location`, in the order of the virtual sequence.

    A list is taken as it is; a pattern's matches and a folder's `*.rox` files are
    sorted by number; `name.rox` that does not exist stands for `name_<number>.rox`.

    `*` stands for the number of a shard: where files have only digits there, they are
    the data set. Else all that match are, if their names differ in their last number
    only, or none has one.

    Raises:
        ConfigError: The files are of several data sets; names them.
    """
    if not isinstance(location, str):
        return list(location)
    groups = _groups(location)
    if len(groups) > 1:
        raise ConfigError(series.message(location, groups))
    return groups.get(location, [])


def apart(location: str) -> list[str]:
    """Locations of the data sets at `location`: itself where it is but one."""
    groups = _groups(location)
    return list(groups) if len(groups) > 1 else [location]


def _groups(location: str) -> dict[str, list[str]]:
    """The shards of each data set at `location`; of a single one, by that name."""
    if os.path.isdir(location):
        groups = _groups(os.path.join(location, "*.rox"))
    elif is_pattern(location):
        groups = _groups_of_pattern(_escaped(location))
    else:
        return {location: _numbered(location)}
    return groups if len(groups) > 1 else {location: next(iter(groups.values()))}


def _groups_of_pattern(pattern: str) -> dict[str, list[str]]:
    files = sorted(glob.glob(pattern), key=natural_key)
    shards = series.of_numbers(pattern, files)
    if shards:
        return {pattern: shards}
    groups = series.split(files)
    return groups if series.are_apart(groups) else {pattern: files}


def _numbered(location: str) -> list[str]:
    """The one file, or the shards that `name.rox` stands for."""
    if os.path.exists(location):
        return [location]
    stem, suffix = os.path.splitext(location)
    numbered = re.compile(re.escape(f"{stem}_") + r"\d+" + re.escape(suffix))
    found = glob.glob(f"{glob.escape(stem)}_*{glob.escape(suffix)}")
    return sorted(filter(numbered.fullmatch, found), key=natural_key)


def is_pattern(location: str) -> bool:
    """Whether `location` has wildcards and names no existing file."""
    return glob.has_magic(os.path.basename(location)) and not os.path.exists(location)


def write_target(location: str | Sequence[str], *, numbered: bool) -> Target:
    """Names for the shards written to `location`.

    `*` stands for a number of at least four digits, a run of `?` for one of that many;
    without wildcards the data set is the one file, or `name_<number>.rox` when
    `numbered`.

    Raises:
        ConfigError: `location` is a list or folder, does not end in `.rox`, or has
            wildcards that do not stand for one number.
    """
    if not isinstance(location, str) or os.path.isdir(location):
        raise ConfigError(
            f"{location!r} names no place to write to; give one path such as"
            " 'data/wiki_*.rox'."
        )
    directory, name = os.path.split(location)
    if not name.endswith(".rox"):
        raise ConfigError(f"{location!r} must end in '.rox' to be written to.")
    if is_pattern(location):
        return _pattern_target(location, directory, name)
    stem = name.removesuffix(".rox")
    target = Target(
        directory=directory, prefix=f"{stem}_", suffix=".rox", digits=_INDEX_DIGITS
    )
    if numbered:
        return target
    return dataclasses.replace(target, single=location)


def _pattern_target(location: str, directory: str, name: str) -> Target:
    match = re.fullmatch(r"([^*?\[\]]*)(\*|\?+)([^*?\[\]]*)", name)
    is_wild = re.search(r"[*?]", directory) and not os.path.isdir(directory)
    if not match or is_wild:
        raise ConfigError(
            f"{location!r} cannot be written to: expected one '*' or one run of '?' in"
            " the file name, which stands for the number of the shard."
        )
    prefix, wild, suffix = match.groups()
    digits = _INDEX_DIGITS if wild == "*" else len(wild)
    return Target(directory=directory, prefix=prefix, suffix=suffix, digits=digits)


def _escaped(location: str) -> str:
    """The pattern with a folder that exists taken literally."""
    directory, name = os.path.split(location)
    if os.path.isdir(directory):
        return os.path.join(glob.escape(directory), name)
    return location
