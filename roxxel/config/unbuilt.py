"""A stand-in for the stream of a data set that has to be built first."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from roxxel.data import phases as phases_lib
from roxxel.data import steps as steps_lib
from roxxel.data.reading_only import NotBuiltError


class UnbuiltStream:
    """Shapes of a stream whose data are not there; its content raises `NotBuiltError`.

    Raises:
      ConfigError: a size is wrong, or the phases make no plan.
    """

    start_step = 0

    def __init__(self, spans: tuple[steps_lib.Span, ...], *, overlap: int, reason: str):
        self._spans, self.reason = spans, reason
        self.overlap = steps_lib.not_negative("overlap", overlap)
        self.batch_size, self.seq_len = spans[0].batch_size, spans[0].seq_len
        self.planned_steps = spans[-1].stop

    @classmethod
    def like(
        cls, target: Callable[..., Any], arguments: Mapping[Any, Any], reason: str
    ) -> "UnbuiltStream":
        """Stands for `target(**arguments)`, a stream of unbuilt data.

        Raises:
          NotBuiltError: the data decide how long rows are, or when they run out.
        """
        bound = inspect.signature(target).bind_partial(**arguments)
        bound.apply_defaults()
        given = bound.arguments
        phases = given.get("phases") or [phases_lib.Phase()]
        is_open = given.get("exhaustion", "repeat") != "repeat"
        if is_open or not all(p.seq_len or given.get("seq_len") for p in phases):
            raise NotBuiltError(reason, is_used=True)
        stage = phases_lib.Stage(
            steps=None,
            batch_size=steps_lib.positive("batch_size", given.get("batch_size", 32)),
            seq_len=steps_lib.positive("seq_len", given.get("seq_len") or 1),
            weights={},
        )
        stages = phases_lib.resolve(phases, stage, given.get("tokens"))
        return cls(_spans(stages), overlap=given.get("overlap", 0), reason=reason)

    def _not_there(self, *arguments: Any) -> NoReturn:
        raise NotBuiltError(self.reason, is_used=True)

    place = steps = position = batch = _not_there
    steps_per_epoch = property(_not_there)
    dataset = property(_not_there)

    def spans(self) -> tuple[steps_lib.Span, ...]:
        """Steps of one batch shape each."""
        return self._spans

    def tokens(self, step: int) -> int:
        """Elements predicted in the first `step` steps."""
        return steps_lib.tokens_before(self._spans, step)

    def steps_for(self, tokens: int) -> int:
        """The fewest steps that predict so many elements."""
        return steps_lib.steps_for(self._spans, tokens)


def _spans(stages: list[phases_lib.Stage]) -> tuple[steps_lib.Span, ...]:
    spans, start = [], 0
    for stage in stages:
        stop = None if stage.steps is None else start + stage.steps
        spans.append(steps_lib.Span(start, stop, stage.batch_size, stage.seq_len))
        start = stop or start
    return tuple(spans)
