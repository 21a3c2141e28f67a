"""Calls with plain arguments on a command line: `experiments.ssm_small(d_model=128)`.

Only the shape is parsed (by `ast`); nothing is evaluated. Arguments stay text, to be
typed by the annotations of the function they are for.
"""

import ast
import dataclasses
import re

from roxxel.errors import ConfigError

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """`name(*args, **kwargs)`; the arguments are source text."""

    name: str
    args: tuple[str, ...] = ()
    kwargs: dict[str, str] = dataclasses.field(default_factory=dict)
    is_call: bool = False


def is_dotted_name(text: str) -> bool:
    """Whether text is one name or names joined by dots."""
    return _DOTTED.fullmatch(text) is not None


def looks_like_call(text: str) -> bool:
    """Whether text reads `dotted.name(...)`."""
    text = text.strip()
    return text.endswith(")") and is_dotted_name(text.partition("(")[0].strip())


def parse(text: str) -> Call:
    """The name, or the name and its arguments.

    Raises:
      ConfigError: text is neither a dotted name nor a call with keyword and
        positional arguments.
    """
    text = text.strip()
    if is_dotted_name(text):
        return Call(name=text)
    name = text.partition("(")[0].strip()
    if not is_dotted_name(name):
        raise ConfigError(f"{text!r} is neither a dotted name nor name(arg=value).")
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as err:
        reason = getattr(err, "msg", None) or str(err)
        raise ConfigError(
            f"{text!r} cannot be read as name(arg=value): {reason}"
        ) from err
    if not isinstance(node, ast.Call) or not _is_name(node.func):
        raise ConfigError(f"{text!r} is neither a dotted name nor name(arg=value).")
    return _from_node(name, text, node)


def _is_name(node: ast.expr) -> bool:
    """Whether a node is a dotted name: `f(1)(2)` calls something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _from_node(name: str, text: str, node: ast.Call) -> Call:
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(
        keyword.arg is None for keyword in node.keywords
    ):
        raise ConfigError(f"{text!r}: * and ** are not supported; name each argument.")
    source = {id(part): ast.get_source_segment(text, part) or "" for part in node.args}
    return Call(
        name=name,
        args=tuple(source[id(part)] for part in node.args),
        kwargs={
            str(keyword.arg): ast.get_source_segment(text, keyword.value) or ""
            for keyword in node.keywords
        },
        is_call=True,
    )
