"""Overrides from a Python function: `configs.sweeps.learning_rates(count=3)`."""

import ast
import importlib
from collections.abc import Callable
from typing import Any

from launch.problems import SweepError, did_you_mean


def overrides(text: str) -> list[dict[str, object]]:
    """What the function called in `text` returns; its arguments are Python literals.

    Raises:
      SweepError: there is no such function, or it returns no list of dicts.
    """
    flag = f"--sweep_config={text}"
    name, args, kwargs = _parsed(text, flag)
    try:
        found = _function(name, flag)(*args, **kwargs)
    except SweepError:
        raise
    except Exception as err:
        raise SweepError(f"{flag}: {type(err).__name__}: {err}") from err
    if not isinstance(found, list) or not found or not all(map(_is_overrides, found)):
        raise SweepError(
            f"{flag}: expected a list of dicts from paths to values, got {found!r:.80}."
        )
    return found


def _parsed(text: str, flag: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call):
            return ast.unparse(node), [], {}
        kwargs = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        args = [ast.literal_eval(arg) for arg in node.args]
        return ast.unparse(node.func), args, kwargs
    except (SyntaxError, ValueError) as err:
        raise SweepError(f"{flag}: expected package.function(argument=value).") from err


def _function(name: str, flag: str) -> Callable[..., Any]:
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        raise SweepError(f"{flag}: expected a dotted name, as configs.sweeps.{name}.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as err:
        raise SweepError(f"{flag}: {err}.") from err
    if not callable(getattr(module, attribute, None)):
        known = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module_name
        ]
        raise SweepError(
            f"{flag}: {module_name} has no function {attribute!r}."
            f"{did_you_mean(attribute, known)}"
        )
    return getattr(module, attribute)


def _is_overrides(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)
