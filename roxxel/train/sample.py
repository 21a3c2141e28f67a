"""Text generated at the end of a run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from roxxel.errors import ConfigError
from roxxel.generate import generate
from roxxel.tokenizers import of_run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """A prompt, and how the model continues it.

    Attributes:
      prompt: text.
      num_tokens: tokens to generate.
      temperature: of the softmax; 0 takes the most likely token.
      seed: of the sampling.
      tokenizer: whatever `roxxel.tokenizers.load` takes; None: the one that the run's
        training data were made with, where they name none, bytes.
    """

    prompt: str
    num_tokens: int = 400
    temperature: float = 0.7
    seed: int = 0
    tokenizer: Any = None

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

    def text(self, model: Any, data: Mapping[str, Any] | None = None) -> str:
        """The prompt and its continuation; bytes that are no UTF-8 are replaced.

        Args:
          model: a `models.language_model.LanguageModel`.
          data: what `run.json` says of the run's data sets.

        Raises:
          ConfigError: there is no tokenizer, or it is not the model's.
        """
        tokenizer = of_run.of_run(
            dict(data or {}), model.vocab_size, self.tokenizer, setting="its tokenizer="
        )
        prompt = np.asarray(tokenizer.encode(self.prompt), np.int64)
        if not prompt.size or prompt.max() >= model.vocab_size:
            raise ConfigError(
                f"sample: {tokenizer.name} makes {prompt.size} ids of the prompt, up "
                f"to {prompt.max(initial=0)}; the model has vocab_size "
                f"{model.vocab_size}."
            )
        tokens = generate(
            model,
            [prompt.astype(np.int32)],
            self.num_tokens,
            rng=jax.random.key(self.seed),
            temperature=self.temperature,
            num_ids=tokenizer.vocab_size,
        )
        # Some tokenizers leave out the space before the first token they are given.
        whole = tokenizer.decode(np.concatenate([prompt, np.asarray(tokens)[0]]))
        return self.prompt + whole[len(tokenizer.decode(prompt)) :]
