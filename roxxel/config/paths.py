"""Paths into a configuration graph: `model.layers[1]`, `data['train'].seed`."""

import ast
import re

from roxxel.errors import ConfigError

Key = str | int
_NAME = re.compile(r"[^\W\d]\w*")


class Name(str):
    """A path element after a dot (or at the start): a field."""

    __slots__ = ()


class Item(str):
    """A path element in brackets: the text key of a mapping."""

    __slots__ = ()


def parse(path: str) -> list[Key]:
    """The elements of a path: `Name`, `Item` or int.

    Raises:
      ConfigError: naming the malformed part.
    """
    if not path.strip():
        raise ConfigError("the path is empty; write PATH=VALUE.")
    elements: list[Key] = []
    position = 0
    while position < len(path):
        if path[position] == "[":
            end = _closing(path, position)
            elements.append(_bracket(path[position + 1 : end], path))
            position = end + 1
            continue
        if position:
            if path[position] != ".":
                raise ConfigError(f"{path!r} is no path: {path[position:]!r} is wrong.")
            position += 1
        position = _name(path, position, elements)
    return elements


def show(elements: list[Key]) -> str:
    """The canonical text of path elements."""
    text = ""
    for element in elements:
        if isinstance(element, int):
            text += f"[{element}]"
        elif isinstance(element, Item):
            text += f"[{str(element)!r}]"
        else:
            text += f".{element}" if text else f"{element}"
    return text or "the root"


def _name(path: str, position: int, elements: list[Key]) -> int:
    match = _NAME.match(path, position)
    if match is None:
        before, rest = path[:position], path[position:]
        if not rest or rest[0] in ".[":
            where = f"after {before!r}" if before else "at its start"
            raise ConfigError(f"the path {path!r} has an empty part {where}.")
        raise ConfigError(f"{rest.split('.')[0]!r} in {path!r} is no name of a field.")
    elements.append(Name(match.group()))
    return match.end()


def _closing(path: str, start: int) -> int:
    quote = ""
    for position in range(start + 1, len(path)):
        char = path[position]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "]":
            return position
    raise ConfigError(f"{path!r}: the bracket of {path[start:]!r} is not closed.")


def _bracket(text: str, path: str) -> Key:
    text = text.strip()
    if not text:
        raise ConfigError(f"{path!r}: the brackets [] are empty.")
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if text[0] in "'\"":
        try:
            key = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            key = None
        if not isinstance(key, str):
            raise ConfigError(f"{path!r}: [{text}] is neither an index nor a key.")
        return Item(key)
    return Item(text)
