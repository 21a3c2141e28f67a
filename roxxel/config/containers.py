"""Text to tuples, lists, sets and dicts, with or without brackets.

`0.9,0.99`, `(0.9, 0.99)` and `[0.9,0.99]` are the same; `{a: 1}`, `{'a': 1}` and `a=1`
too. Elements need no quotes unless they hold a comma.
"""

import collections.abc
import typing
from collections.abc import Callable
from typing import Any

from roxxel.config import hints, scalars, suggest
from roxxel.config.scalars import NOTHING, MismatchError

Parser = Callable[[str, Any, Any], Any]

_OPEN = {"(": ")", "[": "]", "{": "}"}
_SEQUENCES = (
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)


def is_container(hint: Any) -> bool:
    """Whether a hint is a tuple, list, set, dict or an abstract kind of them."""
    kind = _kind(hint)
    if kind is None:
        return False
    return issubclass(kind, (tuple, list, set, frozenset, dict)) or kind in (
        *_SEQUENCES,
        collections.abc.Mapping,
        collections.abc.MutableMapping,
        collections.abc.MutableSequence,
        collections.abc.Set,
    )


def parse(text: str, hint: Any, current: Any, parse_element: Parser) -> Any:
    """The container that `text` means; elements are parsed by `parse_element`."""
    kind = _kind(hint)
    assert kind is not None
    if issubclass(kind, collections.abc.Mapping):
        return _parse_mapping(text, hint, current, parse_element)
    words = split(_without_brackets(text, hint))
    elements = _element_hints(hint, current, len(words))
    for word, element in zip(words, elements, strict=True):
        if is_container(element) and word[:1] not in _OPEN and not _is_value(word):
            raise MismatchError(hints.show(hint), f"Put brackets around {word!r}.")
    held = list(current) if isinstance(current, (tuple, list)) else []
    values = [
        parse_element(word, element, held[index] if index < len(held) else NOTHING)
        for index, (word, element) in enumerate(zip(words, elements, strict=True))
    ]
    return _finish(kind, values, current)


def _is_value(word: str) -> bool:
    """Whether a word says something else than the elements of a container."""
    return scalars.is_none(word) or word.endswith(")")


def element_hint(hint: Any, key: Any) -> Any:
    """The hint of one element of a container's hint."""
    hint = next((m for m in hints.members(hint) if is_container(m)), hint)
    args = typing.get_args(hint)
    kind = _kind(hint)
    if kind is None:
        return hints.UNKNOWN
    if typing.is_typeddict(hint) or hasattr(kind, "_fields"):
        return hints.strip(typing.get_type_hints(hint).get(key, hints.UNKNOWN))
    if not args:
        return hints.UNKNOWN
    if issubclass(kind, collections.abc.Mapping):
        return hints.strip(args[-1])
    if issubclass(kind, tuple) and args[-1] is not Ellipsis:
        in_range = isinstance(key, int) and -len(args) <= key < len(args)
        return hints.strip(args[key]) if in_range else hints.UNKNOWN
    return hints.strip(args[0])


def split(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside of quotes and brackets; a last empty part is cut."""
    parts, start, depth, quote = [], 0, 0, ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[position - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    if quote or depth:
        raise MismatchError("closed quotes and brackets")
    parts.append(text[start:].strip())
    return parts[:-1] if parts[-1] == "" else parts


def _kind(hint: Any) -> type | None:
    hint = hints.strip(hint)
    origin = typing.get_origin(hint) or hint
    if typing.is_typeddict(hint):
        return dict
    return origin if isinstance(origin, type) else None


def _without_brackets(text: str, hint: Any) -> str:
    text = text.strip()
    if text and _OPEN.get(text[0]) == text[-1] and _encloses(text):
        return text[1:-1].strip()
    if not text:
        raise MismatchError(f"{hints.show(hint)}", "Write () for an empty one.")
    return text


def _encloses(text: str) -> bool:
    """Whether the first bracket closes at the last character only."""
    depth, quote = 0, ""
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0 and position < len(text) - 1:
                return False
    return True


def _element_hints(hint: Any, current: Any, count: int) -> list[Any]:
    args = typing.get_args(hint)
    kind = _kind(hint)
    is_fixed = kind is not None and issubclass(kind, tuple) and args
    if is_fixed and args[-1] is not Ellipsis and args != ((),):
        if count != len(args):
            raise MismatchError(f"{hints.show(hint)} ({len(args)} values)")
        return list(args)
    if args:
        return [element_hint(hint, 0)] * count
    if kind is not None and hasattr(kind, "_fields"):
        if count != len(kind._fields):
            raise MismatchError(f"{kind.__name__} ({len(kind._fields)} values)")
        return [element_hint(hint, field) for field in kind._fields]
    return [_held_type(current)] * count


def _held_type(current: Any) -> Any:
    """The one type of all elements held now, or unknown."""
    if not isinstance(current, (tuple, list, set, frozenset)):
        return hints.UNKNOWN
    kinds = {type(element) for element in current}
    plain = kinds <= {bool, int, float, str}
    return kinds.pop() if len(kinds) == 1 and plain else hints.UNKNOWN


def _finish(kind: type, values: list[Any], current: Any) -> Any:
    if hasattr(kind, "_fields"):
        return kind(*values)
    if kind in _SEQUENCES:
        kind = list if isinstance(current, list) else tuple
    if kind is collections.abc.MutableSequence:
        kind = list
    if kind is collections.abc.Set:
        kind = frozenset
    try:
        return kind(values)
    except TypeError as err:  # a set of what cannot be in one
        raise MismatchError(hints.show(kind), "It holds a sub-graph.") from err


def _parse_mapping(text: str, hint: Any, current: Any, parse_element: Parser) -> Any:
    args = typing.get_args(hint)
    held = current if isinstance(current, dict) else {}
    result = {}
    for part in split(_without_brackets(text, hint)):
        key_text, value_text = _split_pair(part, hint)
        key = (
            parse_element(key_text, args[0], NOTHING) if args else _plain_key(key_text)
        )
        if typing.is_typeddict(hint):
            _check_key(hint, key)
        element = element_hint(hint, key)
        result[key] = parse_element(value_text, element, held.get(key, NOTHING))
    return result


def _check_key(hint: Any, key: Any) -> None:
    known = typing.get_type_hints(hint)
    if key not in known:
        close = suggest.did_you_mean(str(key), known, what="keys").strip()
        raise MismatchError(hints.show(hint), f"There is no key {key!r}. {close}")


def _split_pair(part: str, hint: Any) -> tuple[str, str]:
    for separator in ":=":
        pieces = split(part, separator)
        if len(pieces) > 1:
            key = pieces[0]
            return key, part[part.index(separator, len(key)) + 1 :].strip()
    raise MismatchError(f"{hints.show(hint)}, such as {{key: value}}")


def _plain_key(text: str) -> Any:
    value = scalars.parse_literal(text)
    return value if isinstance(value, (int, str)) else text
