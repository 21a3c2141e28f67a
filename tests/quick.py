"""`jit` for tests of models: compiles in half the time, to slower code."""

import functools
from collections.abc import Callable

import jax
import pytest
from flax import nnx

# Compiling is nearly all that these tests cost.
OPTIONS = {"xla_backend_optimization_level": 0}


def jit(function: Callable) -> Callable:
    """`function(module, *args)` compiled; changes to the module are lost."""

    @functools.partial(jax.jit, static_argnums=0, compiler_options=OPTIONS)
    def run(graph, state, args):
        return function(nnx.merge(graph, state), *args)

    return lambda module, *args: run(*nnx.split(module), args)


@pytest.fixture(scope="module")
def compile_quickly():
    """As `jit`, for all that a module compiles in this process.

    Import it in a test module and ask for it by `pytestmark = usefixtures(...)`.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
