"""A stand-in for the stream of a data set that has to be built first."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from roxxel.data import steps as steps_lib


class NotBuiltError(Exception):
    """A data set is not there yet. `is_used`: what was asked for depends on it."""

    def __init__(self, message: str, *, is_used: bool = False):
        super().__init__(message)
        self.is_used = is_used


class UnbuiltStream:
    """Sizes of a stream whose data are not there; its content raises `NotBuiltError`.

    Raises:
      ConfigError: a size is wrong.
    """

    planned_steps = None
    start_step = 0

    def __init__(
        self, *, seq_len: int, batch_size: int, overlap: int, seed: int, reason: str
    ):
        self.reason = reason
        self.seq_len = steps_lib.positive("seq_len", seq_len)
        self.batch_size = steps_lib.positive("batch_size", batch_size)
        self.overlap = steps_lib.not_negative("overlap", overlap)
        self.seed = seed

    @classmethod
    def like(
        cls, target: Callable[..., Any], arguments: Mapping[Any, Any], reason: str
    ) -> "UnbuiltStream":
        """Stands for `target(**arguments)`, a stream of unbuilt data.

        Raises:
          NotBuiltError: it has phases, or rows whose shape the data decide.
        """
        bound = inspect.signature(target).bind_partial(**arguments)
        bound.apply_defaults()
        given = bound.arguments
        if given.get("phases") or not isinstance(given.get("seq_len"), int):
            raise NotBuiltError(reason, is_used=True)
        return cls(
            seq_len=given["seq_len"],
            batch_size=given.get("batch_size", 32),
            overlap=given.get("overlap", 0),
            seed=given.get("seed", 42),
            reason=reason,
        )

    def _not_there(self, *arguments: Any) -> NoReturn:
        raise NotBuiltError(self.reason, is_used=True)

    place = steps = position = batch = _not_there
    steps_per_epoch = property(_not_there)
    dataset = property(_not_there)

    def spans(self) -> tuple[steps_lib.Span, ...]:
        """All steps have one shape."""
        return (steps_lib.Span(0, None, self.batch_size, self.seq_len),)

    def tokens(self, step: int) -> int:
        """Elements predicted in the first `step` steps."""
        return step * self.batch_size * self.seq_len

    def steps_for(self, tokens: int) -> int:
        """Steps that predict at least so many elements."""
        return math.ceil(tokens / (self.batch_size * self.seq_len))
