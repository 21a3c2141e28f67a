"""The step compiled for each batch shape, the next one in the background.

A run in phases changes the shape of its batches. Compiling when the first batch of the
new shape arrives would stop the device for as long as that takes; here it happens on a
thread while the phase before still runs. Nothing is ever dropped or compiled twice.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging

from roxxel.data.steps import Span
from roxxel.train.step import Leaves, LeftOut, TrainStep

_Key = tuple
_DEBUGGING = ("jax_debug_nans", "jax_disable_jit")


class StepPrograms:
    """`of(batch)(leaves, batch)` with one program for each shape of batches.

    Args:
      step: what is compiled.
      leaves: the state; its shapes and shardings stay what they are.
      stream: tells overlap, dtype and sharding of its batches.
      spans: of the plan.
      compiling: a context in which the caller waits for a program.
    """

    def __init__(
        self,
        step: TrainStep,
        leaves: Leaves,
        stream: Any,
        spans: tuple[Span, ...],
        *,
        compiling: Callable[[], contextlib.AbstractContextManager] = (
            contextlib.nullcontext
        ),
    ):
        self._step = step
        self._leaves = jax.tree.map(_abstract, leaves)
        self._stream = stream
        self._spans = spans
        self._compiling = compiling
        self._is_debugging = any(getattr(jax.config, name) for name in _DEBUGGING)
        self._programs: dict[_Key, Callable] = {}
        self._coming: tuple[_Key, threading.Thread, list[BaseException]] | None = None

    def of(
        self, batch: Any, left_out: LeftOut = None
    ) -> Callable[[Leaves, Any], tuple[Leaves, dict]]:
        """The step for batches of this shape; compiles first where there is none.

        Args:
          batch: gives the shape.
          left_out: of this batch; each way has a program of its own.
        """
        if self._is_debugging:
            # Only a function under jit finds the operation, or runs without one.
            return self._step.function_without(left_out)
        key = (left_out, *_key(batch))
        program = self._programs.get(key)
        if program is None:
            with self._compiling():
                self._take_coming(key)
                program = self._programs.get(key) or self._compile(key, batch)
        return program

    def prepare_after(self, step: int) -> None:
        """Begins to compile for the span behind that of `step`, on a thread."""
        following = next((span for span in self._spans if span.start > step), None)
        if following is None or self._coming is not None:
            return
        batch = self._batch_of(following)
        key = (None, *_key(batch))
        if key in self._programs:
            return
        errors: list[BaseException] = []

        def work():
            try:
                self._compile(key, batch)
            except BaseException as err:  # raised where the program is wanted
                errors.append(err)

        # Not a daemon: the interpreter must not go while XLA compiles.
        thread = threading.Thread(target=work, name="roxxel-compile")
        self._coming = (key, thread, errors)
        thread.start()

    def _take_coming(self, key: _Key) -> None:
        if self._coming is None:
            return
        _, thread, errors = self._coming
        begin = time.perf_counter()
        thread.join()
        self._coming = None
        waited = time.perf_counter() - begin
        if waited > 0.1:
            logging.info("waited %.1f s for the next phase's program", waited)
        if errors:
            raise errors[0]

    def _compile(self, key: _Key, batch: Any) -> Callable:
        self._programs[key] = self._step.compile(self._leaves, batch, key[0])
        return self._programs[key]

    def _batch_of(self, span: Span) -> jax.ShapeDtypeStruct:
        shape = (span.batch_size, span.seq_len + self._stream.overlap)
        dtype = np.dtype(getattr(self._stream, "dtype", None) or np.int32)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._stream.sharding)


def _key(batch: Any) -> _Key:
    leaves, structure = jax.tree.flatten(batch)
    return (structure, *((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves))


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
