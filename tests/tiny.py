"""What the training tests share: a bigram model, and programs compiled once."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache

_CACHE = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
}


class Bigram(nnx.Module):
    """Logits of the next token from this one alone: `[vocab, vocab]` parameters."""

    def __init__(self, vocab_size: int = 16, *, rngs: nnx.Rngs):
        self.table = nnx.Embed(vocab_size, vocab_size, rngs=rngs)

    def __call__(self, tokens, *, segment_ids_BL=None, state=None):
        return self.table(tokens).astype(jnp.float32), state


@pytest.fixture(scope="module")
def compile_once(tmp_path_factory):
    """Programs of this session are kept: nearly all that short runs cost is XLA.

    Import it in a test module and ask for it by `pytestmark = usefixtures(...)`.
    """
    before = {name: getattr(jax.config, name) for name in _CACHE}
    folder = str(tmp_path_factory.getbasetemp() / "xla")  # one for all modules
    for name, value in (_CACHE | {"jax_compilation_cache_dir": folder}).items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
