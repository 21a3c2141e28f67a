"""Generated tasks that ask a model to use what stands in its context.

They need no data: rows follow from a seed. State space models and Transformers are
compared on them, because they tell whether a model can copy from, and look up in, what
it has just read.

    copying = tasks.Copying(vocab_size=32, length=16)
    stream = tasks.TaskStream(copying, batch_size=64, seed=0)     # Trainer.stream
    held_out = Evaluation(dataset=tasks.TaskSet(copying), name="copying")

Only answers count as targets; the rest of a row is context. Numpy alone is needed.
"""

from roxxel.tasks.copying import Copying, SelectiveCopying
from roxxel.tasks.recall import AssociativeRecall, Induction
from roxxel.tasks.rows import Task, TaskSet, TaskStream

__all__ = [
    "AssociativeRecall",
    "Copying",
    "Induction",
    "SelectiveCopying",
    "Task",
    "TaskSet",
    "TaskStream",
]
