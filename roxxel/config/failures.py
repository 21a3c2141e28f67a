"""Errors of a run as an exit code and the few lines that a person needs."""

import re
from collections.abc import Callable, Sequence

from roxxel import errors
from roxxel.config import imports

MAX_LINES = 18  # of detail before the line that names the error
MAX_LENGTH = 1000  # of the line that names the error
PREFIX = "roxxel: error:"

# Raised while objects are built, these mean that the configuration is wrong.
BUILD_ERRORS = (
    *(ValueError, TypeError, ModuleNotFoundError),
    *(FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError),
)
_FIDDLE_PATH = re.compile(
    r"failed to construct or call (?P<target>\S+) at <root>(?P<path>\S*)"
)


def exit_code(error: BaseException) -> int | None:
    """The exit code that an error asks for, or None where it is unexpected."""
    code = getattr(error, "exit_code", None)
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def printable(message: str, argv: Sequence[str]) -> str:
    """The message with control characters of the command line's values escaped.

    A line break in a value would otherwise split the line that says what is wrong.
    """
    for word in argv:
        for part in (word, word.partition("=")[2].strip()):
            if part and not part.isprintable():
                escaped = "".join(
                    c if c.isprintable() else ascii(c)[1:-1] for c in part
                )
                message = message.replace(part, escaped)
    return message


def lines(message: str, code: int = errors.EXIT_CONFIG) -> list[str]:
    """The message as lines for stderr: details first, last the line that matters."""
    given = [line.rstrip() for line in message.strip().splitlines() if line.strip()]
    first, details = (given or ["unknown error"])[0], given[1:]
    if len(details) > MAX_LINES:
        left = len(details) - MAX_LINES + 1
        details = [*details[: MAX_LINES - 1], f"... and {left} more lines"]
    if len(first) > MAX_LENGTH:  # the whole of it above
        details = [*details, first]
        first = f"{first[: MAX_LENGTH - 22]}... (the whole is above)"
    if code != errors.EXIT_CONFIG:
        first = f"{first} (exit code {code})"
    return [*details, f"{PREFIX} {first}"]


def from_build(
    error: BaseException, shorten: Callable[[str], str] = str
) -> errors.ConfigError | None:
    """One line for an error raised while a graph was built, naming the node's path.

    `shorten` gives the path by which users know the node at a path.

    None where the error says nothing about the configuration, or has an exit code
    other than that of a wrong configuration.
    """
    code = exit_code(error)
    if code is not None and code != errors.EXIT_CONFIG:
        return None
    if code is None and not isinstance(error, BUILD_ERRORS):
        return None
    base = getattr(error, "proxy_base_exception", error)
    where = _node(error, shorten)
    if code is not None:
        return errors.ConfigError(f"{where}{str(base).strip()}")
    text = f"{where}{imports.one_line(base)}"
    if not isinstance(base, OSError):
        text = f"{text} (at {imports.location(error)}; --traceback shows all)"
    return errors.ConfigError(text)


def _node(error: BaseException, shorten: Callable[[str], str]) -> str:
    """`path (target): ` of the node that fiddle was building."""
    match = _FIDDLE_PATH.search(str(getattr(error, "proxy_message", "")))
    if match is None:
        return ""
    path = shorten(match["path"].lstrip("."))
    return f"{path} ({match['target']}): " if path else f"{match['target']}: "
