"""The plan of a run: its length, its shapes, and what happens at which steps."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roxxel import budget
from roxxel.data.steps import Span
from roxxel.errors import ConfigError
from roxxel.train import evaluator

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Lengths resolved to steps.

    Attributes:
      total_steps: of the whole run, the schedule's horizon.
      last_step: where this start of it ends (`stop_after`).
      tokens: elements predicted in `total_steps`.
      save_every: steps between two checkpoints; None for none but the last.
      evaluate_every: steps between two evaluations by set, None for the end only.
      warmup_steps, decay_start: of the schedule; None where it does not tell.
      spans: steps of one batch shape each, up to `total_steps`.
    """

    total_steps: int
    last_step: int
    tokens: int
    save_every: int | None
    evaluate_every: dict[str, int | None]
    warmup_steps: int | None
    decay_start: int | None
    spans: tuple[Span, ...]

    @property
    def milestone(self) -> int | None:
        """The step whose checkpoint is kept: a lengthened run goes on from there."""
        start = self.decay_start
        return start if start and start < self.total_steps else None

    def started_spans(self) -> tuple[Span, ...]:
        """The spans that this start of the run gets to."""
        return tuple(span for span in self.spans if span.start < self.last_step)

    def saves_at(self, step: int) -> bool:
        """Whether a checkpoint of `step` is due."""
        if step in (self.last_step, self.milestone):
            return True
        return bool(self.save_every) and step % self.save_every == 0

    def sets_at(self, step: int) -> list[str]:
        """The evaluation sets that are due after `step`."""
        cadences = self.evaluate_every.items()
        if step == self.total_steps:
            return list(self.evaluate_every)
        return [name for name, every in cadences if every and step % every == 0]

    def lines(self, sets: Mapping[str, str] | None = None) -> list[str]:
        """The plan in words, for the log; `sets` says what evaluations look at."""
        one = f" of {_size(self.spans[0])}" if len(self.spans) == 1 else ""
        return [
            f"Plan {self.total_steps:,} steps{one}, {self.tokens:,} tokens in all",
            *(_span_line(span) for span in self.spans if not one),
            *self._schedule_line(),
            *self.cadence_lines(sets),
        ]

    def cadence_lines(self, sets: Mapping[str, str] | None = None) -> list[str]:
        """When the run saves, and when it evaluates if it does."""
        kept = f"; that of step {self.milestone:,} is kept" if self.milestone else ""
        lines = [f"Checkpoint {_times(self.save_every, self.total_steps)}{kept}"]
        for name, every in self.evaluate_every.items():
            when = _times(every, self.total_steps)
            lines.append(f"Evaluation {when} on {(sets or {}).get(name, name)}")
        return lines

    def _schedule_line(self) -> list[str]:
        words = []
        if self.warmup_steps is not None:
            words.append(f"warm-up of {self.warmup_steps:,} steps")
        if self.decay_start is not None:
            words.append(f"decay from step {self.decay_start:,}")
        return [f"Learning rate: {', '.join(words)}"] if words else []

    def record(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return dataclasses.asdict(self)


def make_plan(spec: "Trainer") -> Plan:
    """Resolves the trainer's lengths.

    Raises:
      ConfigError: a length is not understood, or the stream ends before the run does.
    """
    stream, total = spec.stream, spec.total_steps
    planned = getattr(stream, "planned_steps", None)
    if planned is not None and total > planned:
        raise ConfigError(
            f"trainer: total_steps is {total}, the phases of the stream have {planned}."
        )
    save_every, evaluate_every = resolve_cadences(spec)
    return Plan(
        total_steps=total,
        last_step=min(total, spec.stop_after or total),
        tokens=stream.tokens(total),
        save_every=save_every,
        evaluate_every=evaluate_every,
        warmup_steps=getattr(spec.schedule, "warmup_steps", None),
        decay_start=getattr(spec.schedule, "decay_start", None),
        spans=tuple(_cut(stream.spans(), total)),
    )


def resolve_cadences(spec: "Trainer") -> tuple[int | None, dict[str, int | None]]:
    """Steps between checkpoints, and between evaluations of each set.

    Raises:
      ConfigError: one is not understood.
    """
    sets = evaluator.own_sets(spec.evaluations)
    save = _cadence(spec, "trainer: save_every", spec.save_every)
    return save, {
        name: _cadence(spec, f"evaluation: every of {name}", one.every)
        for name, one in sets.items()
    }


def _cadence(spec: "Trainer", name: str, value: budget.Length | None) -> int | None:
    return budget.cadence(
        value, name=name, stream=spec.stream, total_steps=spec.total_steps
    )


def _cut(spans: tuple[Span, ...], total: int) -> list[Span]:
    inside = itertools.takewhile(lambda span: span.start < total, spans)
    return [
        dataclasses.replace(span, stop=min(total, span.stop or total))
        for span in inside
    ]


def _size(span: Span) -> str:
    return f"{span.batch_size:,} x {span.seq_len:,} tokens"


def _span_line(span: Span) -> str:
    return f"  steps {span.start:,} to {span.stop:,}: {_size(span)}"


def _times(every: int | None, total: int) -> str:
    if every is None or every >= total:
        return "at the end"
    return f"every {every:,} steps and at the end"
