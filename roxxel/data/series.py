"""Which files beside each other are one data set, by their names alone."""

import glob
import os
import re
from collections.abc import Sequence

_WILD = re.compile(r"(\*+|\?|\[!?\]?[^\]]*\])")
_NUMBER = re.compile(r"(?P<series>.*?)\d+(?P<of>-of-\d+)?")
_SHOWN = 6


def of_numbers(pattern: str, files: Sequence[str]) -> list[str]:
    """Those of the `files` of a pattern that have only digits for its wildcards."""
    pieces = [_digits(piece) for piece in _WILD.split(_plain(pattern))]
    numbered = re.compile("".join(pieces))
    return [path for path in files if numbered.fullmatch(_plain(path))]


def split(files: Sequence[str]) -> dict[str, list[str]]:
    """The files of every series, by the pattern that names it.

    A series is what differs in its last number only; `-of-` and the count of shards may
    follow that. Files without a number are each by themselves.
    """
    found: dict[str, list[str]] = {}
    for path in files:
        folder, name = os.path.split(path)
        stem, suffix = os.path.splitext(name)
        match = _NUMBER.fullmatch(stem)
        if match:
            wild = "*-of-*" if match["of"] else "*"
            name = f"{glob.escape(match['series'])}{wild}{glob.escape(suffix)}"
        found.setdefault(os.path.join(folder, name), []).append(path)
    return found


def are_apart(groups: dict[str, list[str]]) -> bool:
    """Whether they are several data sets: not a single series, nor all unnumbered."""
    return len(groups) > 1 and any([name] != files for name, files in groups.items())


def message(location: str, groups: dict[str, list[str]]) -> str:
    """One line that refuses to read several data sets as one."""
    names = ", ".join(repr(name) for name in list(groups)[:_SHOWN])
    more = len(groups) - _SHOWN
    others = f" and {more} more" if more > 0 else ""
    return (
        f"{location!r} names {len(groups)} data sets: {names}{others}. Name one of"
        " them, or pass a list of files to read them as one."
    )


def _digits(piece: str) -> str:
    if piece in ("[*]", "[?]", "[[]"):  # of glob.escape: the character itself
        return re.escape(piece[1])
    if not _WILD.fullmatch(piece):
        return re.escape(piece)
    return r"\d+" if piece.startswith("*") else r"\d"


def _plain(path: str) -> str:
    return re.sub("/+", "/", path)
