"""In-context tasks: sets to evaluate on and streams to train on, by name.

`--fdl.evaluation=configs.tasks.suite()` evaluates any run on all of them, zero-shot.
"""

import fiddle as fdl

from configs import tags
from roxxel import tasks
from roxxel.budget import Length
from roxxel.tasks import suite as suite_lib
from roxxel.train.evaluation import Evaluation
from roxxel.train.inputs import Input


def task(name: str, length: int = 64, vocab_size: int = 64) -> fdl.Config[tasks.Task]:
    """A task by name, see `roxxel.tasks.suite.NAMES`."""
    node = fdl.Config(suite_lib.make, name=name, length=length, vocab_size=vocab_size)
    fdl.add_tag(node, "length", tags.SeqLen)
    return node


def stream(node: fdl.Config, batch_size: int = 32, seed: int = 0) -> fdl.Config[Input]:
    """Batches of a task to train on; only answers count."""
    source = fdl.Config(tasks.TaskStream, task=node, batch_size=batch_size, seed=seed)
    fdl.add_tag(source, "batch_size", tags.BatchSize)
    fdl.add_tag(source, "seed", tags.Seed)
    return fdl.Config(Input, source=source)


def held_out(
    node: fdl.Config,
    num_rows: int = 512,
    batch_size: int = 32,
    every: Length | None = None,
    name: str = "eval",
) -> fdl.Config[Evaluation]:
    """A fixed set of a task's rows; accuracy is over answers."""
    return fdl.Config(
        Evaluation,
        dataset=fdl.Config(tasks.TaskSet, task=node, num_rows=num_rows),
        batch_size=batch_size,
        every=every,
        name=name,
    )


def suite(
    length: int = 64, vocab_size: int = 64, num_rows: int = 512
) -> dict[str, Evaluation]:
    """A set of every task, by name."""
    return {
        name: fdl.build(held_out(task(name, length, vocab_size), num_rows))
        for name in suite_lib.NAMES
    }
