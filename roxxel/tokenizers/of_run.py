"""The tokenizer of a run, from what its record says of the data."""

from typing import Any

from roxxel.errors import ConfigError
from roxxel.tokenizers import loading
from roxxel.tokenizers.bytes import Bytes
from roxxel.tokenizers.protocol import Tokenizer

_KINDS = "bytes, tiktoken:NAME or a tokenizer's file"


def of_run(
    data: dict[str, dict[str, Any]],
    vocab_size: int,
    given: Any = None,
    *,
    setting: str,
) -> Tokenizer:
    """The tokenizer that the training data were made with, or the one given.

    Data that name none are bytes where the model has no more than 256 ids.

    Args:
      data: what `run.json` says of the data sets, by where the trainer holds them.
      vocab_size: of the model.
      given: the tokenizer that the user names, or None.
      setting: what the user names it by, `--tokenizer=`: for messages.

    Raises:
      ConfigError: it is not known, not there, or not the same any more.
    """
    how = f"give {setting}{_KINDS}"
    if given is not None:
        return _load(given, f"{setting}{given}", how)
    training = [facts for path, facts in data.items() if path.startswith("stream")]
    named = {
        str(facts["tokenizer"].get("fingerprint")): facts["tokenizer"]
        for facts in training or data.values()
        if isinstance(facts.get("tokenizer"), dict)
    }
    if len(named) > 1:
        raise ConfigError(f"the run's data sets have several tokenizers; {how}.")
    if named:
        (facts,) = named.values()
        return _same(facts, how)
    if vocab_size > 256:
        raise ConfigError(f"the run's data name no tokenizer; {how}.")
    return Bytes()


def _same(facts: dict[str, Any], how: str) -> Tokenizer:
    spec = str(facts.get("spec") or facts.get("name"))
    found = _load(spec, f"the run's tokenizer {spec}", how)
    if facts.get("fingerprint") not in (None, found.fingerprint()):
        raise ConfigError(
            f"the run's tokenizer {spec} is not what it was when the data were made; "
            f"{how}."
        )
    return found


def _load(spec: Any, what: str, how: str) -> Tokenizer:
    try:
        return loading.load(spec)
    except Exception as err:
        why = " ".join(str(err).split()).rstrip(".")[:300]
        raise ConfigError(f"{what}: {why or type(err).__name__}; {how}.") from err
