"""Text generated at the end of a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel.errors import ConfigError
from roxxel.generate import generate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """A prompt, and how it is continued by a byte-level model.

    Attributes:
      prompt: UTF-8 text.
      num_tokens: bytes to generate.
      temperature: of the softmax; 0 takes the most likely byte.
      seed: of the sampling.
    """

    prompt: str
    num_tokens: int = 400
    temperature: float = 0.7
    seed: int = 0

    def __post_init__(self):
        if not self.prompt:
            raise ConfigError("sample: prompt must hold at least one character.")
        if self.num_tokens < 1:
            raise ConfigError(
                f"sample: num_tokens must be at least 1, got {self.num_tokens}."
            )
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(
                f"sample: temperature must be 0 or more, got {self.temperature}."
            )

    def text(self, model: nnx.Module) -> str:
        """The prompt and its continuation; bytes that are no UTF-8 are replaced."""
        prompt = np.frombuffer(self.prompt.encode(), np.uint8).astype(np.int32)
        tokens = generate(
            model,
            jnp.asarray(prompt)[None, :],
            self.num_tokens,
            rng=jax.random.key(self.seed),
            temperature=self.temperature,
        )
        ids = np.asarray(tokens)[0]
        continuation = bytes(np.where(ids < 256, ids, ord("?")).astype(np.uint8))
        return self.prompt + continuation.decode("utf-8", "replace")
