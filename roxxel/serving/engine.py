"""Many requests on one decode loop: rows come and go while the others go on.

One thread owns the device. The batch has a fixed number of rows; a request waits for a
free one, its prompt is read by itself and its state put into the row. So programs are
compiled once, whatever comes in. A row's text does not depend on the others.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from roxxel.generation import decoding, sampling
from roxxel.generation.text import Continuation

_CHUNK_SECS = 0.03  # rows get text, and new ones get in, that often
_GREEDY = sampling.Kinds(draws=False, sorts=False, penalises=False)
_ALL = sampling.Kinds(draws=True, sorts=True, penalises=True)


class Full(Exception):
    """More requests wait than may."""


class Row:
    """One continuation on its way.

    Args:
      ids: of the prompt.
      settings: how tokens are drawn.
      continuation: takes the tokens.
      emit: called from the engine's thread with new text and, at the end, the reason
        ("stop", "length" or "error"; None before).
    """

    def __init__(
        self,
        ids: np.ndarray,
        settings: sampling.Sampling,
        continuation: Continuation,
        emit: Callable[[str, str | None], None],
    ):
        self.ids, self.settings = ids, settings
        self.continuation, self._emit = continuation, emit
        self.cancelled = False

    def feed(self, ids: Sequence[int]) -> None:
        """Takes tokens and passes their text on."""
        text = self.continuation.feed(ids)
        if text or self.continuation.finish_reason:
            self._emit(text, self.continuation.finish_reason)

    def fail(self) -> None:
        """Tells that it will not go on."""
        self.continuation.finish_reason = "error"
        self._emit("", "error")

    @property
    def is_over(self) -> bool:
        """Whether it needs no more tokens."""
        return self.cancelled or self.continuation.finish_reason is not None


class Engine:
    """The decode loop of a model.

    Args:
      decoder: of the model.
      max_rows: continued at once.
      max_length: tokens of prompt and continuation at most.
      max_queue: rows that may wait.
    """

    def __init__(
        self,
        decoder: decoding.Decoder,
        *,
        max_rows: int,
        max_length: int,
        max_queue: int,
    ):
        self.max_rows, self.max_length, self.max_queue = max_rows, max_length, max_queue
        self._decoder = decoder
        self._slots = decoding.slots_for(max_length, 0)
        self._waiting: collections.deque[Row] = collections.deque()
        self._rows: list[Row | None] = [None] * max_rows
        self._news = threading.Condition()
        self._closing = False
        self._steps = 1
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="decode", daemon=True)

    def start(self) -> None:
        """Takes the memory of all rows and starts the thread.

        Raises:
          Exception: what the device says where the memory is not there.
        """
        nobody = [sampling.Sampling(temperature=0)] * self.max_rows
        self._knobs = sampling.knobs(nobody, self._decoder.vocab_size)
        self._carry = self._decoder.waiting(self.max_rows, self._slots)
        self._thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Puts rows into the queue, all or none.

        Raises:
          Full: that many may not wait.
        """
        with self._news:
            if self.error is not None or self._closing:
                raise self.error or RuntimeError("the engine is closed.")
            if len(self._waiting) + len(rows) > self.max_queue:
                raise Full
            self._waiting.extend(rows)
            self._news.notify()

    @property
    def num_ids(self) -> int:
        """Ids that are tokens; greater ones are nothing to the tokenizer or model."""
        return self._decoder.num_ids

    @property
    def num_rows(self) -> int:
        """Rows that are continued now."""
        return sum(row is not None for row in self._rows)

    def close(self) -> None:
        """Ends the thread; what is on its way ends with "error"."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join()

    # -- the thread ----------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._loop()
        except Exception as err:
            logging.getLogger("roxxel.serving").exception("the decode loop failed")
            self.error = err
        finally:
            with self._news:
                self._closing = True
                left = [row for row in (*self._rows, *self._waiting) if row is not None]
                self._waiting.clear()
            for row in left:
                if not row.is_over:
                    row.fail()

    def _loop(self) -> None:
        while self._awaited():
            for place, row in enumerate(self._rows):
                if row is not None and row.is_over:
                    self._rows[place] = None
            self._admit()
            if any(self._rows):
                self._advance()

    def _awaited(self) -> bool:
        """Waits until there is something to do; False at the end."""
        with self._news:
            while not (self._closing or self._waiting or any(self._rows)):
                self._news.wait()
            return not self._closing

    def _admit(self) -> None:
        free = [place for place, row in enumerate(self._rows) if row is None]
        for place in free:
            with self._news:
                row = self._waiting.popleft() if self._waiting else None
            if row is None:
                return
            if not row.is_over:
                self._begin(row, place)

    def _begin(self, row: Row, place: int) -> None:
        self._rows[place] = row
        knobs = sampling.knobs([row.settings], self._decoder.vocab_size)
        own = self._decoder.start(
            [row.ids], knobs, _kinds([row]), slots=self._slots, tracks=True
        )
        self._carry = self._decoder.joined(self._carry, own, place)
        for all_rows, value in zip(self._knobs, knobs, strict=True):
            all_rows[place] = value[0]
        row.feed([int(own.tokens_B[0])])

    def _advance(self) -> None:
        active = [row for row in self._rows if row is not None]
        began = time.monotonic()
        tokens_SB, self._carry = self._decoder.run(
            self._carry, self._knobs, _kinds(active), self._steps
        )
        tokens_SB = np.asarray(tokens_SB)[: self._steps]
        for place, row in enumerate(self._rows):
            if row is not None and not row.is_over:
                row.feed(tokens_SB[:, place].tolist())
        is_fast = time.monotonic() - began < _CHUNK_SECS / 2
        more = self._steps * 2 if is_fast else self._steps // 2
        self._steps = min(max(more, 1), decoding.CHUNK)


def _kinds(rows: Sequence[Row]) -> sampling.Kinds:
    """One of two programs, so that no request waits for another to be compiled."""
    needed = sampling.Kinds.of([row.settings for row in rows])
    return _ALL if any(needed) else _GREEDY
