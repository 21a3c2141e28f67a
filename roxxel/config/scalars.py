"""Text to one plain value: bool, int, float, str, enum, path.

Each parser returns the value or raises `MismatchError` saying what was expected.
"""

import ast
import enum
import inspect
import operator
import os
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path, PurePath
from typing import Any

from roxxel.config import suggest

MAX_INT_BITS = 4096  # of a computed integer such as 2**20

NOTHING = inspect.Parameter.empty  # in place of the current value of an unset field

_TRUE = {"true", "yes", "1", "on"}
_FALSE = {"false", "no", "0", "off"}
_NONE = {"None", "none", "null"}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


class MismatchError(ValueError):
    """A text is no value of the type; `expected` names the type, `hint` may help."""

    def __init__(self, expected: str, hint: str = ""):
        super().__init__(f"expected {expected}")
        self.expected = expected
        self.hint = hint

    @property
    def advice(self) -> str:
        """The hint as a sentence to append, or nothing."""
        first = self.hint.partition(" ")[0]  # a dotted name stays as it is
        start = self.hint[:1] if "." in first else self.hint[:1].upper()
        return f" {start}{self.hint[1:]}" if self.hint else ""


def unquote(text: str) -> str:
    """Text without the one pair of quotes around the whole of it, if there is one."""
    if len(text) < 2 or text[0] not in "'\"" or text[-1] != text[0]:
        return text
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return value if isinstance(value, str) else text


def is_none(text: str, *, strict: bool = False) -> bool:
    """Whether text means None; `strict` takes only the spelling `None`."""
    return text.strip() == "None" if strict else text.strip() in _NONE


def parse_bool(text: str) -> bool:
    """true/false, yes/no, on/off, 1/0 in any case."""
    word = unquote(text.strip()).lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise MismatchError("bool (true or false)")


def parse_int(text: str) -> int:
    """A whole number: 1000, 1_000, 1e3, 0x10, 2**20; 10.5 is refused."""
    word = unquote(text.strip())
    for base in (10, 0):
        try:
            return int(word, base)
        except ValueError:
            continue
    try:
        number = Decimal(word.replace("_", ""))
        if number.is_finite() and number == number.to_integral_value():
            if number.adjusted() * 4 > MAX_INT_BITS:
                raise MismatchError("int of a sensible size")
            return int(number)
        raise MismatchError("int", "It is not a whole number.")
    except InvalidOperation:
        value = _arithmetic(word)
    if value is None:
        raise MismatchError("int")
    if value != int(value):
        raise MismatchError("int", "It is not a whole number.")
    return int(value)


def parse_float(text: str) -> float:
    """A number: 3, 1e-3, .5, 1_000, inf, nan, 1/3."""
    word = unquote(text.strip())
    try:
        return float(word)
    except ValueError:
        value = _arithmetic(word)
    if value is None:
        raise MismatchError("float")
    return float(value)


def parse_str(text: str) -> str:
    """The text as typed, without quotes around the whole of it."""
    return unquote(text)


def parse_path(text: str, kind: type[PurePath] = Path) -> PurePath:
    """A path; `~` at its start is the home directory."""
    word = unquote(text)
    if not word.strip():
        raise MismatchError("a path", "The text is empty.")
    return kind(os.path.expanduser(word))


def parse_bytes(text: str) -> bytes:
    """UTF-8 of the text, or a bytes literal such as b'\\x00'."""
    if re.fullmatch(r"[bB](['\"]).*\1", text):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError) as err:
            raise MismatchError("bytes") from err
    return unquote(text).encode()


def parse_enum(text: str, kind: type[enum.Enum]) -> enum.Enum:
    """A member by its name (any case), as CLASS.NAME, or by its value."""
    word = unquote(text.strip())
    name = word.removeprefix(f"{kind.__name__}.")
    members = kind.__members__
    if name in members:
        return members[name]
    same = [member for key, member in members.items() if key.lower() == name.lower()]
    same = same or [member for member in kind if str(member.value) == word]
    if len(set(same)) == 1:
        return same[0]
    raise MismatchError(
        f"{kind.__name__}", suggest.did_you_mean(name, members, what="members").strip()
    )


def parse_literal(text: str) -> Any:
    """A value without any known type: a Python literal, or else the text itself."""
    word = text.strip()
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word in _NONE:
        return None
    for parser in (parse_int, parse_float):
        try:
            return parser(word) if word[:1] not in "'\"" else unquote(text)
        except MismatchError:
            continue
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text


def _arithmetic(text: str) -> int | float | None:
    """The value of `2**20`, `4*1024`, `1/3`; None where it is nothing of the kind."""
    if not re.fullmatch(r"[\d\s.eE_+\-*/()]+", text) or len(text) > 80:
        return None
    try:
        value = _evaluate(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
        return None
    return value


def _evaluate(node: ast.AST) -> int | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Pow) and (
            abs(right) > MAX_INT_BITS or abs(left) > 2**64
        ):
            raise ValueError("too large")
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError("not arithmetic on numbers")
