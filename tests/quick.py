"""`jit` for tests of models: compiles in half the time, to slower code."""

import functools
from collections.abc import Callable

import jax
from flax import nnx

# Compiling is nearly all that these tests cost.
OPTIONS = {"xla_backend_optimization_level": 0}


def jit(function: Callable) -> Callable:
    """`function(module, *args)` compiled; changes to the module are lost."""

    @functools.partial(jax.jit, static_argnums=0, compiler_options=OPTIONS)
    def run(graph, state, args):
        return function(nnx.merge(graph, state), *args)

    return lambda module, *args: run(*nnx.split(module), args)
