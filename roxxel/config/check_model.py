"""Parameters of a model by module, from shapes alone."""

import collections
import math
from collections.abc import Iterator
from typing import Any

from roxxel.config import abstract, imports

_INDENT = "  "


def abstract_model(values: abstract.Values, problems: list[str]) -> Any:
    """The model as shapes; None where there is none or it cannot be made."""
    make = values.get("model")
    if not callable(make):
        return None
    from flax import nnx

    if isinstance(make, nnx.Module):
        return make
    try:
        return nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
    except Exception as err:
        text = f"model: {imports.one_line(err)}"
        if not any("model" in problem for problem in problems):
            problems.append(text)
        return None


def parameters(model: Any) -> str:
    """A table of parameters by module, repeated modules in one row."""
    rows = collections.Counter[str]()
    copies: dict[str, set[str]] = collections.defaultdict(set)
    for name, leaf in leaves(model):
        module = name.rpartition(".")[0] or name
        folded = _folded(module)
        rows[folded] += math.prod(leaf.shape)
        copies[folded].add(module)
    width = max((len(name) for name in rows), default=0)
    lines = [f"parameters of {type(model).__name__}"]
    for name, count in rows.items():
        times = len(copies[name])
        share = f"  ({times} x {count // times:,})" if times > 1 else ""
        lines.append(f"{_INDENT}{name:<{width}}  {count:>15,}{share}")
    lines.append(f"{_INDENT}{'total':<{width}}  {sum(rows.values()):>15,}")
    return "\n".join(lines)


def num_params(model: Any) -> int:
    """Trainable values."""
    return sum(math.prod(leaf.shape) for _, leaf in leaves(model))


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Dotted names and shapes of the trainable leaves of a model."""
    import jax
    from flax import nnx

    from roxxel import optim

    flat, _ = jax.tree_util.tree_flatten_with_path(nnx.state(tree, nnx.Param))
    for path, leaf in flat:
        yield optim.parameter_name(path), leaf


def flops_per_token(model: Any, seq_len: int) -> tuple[float, str]:
    """Floating point operations of both passes for one token, and how they count."""
    cost = getattr(model, "flops_per_token", None)
    if cost is None:
        return 6.0 * num_params(model), "6 a parameter; the model tells no better"
    return float(cost(seq_len)), "forward and backward, all terms"


def _folded(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
