"""What `--mode=sample` and `--mode=serve` share: numbers of flags, a run to use."""

import dataclasses
from typing import Any

from roxxel.config import arguments, opened, resolve
from roxxel.errors import ConfigError
from roxxel.tokenizers import of_run


@dataclasses.dataclass(kw_only=True)
class Ready:
    """A run whose model continues text.

    Attributes:
      run: the opened run.
      tokenizer: text to ids and back.
      decoder: a `generation.decoding.Decoder`.
      end_id: the token that ends a document, or None.
    """

    run: opened.Opened
    tokenizer: Any
    decoder: Any
    end_id: int | None

    def encode(self, text: str, where: str) -> Any:
        """The ids of a prompt.

        Raises:
          ConfigError: there are none, or the model does not know one.
        """
        import numpy as np

        try:
            ids = np.asarray(self.tokenizer.encode(text), np.int64)
        except UnicodeEncodeError as err:
            raise ConfigError(f"{where} is no valid text: {err.reason}.") from err
        if not ids.size:
            raise ConfigError(f"{where} is empty; give at least one token.")
        if ids.max() >= self.decoder.vocab_size:
            raise ConfigError(
                f"{where}: the tokenizer gives id {ids.max()}, the model has "
                f"vocab_size {self.decoder.vocab_size}."
            )
        return ids.astype(np.int32)


def ready(found: resolve.Experiment, line: arguments.CommandLine) -> Ready:
    """The run that a command line names, restored and ready to continue text.

    Raises:
      ConfigError: there is no such run or checkpoint, or its model makes no text.
    """
    checkpoint = opened.parse_checkpoint(line.get("checkpoint"))
    run = opened.open_run(found, opened.folder(found, line), checkpoint=checkpoint)
    from roxxel.generation import decoding
    from roxxel.models.language_model import LanguageModel

    if not isinstance(run.model, LanguageModel):
        raise ConfigError(
            f"{found.name}: the model is a {type(run.model).__name__}; text is made by "
            "a roxxel.models.language_model.LanguageModel."
        )
    model = run.model
    given = line.get("tokenizer")
    tokenizer = of_run.of_run(run.data, model.vocab_size, given, setting="--tokenizer=")
    end_id = model.separator_id
    if end_id is None:
        end_id = getattr(tokenizer, "separator_id", None)
    decoder = decoding.Decoder(model, tokenizer.vocab_size)
    return Ready(run=run, tokenizer=tokenizer, decoder=decoder, end_id=end_id)


def whole(
    line: arguments.CommandLine, name: str, default: int, *, least: int = 1
) -> int:
    """The whole number of a flag.

    Raises:
      ConfigError: it is none, or less than `least`.
    """
    given = line.get(name)
    try:
        value = default if given is None else int(given.replace("_", ""))
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(
            f"--{name}={given}: expected a whole number, at least {least}."
        )
    return value


def real(line: arguments.CommandLine, name: str, default: float) -> float:
    """The number of a flag.

    Raises:
      ConfigError: it is none.
    """
    given = line.get(name)
    try:
        return default if given is None else float(given)
    except ValueError as err:
        raise ConfigError(f"--{name}={given}: expected a number.") from err
