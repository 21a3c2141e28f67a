"""The tokenizer of a run, from what its record says of the data."""

from typing import Any

from roxxel import tokenizers
from roxxel.config import imports
from roxxel.errors import ConfigError
from roxxel.tokenizers import loading
from roxxel.tokenizers.bytes import Bytes

_HOW = "give --tokenizer=bytes, tiktoken:NAME or a tokenizer's file"


def of_run(
    data: dict[str, dict[str, Any]], vocab_size: int, given: str | None = None
) -> tokenizers.Tokenizer:
    """The tokenizer that the training data were made with, or the one given.

    Data that name none are bytes where the model has no more than 256 ids.

    Args:
      data: the data sets of a run, see `data_facts`.
      vocab_size: of the model.
      given: the value of `--tokenizer`.

    Raises:
      ConfigError: it is not known, not there, or not the same any more.
    """
    if given is not None:
        return _load(given, f"--tokenizer={given}")
    training = [facts for path, facts in data.items() if path.startswith("stream")]
    named = {
        str(facts["tokenizer"].get("fingerprint")): facts["tokenizer"]
        for facts in training or data.values()
        if isinstance(facts.get("tokenizer"), dict)
    }
    if len(named) > 1:
        raise ConfigError(f"the run's data sets have several tokenizers; {_HOW}.")
    if named:
        return _same(*named.values())
    if vocab_size > 256:
        raise ConfigError(f"the run's data name no tokenizer; {_HOW}.")
    return Bytes()


def _same(facts: dict[str, Any]) -> tokenizers.Tokenizer:
    spec = str(facts.get("spec") or facts.get("name"))
    found = _load(spec, f"the run's tokenizer {spec}")
    if facts.get("fingerprint") not in (None, found.fingerprint()):
        raise ConfigError(
            f"the run's tokenizer {spec} is not what it was when the data were made; "
            f"{_HOW}."
        )
    return found


def _load(spec: str, what: str) -> tokenizers.Tokenizer:
    try:
        return loading.load(spec)
    except Exception as err:
        raise ConfigError(f"{what}: {imports.one_line(err)}; {_HOW}.") from err
