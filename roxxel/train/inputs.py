"""Any input as a stream: functions of the step, and iterators with a state.

The trainer reads streams (`roxxel.RoxxelStream` and its kin). `Input` makes one of

* an object with `batch(step)`, a pure function of the step: numpy or jax;
* an iterable or iterator: grain's (`get_state`, `set_state`), Hugging Face iterable
  data sets and torch's `StatefulDataLoader` (`state_dict`, `load_state_dict`), whose
  state after the batch consumed goes into the checkpoint and is restored; and iterables
  without a state, which are read again up to where they were.
"""

import functools
from collections.abc import Generator, Iterator
from typing import Any

import jax
import numpy as np

from roxxel import sharding as sharding_lib
from roxxel.data import steps
from roxxel.data.prefetch import Prefetcher
from roxxel.errors import ConfigError
from roxxel.train import input_batches, input_states
from roxxel.train.feeds import InputEnded, Mark
from roxxel.train.input_batches import Array
from roxxel.train.input_local import LocalBatches

# What a stream has that the trainer runs as it is.
_PROTOCOL = ("place", "steps", "position", "batch_size", "seq_len", "steps_per_epoch")

# Steps whose batches and marks are remembered: more than may be in flight.
_REMEMBERED = 8


def as_source(stream: Any) -> Any:
    """`stream` if it is one, else an `Input` of it.

    Raises:
      ConfigError: it is nothing that yields batches.
    """
    if isinstance(stream, Input) or all(_has(stream, name) for name in _PROTOCOL):
        return stream
    if hasattr(stream, "num_elements") and hasattr(stream, "stream"):
        raise ConfigError(
            "trainer: stream is a data set; give dataset.stream(seq_len, batch_size, "
            "overlap=1)."
        )
    return Input(stream)


def _has(stream: Any, name: str) -> bool:
    return hasattr(type(stream), name) or hasattr(stream, name)


