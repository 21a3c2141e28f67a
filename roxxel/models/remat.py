"""Rematerialisation that XLA's compiler for CPU does not undo.

`jax.checkpoint` keeps the second computation apart from the first by optimization
barriers. That compiler removes them before it looks for common expressions, finds that
both are the same, and keeps what was to be computed again.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def checkpoint_in_branch(function: Callable, *, policy: Callable) -> Callable:
    """As `jax.checkpoint`, with the backward pass in a branch that is always taken.

    What is in a branch is merged with nothing outside, begins when the gradient is
    known, and gives its memory back when it ends. For reverse mode alone; all that has
    a gradient must be an argument of `function`.
    """
    run = jax.checkpoint(function, policy=policy)

    def call(*args: Any) -> Any:
        leaves, treedef = jax.tree.flatten(args)
        varies = [jnp.issubdtype(jnp.result_type(v), jnp.inexact) for v in leaves]

        def joined(varied, fixed):
            parts = {True: iter(varied), False: iter(fixed)}
            return run(*jax.tree.unflatten(treedef, [next(parts[v]) for v in varies]))

        def forward(varied, fixed):
            return jax.vjp(lambda varied: joined(varied, fixed), varied)

        apart = jax.custom_vjp(joined)
        apart.defvjp(forward, _backward)
        pairs = list(zip(varies, leaves, strict=True))
        return apart(
            *([leaf for v, leaf in pairs if v is want] for want in (True, False))
        )

    return call


def _backward(pull, cotangents):
    shapes = jax.eval_shape(pull, cotangents)
    zeros = lambda _: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)  # noqa: E731
    return *jax.lax.cond(_true(cotangents), pull, zeros, cotangents), None


def _true(cotangents):
    """True; on CPU only running the program can tell: a count of bits is no less.

    Elsewhere, as when a step is compiled for a device that is not here, there is no
    branch left.
    """
    array = jax.tree.leaves(cotangents)[0]
    number = array[(0,) * array.ndim].astype(jnp.float32)
    bits = jax.lax.bitcast_convert_type(number, jnp.int32)
    return jax.lax.platform_dependent(
        bits,
        cpu=lambda bits: jax.lax.population_count(bits) >= 0,
        default=lambda bits: jnp.bool_(True),
    )
