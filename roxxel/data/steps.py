"""Rows, steps and epochs as integers: nothing here reads data or keeps state."""

import dataclasses
import operator
from collections.abc import Sequence

from roxxel.errors import ConfigError


def num_rows(num_elements: int, seq_len: int, overlap: int = 0) -> int:
    """Rows of `seq_len` elements that each find `overlap` more behind them."""
    seq_len = positive("seq_len", seq_len)
    overlap = not_negative("overlap", overlap)
    return max(0, num_elements - overlap) // seq_len


def positive(name: str, value) -> int:
    """`value` as an int of at least 1.

    Raises:
        ConfigError: It is not; names it.
    """
    return _whole(name, value, 1)


def not_negative(name: str, value) -> int:
    """`value` as an int of at least 0; errors as `positive`."""
    return _whole(name, value, 0)


def _whole(name: str, value, least: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name} must be an int of at least {least}, got {value!r}.")
    return number


@dataclasses.dataclass(frozen=True)
class Span:
    """Steps [start, stop) whose batches have one shape; stop None is without end."""

    start: int
    stop: int | None
    batch_size: int
    seq_len: int


def tokens_before(spans: Sequence[Span], step: int) -> int:
    """Elements predicted in the first `step` steps, `step` within the spans."""
    total = 0
    for span in spans:
        stop = step if span.stop is None else min(step, span.stop)
        total += max(0, stop - span.start) * span.batch_size * span.seq_len
    return total


def steps_for(spans: Sequence[Span], tokens: int) -> int:
    """The fewest steps that predict `tokens` elements.

    Raises:
        ConfigError: All spans together predict fewer.
    """
    for span in spans:
        step_tokens = span.batch_size * span.seq_len
        before = tokens_before(spans, span.start)
        step = span.start + -(-(tokens - before) // step_tokens)
        if span.stop is None or step <= span.stop:
            return step
    last = spans[-1].stop or 0
    raise ConfigError(
        f"{tokens} tokens are more than the {tokens_before(spans, last)} of all"
        f" {last} steps of the stream."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid of steps over one data set.

    Step s, counted from the start of epoch `epoch`, lies in epoch
    `epoch + s // steps_per_epoch`; the stream covers steps
    [start_step, epochs * steps_per_epoch). The rows behind the last whole batch of an
    epoch are not seen in it, other ones each epoch.
    """

    num_rows: int
    batch_size: int
    epoch: int = 0
    epochs: int = 1
    start_step: int = 0

    def __post_init__(self):
        positive("batch_size", self.batch_size)
        not_negative("epoch", self.epoch)
        positive("epochs", self.epochs)
        not_negative("start_step", self.start_step)
        if self.num_rows < self.batch_size:
            raise ConfigError(
                f"{self.num_rows} windows < batch {self.batch_size}: the data set is"
                " too small for one batch; use a smaller batch_size or seq_len, or"
                " more data."
            )
        if self.start_step > self.end_step:
            raise ConfigError(
                f"start_step {self.start_step} lies behind the end, step"
                f" {self.end_step} ({self.epochs} epochs of {self.steps_per_epoch}"
                " steps)."
            )

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return self.num_rows // self.batch_size

    @property
    def end_step(self) -> int:
        """The step behind the last."""
        return self.epochs * self.steps_per_epoch

    def locate(self, step: int) -> tuple[int, int]:
        """Epoch of `step` and the position of its first row in that epoch's order."""
        epochs_done, step_in_epoch = divmod(step, self.steps_per_epoch)
        return self.epoch + epochs_done, step_in_epoch * self.batch_size

    def step_at(self, epoch: int, rows_seen: int) -> int:
        """The step that begins behind `rows_seen` rows of `epoch`.

        Raises:
            ConfigError: No step of this grid begins there, or it lies before `epoch`.
        """
        if epoch < self.epoch:
            raise ConfigError(
                f"the saved position is in epoch {epoch}, before the stream's first,"
                f" epoch {self.epoch}."
            )
        before = (epoch - self.epoch) * self.steps_per_epoch
        step_in_epoch, rest = divmod(rows_seen, self.batch_size)
        if step_in_epoch >= self.steps_per_epoch:
            return before + self.steps_per_epoch  # the next epoch's first
        if rest:
            raise ConfigError(
                f"the saved position, {rows_seen} rows into epoch {epoch}, is no"
                f" multiple of batch_size {self.batch_size}; use a batch_size that"
                " divides it."
            )
        return before + step_in_epoch
