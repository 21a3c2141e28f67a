"""What all streams share: iteration over steps, made ahead on a thread."""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Self

from roxxel.data import steps
from roxxel.data.prefetch import Prefetcher
from roxxel.errors import ConfigError

_ENDLESS = 1 << 62


class StepStream:
    """Batches by their step; iterating covers [start_step, end) once.

    A subclass gives `spans`, `_put_on` for placing itself, and `_runner`, whose result
    makes the batches of steps [start, stop) and does not hold the stream, so that the
    stream can be collected while a thread runs.
    """

    def __init__(self, *, start_step: int, end_step: int | None, prefetch: int | None):
        if prefetch is not None:
            steps.not_negative("prefetch", prefetch)
        self._given_prefetch = prefetch
        self._next_step = self._start_step = start_step
        self._end_step = end_step
        self._iterator: Prefetcher | Generator | None = None
        self._is_closed = False

    def spans(self) -> tuple[steps.Span, ...]:
        """The steps of one batch shape each, one span after the other."""
        raise AssertionError("spans belongs to the subclass")

    def _runner(self) -> Callable[[int, int], Generator]:
        raise AssertionError("_runner belongs to the subclass")

    def _put_on(self, mesh, data_sharding) -> None:
        raise AssertionError("_put_on belongs to the subclass")

    @property
    def sharding(self) -> Any:
        """The jax sharding of the batches, None for numpy batches."""
        return None

    @property
    def start_step(self) -> int:
        """First step of the iteration."""
        return self._start_step

    @property
    def planned_steps(self) -> int | None:
        """Steps that the stream itself fixes; None: as many as are asked for."""
        return self.spans()[-1].stop

    @property
    def prefetch(self) -> int:
        """Batches made ahead: what was given, else 2 on devices, none on the host."""
        if self._given_prefetch is None:
            return 2 if self.sharding is not None else 0
        return self._given_prefetch

    def tokens(self, step: int) -> int:
        """Elements predicted in the first `step` steps."""
        return steps.tokens_before(self.spans(), self._checked(step))

    def steps_for(self, tokens: int) -> int:
        """The fewest steps that predict `tokens` elements.

        Raises:
            ConfigError: The stream ends before.
        """
        return steps.steps_for(self.spans(), steps.not_negative("tokens", tokens))

    def batch(self, step: int):
        """The batch of one step, also behind the end of the iteration."""
        step, planned = steps.not_negative("step", step), self.planned_steps
        if planned is not None and step >= planned:
            raise ConfigError(
                f"step {step} lies behind the end of the stream, whose plan has steps 0"
                f" to {planned - 1}."
            )
        return next(self._runner()(step, step + 1))

    def steps(self, start: int, stop: int) -> Prefetcher | Generator:
        """The batches of steps [start, stop) made ahead; an iterator with `close`."""
        start, stop = self._checked(start, "start"), self._checked(stop, "stop")
        run = self._runner()(start, stop)
        return Prefetcher(run, self.prefetch) if self.prefetch else run

    def place(self, mesh=None, data_sharding=None) -> Self:
        """The same stream with batches on `mesh`; all devices if none is given.

        It starts where this one stands.

        Raises:
            ConfigError: The batch does not divide over the devices.
        """
        if mesh is None and data_sharding is None:
            from roxxel.data import placement

            mesh = placement.all_devices()
        new = copy.copy(self)
        new._start_step = self._next_step
        new._iterator, new._is_closed = None, False
        new._put_on(mesh, data_sharding)
        return new

    def close(self) -> None:
        """Ends the iteration and joins its thread; batches stay as they are."""
        self._is_closed = True
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def __len__(self) -> int:
        if self._end_step is None:
            raise TypeError("the stream has no end, and so no len()")
        return self._end_step - self._next_step

    def __iter__(self) -> Self:
        return self

    def __next__(self):
        end = self._end_step
        if self._is_closed or (end is not None and self._next_step >= end):
            self.close()
            raise StopIteration
        if self._iterator is None:
            stop = _ENDLESS if end is None else end
            self._iterator = self.steps(self._next_step, stop)
        batch = next(self._iterator)
        self._next_step += 1
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_iterator": None}

    def _checked(self, step: int, name: str = "step") -> int:
        """`step`, which is not behind the end that the stream itself fixes."""
        step = steps.not_negative(name, step)
        planned = self.planned_steps
        if planned is not None and step > planned:
            raise ConfigError(
                f"{name} {step} lies behind the end of the stream, which is planned for"
                f" {planned} steps."
            )
        return step


def check_same(saved: Mapping, now: Mapping, names: Sequence[str]) -> None:
    """Refuses a saved position that names other batches.

    Raises:
        ConfigError: Names what was saved and what is now.
    """
    for name in names:
        if name not in saved:
            raise ConfigError(
                f"the saved position has no {name!r}: it is of another kind of stream."
            )
        if saved[name] != now[name]:
            raise ConfigError(
                f"{name} was {saved[name]!r} when the position was saved and is"
                f" {now[name]!r} now; resume with the saved one or start anew."
            )