class Input:
    """A stream of what `source` yields: `[rows, seq_len + 1]` ids, or single rows.

    Args:
      source: has `batch(step)`, or is an iterable or iterator. A batch is an array, a
        nested list, a tensor, or a dict with one of them. Where the dict has a
        `loss_mask` of the same shape, 1 for each id that counts as a target, the loss
        gets `{"tokens": ..., "loss_mask": ...}`.
      seq_len: predictions a row; None takes it from the first batch.
      batch_size: rows of the global batch over all processes; None takes it from the
        first batch. Single rows are put together to batches of it.
      key: of the token ids, where batches are dicts; None looks for "tokens", then
        "input_ids".
      epochs: passes over an iterable; None for as many as the run needs. A source with
        `set_epoch` is told the number of each.
      per_process: whether each process gets its own part of the global batch. None:
        iterators do, `batch(step)` gives the whole batch everywhere.
      prefetch: batches made ahead on a thread; 0 for no thread.

    Raises:
      ConfigError: the source yields nothing that is a batch; a size is wrong.
    """

    overlap = 1
    seed = None
    start_step = 0
    steps_per_epoch = None
    planned_steps = None
    dtype = np.dtype(np.int32)

    def __init__(
        self,
        source: Any,
        *,
        seq_len: int | None = None,
        batch_size: int | None = None,
        key: str | None = None,
        epochs: int | None = 1,
        per_process: bool | None = None,
        prefetch: int = 2,
    ):
        sizes = {"seq_len": seq_len, "batch_size": batch_size, "epochs": epochs}
        for name, value in sizes.items():
            if value is not None:
                steps.positive(f"input: {name}", value)
        self._local = LocalBatches(
            source,
            key=key,
            epochs=epochs,
            seq_len=seq_len,
            batch_size=batch_size,
            num_parts=self._num_parts,
        )
        self._feed = self._local.feed
        self._is_part = self._feed is not None if per_process is None else per_process
        self._given = (seq_len, batch_size)
        self._prefetch = steps.not_negative("input: prefetch", prefetch)
        self._seen: dict[int, tuple[Array | None, Mark | None]] = {}
        self._agreed = False
        self._is_placed = False
        self.sharding: Any = None

    # -- sizes -----------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Rows of the global batch."""
        given = self._given[1]
        return given if given is not None else self._local.shape[0] * self._num_parts()

    @property
    def seq_len(self) -> int:
        """Predictions a row."""
        given = self._given[0]
        return given if given is not None else self._local.shape[1] - 1

    def spans(self) -> tuple[steps.Span, ...]:
        """One span without end: all batches have one shape."""
        return (steps.Span(0, None, self.batch_size, self.seq_len),)

    def tokens(self, step: int) -> int:
        """Elements predicted in the first `step` steps."""
        return step * self.batch_size * self.seq_len

    def steps_for(self, tokens: int) -> int:
        """The fewest steps that predict `tokens` elements."""
        return -(-tokens // self.tokens(1))

    def _num_parts(self) -> int:
        """Processes that each bring a part; asks jax only where they are joined."""
        joined = self._is_part and jax.distributed.is_initialized()
        return jax.process_count() if joined else 1

    # -- batches ---------------------------------------------------------------------

    def place(self, mesh: Any = None, data_sharding: Any = None) -> "Input":
        """The same input with batches on `mesh`, rows over its axes of data.

        Raises:
          ConfigError: the batch does not divide over the devices, or the processes'
            batches do not go together.
        """
        self._agree()  # first: what one process alone refused, others would wait for
        self._is_placed = True
        self.sharding = data_sharding or sharding_lib.batch_sharding(mesh)
        if self.sharding is not None:
            from roxxel.data import placement

            shape = (self.batch_size, self.seq_len + 1)
            names = [f"batch {shape[0]}", f"row of {shape[1]} elements"]
            placement.check_divides(self.sharding, names, shape)
        return self

    def batch(self, step: int) -> Any:
        """The batch of a step; of iterators only those just read.

        Raises:
          ConfigError: an iterator is beyond it, or not yet there.
        """
        if self._feed is None:
            return self._ready(self._local.read(step)[0])
        if step + 1 not in self._seen or self._seen[step + 1][0] is None:
            raise ConfigError(f"batch {step} of an iterator is not at hand any more.")
        local = self._seen[step + 1][0]
        return self._local.parted(local)

    def steps(self, start: int, stop: int) -> Generator[Any]:
        """The batches of steps [start, stop), made ahead; closable.

        Raises:
          InputEnded: before `stop`; names the step.
        """
        if self._feed is not None:
            if start == 0 and 0 not in self._seen:
                self._seen[0] = (None, self._feed.mark)
            if start not in self._seen:
                raise ConfigError(f"the input has no state for step {start}.")
            self._feed.seek(self._seen[start][1] or {})
        made: Any = self._made(start, stop)
        if self._prefetch:
            made = Prefetcher(made, self._prefetch)
        try:
            for step, (ready, local, mark) in enumerate(made, start):
                self._remember(step + 1, local, mark)
                yield ready
        finally:
            made.close()

    def _made(self, start: int, stop: int) -> Iterator[tuple[Any, Array, Mark | None]]:
        for step in range(start, stop):
            try:
                local, mark = self._local.read(step)
            except InputEnded as err:
                raise InputEnded(
                    f"{err}: {step} steps are done and saved, {stop} are planned. "
                    "Give Input(..., epochs=None) to repeat it, more data, or "
                    f"total_steps={step}."
                ) from err
            yield self._ready(local), local, mark

    def _ready(self, local: Array) -> Any:
        batch = self._local.parted(local)
        if not self._is_placed:
            return batch
        place = functools.partial(
            input_batches.placed,
            shape=(self.batch_size, self.seq_len + 1),
            sharding=self.sharding,
            is_part=self._is_part,
        )
        return jax.tree.map(place, batch)

    def _remember(self, step: int, local: Array, mark: Mark | None) -> None:
        self._seen[step] = (local, mark)
        while len(self._seen) > _REMEMBERED:
            oldest = next(key for key in self._seen if key)  # step 0 stays
            del self._seen[oldest]

    def close(self) -> None:
        """Nothing is held between calls of `steps`."""

    # -- positions -------------------------------------------------------------------

    def position(self, step: int) -> dict[str, Any]:
        """Where the input stands after `step` steps, over all processes, as JSON.

        All processes call it together. `parts` holds, by process, the mark behind its
        last batch and that batch's hash.
        """
        rows = step * self.batch_size
        local, mark = self._seen.get(step, (None, None))
        if step == 0 and self._feed is not None and mark is None:
            mark = self._feed.mark
        hashed = None if local is None else input_batches.digest(local)
        parts = input_states.gather({"mark": mark, "digest": hashed})
        self._check_distinct([part["digest"] for part in parts], f"batch {step - 1}")
        return {
            "step": step,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "overlap": self.overlap,
            "rows": rows,
            "elements": rows * self.seq_len,
            "parts": parts,
        }

    def step_of(self, position: dict[str, Any]) -> int:
        """The step that begins at a saved `position`.

        Raises:
          ConfigError: the saved sizes are others; names both.
        """
        for name in ("batch_size", "seq_len", "overlap"):
            saved, now = position.get(name), getattr(self, name)
            if saved != now:
                raise ConfigError(f"{name} was {saved!r} and is now {now!r}")
        return position["step"]

    def restore(self, position: dict[str, Any]) -> None:
        """Takes the state of this process out of a saved `position`.

        Raises:
          ConfigError: it was saved by another number of processes, or by another kind
            of input, or `batch(step)` gives another batch than then.
        """
        step, parts = self.step_of(position), position.get("parts")
        if parts is None:
            raise ConfigError("the saved position is that of another kind of stream")
        if self._feed is None:
            self._check_same(step, parts)
            return
        if len(parts) != jax.process_count():
            raise ConfigError(
                f"the state of the input was saved by {len(parts)} processes and this "
                f"run has {jax.process_count()}; use {len(parts)}, or a stream of .rox "
                "data, which any number continues"
            )
        mark = parts[jax.process_index()]["mark"]
        if mark is None:
            raise ConfigError("the saved position has no state of an iterator")
        self._seen[step] = (None, mark)

    def _check_same(self, step: int, parts: list[dict[str, Any]]) -> None:
        index = jax.process_index() if self._is_part else 0
        saved = parts[index]["digest"] if index < len(parts) else None
        if step == 0 or saved is None:
            return
        now = input_batches.digest(self._local.read(step - 1)[0])
        if now not in (None, saved):
            raise ConfigError(
                f"batch({step - 1}) of the input gives other ids than when it was "
                "saved; it must be a function of the step alone, of the same data"
            )

    # -- processes -------------------------------------------------------------------

    def _agree(self) -> None:
        """Compares the first batches of all processes, once."""
        if self._agreed or jax.process_count() == 1:
            return
        hashed = input_batches.digest(self._local.first())
        found = input_states.gather([*self._local.shape, hashed])
        shapes = [tuple(entry[:2]) for entry in found]
        if len(set(shapes)) > 1:
            raise ConfigError(
                f"the processes' batches differ: {shapes} by process; all must have "
                "the same number of rows and elements."
            )
        digests = [entry[2] for entry in found]
        self._check_distinct(digests, "the first batch")
        if not self._is_part and len(set(digests)) > 1:
            raise ConfigError(
                "the processes' batches differ, while each should hold the whole "
                "batch; give Input(..., per_process=True) for a part in each."
            )
        self._agreed = True

    def _check_distinct(self, digests: list[str | None], what: str) -> None:
        seen: dict[str, int] = {}
        for process, value in enumerate(digests):
            if value is None or not self._is_part:
                continue
            if value in seen:
                raise ConfigError(
                    f"processes {seen[value]} and {process} read the same rows "
                    f"({what}). Give each its own part: shard the input by "
                    "jax.process_index() of jax.process_count(), or say "
                    "Input(..., per_process=False) to cut one batch in parts."
                )
            seen[value] = process
