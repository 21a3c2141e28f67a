"""Items of an iterable in turn, and the way back to any of them.

A *mark* names the place behind an item: the epoch, the items taken in it and, where the
source has one, its own state. It is JSON, see `roxxel.train.input_states`.
"""

from typing import Any

from absl import logging

from roxxel.errors import ConfigError
from roxxel.train import input_states

Mark = dict[str, Any]

# How sources tell and take a state: grain; torchdata and Hugging Face datasets.
_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))

# The part of a Hugging Face data set whose rows in memory are missing in its state.
_SHUFFLE_BUFFER = "BufferShuffledExamplesIterable"


class InputEnded(ConfigError):
    """The input has no more items, and its epochs are over."""


class Feed:
    """The items of `source`, over `epochs` passes (None: without end).

    With every item comes the mark behind it. A source without a state is wound forward
    by reading; a bare iterator without one cannot go back.
    """

    def __init__(self, source: Any, epochs: int | None):
        self._source = source
        self._epochs = epochs
        self._iterator: Any = None
        self._initial: Any = None
        self._exact = not _has_shuffle_buffer(source)
        self._ahead: tuple[Any, Mark] | None = None
        self._mark: Mark = {"epoch": 0, "taken": 0, "state": None}

    @property
    def mark(self) -> Mark:
        """The place behind the last item that was handed out."""
        if self._iterator is None:
            self._open(0)
        return self._mark

    def peek(self) -> Any:
        """The next item, which stays the next."""
        if self._ahead is None:
            before = self.mark
            self._ahead = self._pull(before)
        return self._ahead[0]

    def next(self) -> tuple[Any, Mark]:
        """The next item and the mark behind it.

        Raises:
          InputEnded: there is none.
        """
        item, mark = self._ahead or self._pull(self.mark)
        self._ahead, self._mark = None, mark
        return item, mark

    def seek(self, mark: Mark) -> None:
        """Goes to the place that `mark` names.

        Raises:
          ConfigError: a bare iterator would have to go back, or it ends before.
        """
        if self._iterator is not None and mark == self._mark:
            return
        if mark["state"] is not None:
            self._open(mark["epoch"], input_states.decode(mark["state"]))
            self._mark = mark
        else:
            self._wind(mark)

    def _wind(self, mark: Mark) -> None:
        here, there = ((m["epoch"], m["taken"]) for m in (self.mark, mark))
        if here > there or here[0] != there[0]:
            self._open(mark["epoch"])
        skipped = mark["taken"] - self._mark["taken"]
        if skipped:
            logging.info("the input has no exact state: reading past %d items", skipped)
        for _ in range(skipped):
            self.next()

    def _pull(self, before: Mark) -> tuple[Any, Mark]:
        epoch, taken = before["epoch"], before["taken"]
        try:
            item = next(self._iterator)
        except StopIteration:
            epoch, taken = self._next_epoch(epoch, is_empty=taken == 0), 0
            try:
                item = next(self._iterator)
            except StopIteration:
                raise _empty(self._source) from None
        return item, {"epoch": epoch, "taken": taken + 1, "state": self._state()}

    def _next_epoch(self, epoch: int, *, is_empty: bool) -> int:
        if is_empty:
            raise _empty(self._source)
        if self._epochs is not None and epoch + 1 >= self._epochs:
            raise InputEnded(f"the input has ended after epochs={self._epochs}")
        if hasattr(self._source, "__next__") and self._initial is None:
            raise InputEnded("the input has ended, and a bare iterator has one epoch")
        self._open(epoch + 1, at_end=True)
        return epoch + 1

    # -- the source's own state ----------------------------------------------------

    def _open(self, epoch: int, state: Any = None, *, at_end: bool = False) -> None:
        """Begins `epoch`, or goes on from `state`."""
        is_new, self._ahead = self._iterator is None, None
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        owner = self._owner(self._source)
        if owner is not None and is_new:
            self._initial = owner[0]()
        if state is None and not is_new and not (at_end and self._is_renewable()):
            state = self._initial
            if state is None and hasattr(self._source, "__next__"):
                raise ConfigError(
                    "the input is a bare iterator, without a state: it cannot go back. "
                    "Make a new one, or give an iterable or one with get_state."
                )
        if owner is not None and state is not None:
            owner[1](state)
        self._iterator = iter(self._source)
        if owner is None:
            self._set_iterator_state(state, is_new)
        self._mark = {"epoch": epoch, "taken": 0, "state": self._state()}

    def _is_renewable(self) -> bool:
        """Whether `iter` begins the next epoch of the source."""
        return not hasattr(self._source, "__next__")

    def _set_iterator_state(self, state: Any, is_new: bool) -> None:
        owner = self._owner(self._iterator)
        if owner is None:
            return
        if is_new and self._initial is None:
            self._initial = owner[0]()
        if state is not None:
            owner[1](state)

    def _owner(self, candidate: Any) -> tuple | None:
        for names in _PAIRS:
            pair = tuple(getattr(candidate, name, None) for name in names)
            if all(map(callable, pair)):
                return pair
        return None

    def _state(self) -> Any:
        owner = self._owner(self._source) or self._owner(self._iterator)
        if owner is None or not self._exact:
            return None
        return input_states.encode(owner[0]())


def _empty(source: Any) -> ConfigError:
    return ConfigError(f"the input, a {type(source).__name__}, has no items.")


def _has_shuffle_buffer(source: Any) -> bool:
    """Whether an iterable of `datasets` shuffles in memory, anywhere in its chain."""
    parts = [source]
    while parts:
        part = parts.pop()
        if type(part).__name__ == _SHUFFLE_BUFFER:
            return True
        parts += getattr(part, "ex_iterables", [])
        inner = [getattr(part, name, None) for name in ("_ex_iterable", "ex_iterable")]
        parts += [each for each in inner if each is not None]
    return False
