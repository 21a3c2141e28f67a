"""The close matches and short lists that end an error message."""

import difflib
from collections.abc import Iterable

MAX_LISTED = 8  # names in one message
CLOSENESS = 0.6  # difflib ratio from which a name counts as a likely typo


def close_matches(name: str, options: Iterable[str], *, limit: int = 3) -> list[str]:
    """Options that `name` may have been meant to be, best first."""
    by_lower = {option.lower(): option for option in options}
    found = difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=CLOSENESS)
    return [by_lower[lower] for lower in found]


def did_you_mean(name: str, options: Iterable[str], *, what: str = "available") -> str:
    """A sentence with close matches, or else the first options; may be empty."""
    options = sorted(set(options))
    matches = close_matches(name, options)
    if matches:
        return f" Did you mean {' or '.join(matches)}?"
    if not options:
        return ""
    return f" {what[0].upper()}{what[1:]}: {listing(options)}."


def listing(options: Iterable[str]) -> str:
    """At most `MAX_LISTED` options, comma separated, with the number left out."""
    options = list(options)
    text = ", ".join(options[:MAX_LISTED])
    left_out = len(options) - MAX_LISTED
    return f"{text} and {left_out} more" if left_out > 0 else text


def shown(value: object, *, limit: int = 60) -> str:
    """The repr of a value, cut so that it fits into one line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
