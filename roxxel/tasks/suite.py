"""The tasks by name, all in rows of about one length."""

from roxxel.errors import ConfigError
from roxxel.tasks.copying import Copying, SelectiveCopying
from roxxel.tasks.recall import AssociativeRecall, Induction
from roxxel.tasks.rows import Task, positive

NAMES = ("induction", "copying", "selective_copying", "associative_recall")


def make(name: str, *, length: int = 64, vocab_size: int = 64) -> Task:
    """A task whose rows are about `length` tokens long.

    Copying has the half of them as symbols, selective copying and recall an eighth as
    symbols or pairs.

    Raises:
      ConfigError: there is no such task, or it has no room in the vocabulary.
    """
    positive(name, length=length)
    few = max(1, length // 8)
    if name == "induction":
        return Induction(vocab_size=vocab_size, length=length)
    if name == "copying":
        return Copying(vocab_size=vocab_size, length=max(1, length // 2))
    if name == "selective_copying":
        return SelectiveCopying(vocab_size=vocab_size, length=length, num_symbols=few)
    if name == "associative_recall":
        return AssociativeRecall(vocab_size=vocab_size, length=length, num_pairs=few)
    raise ConfigError(f"task is {name!r}, expected one of {', '.join(NAMES)}.")
