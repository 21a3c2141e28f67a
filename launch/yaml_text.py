"""Plain values as YAML that is easy to read; what is not plainly a word is quoted."""

import json
import re
from typing import Any

_WORD = re.compile(r"[A-Za-z./][A-Za-z0-9_./-]*")
_NOT_TEXT = (
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "null",
    "y",
    "n",
    ".inf",
    ".nan",
)


def dump(value: Any) -> str:
    """Mappings with text keys, lists, text, numbers, bools and None, as block YAML."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(key, item)]
    if isinstance(value, list) and value:
        return [line for item in value for line in _item(item)]
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    lines = _lines(value)
    if _is_block(value):
        return [f"{_scalar(key)}:", *(f"  {line}" for line in lines)]
    return [f"{_scalar(key)}: {lines[0]}"]


def _item(value: Any) -> list[str]:
    first, *others = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in others)]


def _is_block(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_word = _WORD.fullmatch(value) and value.lower() not in _NOT_TEXT
        return value if is_word else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)  # numbers, bools, None and empty collections
