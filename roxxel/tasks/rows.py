"""Rows of a task: an endless stream to train on, and a set to be judged by."""

from typing import Protocol

import numpy as np

from roxxel.errors import ConfigError

_CHUNK_ROWS = 64  # rows of a set that one generator makes
_TRAINING, _HELD_OUT = 1, 2  # keys of generators that have nothing in common


class Task(Protocol):
    """How rows are made."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        ...

    @property
    def seq_len(self) -> int:
        """Predictions of a row, answers and others."""
        ...

    @property
    def num_answers(self) -> int:
        """Targets of a row that count."""
        ...

    def rows(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens `[count, seq_len + 1]` int32 and a bool mask, True for answers."""
        ...


class TaskStream:
    """Batches to train on: `Trainer(stream=TaskStream(task, batch_size=64))`.

    Batch `step` is a function of the seed and the step alone, so a run resumes on the
    batches that it would have seen.

    Args:
      task: makes the rows.
      batch_size: rows of the global batch.
      seed: of the stream; it shares no row generator with any `TaskSet`.
    """

    def __init__(self, task: Task, batch_size: int, seed: int = 0):
        positive("task stream", batch_size=batch_size)
        self.task, self.batch_size, self.seed = task, batch_size, seed
        self.seq_len = task.seq_len

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """`tokens` and `loss_mask` of a step, both `[batch_size, seq_len + 1]`."""
        rng = np.random.default_rng([self.seed, _TRAINING, step])
        tokens, mask = self.task.rows(rng, self.batch_size)
        return {"tokens": tokens, "loss_mask": mask}


class TaskSet:
    """A fixed number of rows to be judged by: `Evaluation(dataset=TaskSet(task))`.

    Row i does not depend on how many rows are read at once.

    Args:
      task: makes the rows.
      num_rows: of the set.
      seed: of the set.
    """

    def __init__(self, task: Task, num_rows: int = 512, seed: int = 0):
        positive("task set", num_rows=num_rows)
        self.task, self.num_rows, self.seed = task, num_rows, seed
        self.seq_len = task.seq_len

    @property
    def num_targets(self) -> int:
        """Answers in all rows."""
        return self.num_rows * self.task.num_answers

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [start, stop): tokens int32 and a float32 mask, 1 for answers."""
        first, last = start // _CHUNK_ROWS, -(-stop // _CHUNK_ROWS)
        chunks = [self._chunk(index) for index in range(first, max(last, first + 1))]
        inside = slice(start - first * _CHUNK_ROWS, stop - first * _CHUNK_ROWS)
        tokens, mask = (np.concatenate(part) for part in zip(*chunks, strict=True))
        return tokens[inside], mask[inside].astype(np.float32)

    def _chunk(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.seed, _HELD_OUT, index])
        return self.task.rows(rng, _CHUNK_ROWS)


def positive(owner: str, **sizes: int) -> None:
    """Raises a ConfigError where one of the named sizes is less than 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ConfigError(f"{owner}: {name} must be at least 1, got {value}.")


def distinct(
    rng: np.random.Generator, population: int, shape: tuple[int, int]
) -> np.ndarray:
    """Rows of numbers below `population`, none twice in a row, in random order."""
    return rng.random((shape[0], population)).argsort(axis=1)[:, : shape[1]]
