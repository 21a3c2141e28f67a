"""A run that leaves its evaluation to a follower, and waits for it now and then."""

import pathlib
import time

import fiddle as fdl
import numpy as np

import roxxel
from roxxel import Roxxel, optim
from roxxel.checkpoint import Checkpointer
from roxxel.train.evaluation import Evaluation
from roxxel.train.inputs import Input
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram

SAVE_EVERY = 2
_LONGEST_WAIT_SECS = 120


class Sized(Bigram):
    """Tells its vocabulary, as language models do."""

    vocab_size = 16


class Paced:
    """Batches of one id; each but the first waits for the evaluations before it.

    Without `results` it waits for nothing.
    """

    def __init__(self, results: str | None = None):
        self.results = results

    def batch(self, step: int) -> np.ndarray:
        wanted = step // SAVE_EVERY
        end = time.monotonic() + _LONGEST_WAIT_SECS
        while self.results and step % SAVE_EVERY == 0 and wanted:
            if count(pathlib.Path(self.results)) >= wanted:
                break
            if time.monotonic() > end:
                raise TimeoutError(f"no evaluation before batch {step}")
            time.sleep(0.02)
        return np.full((8, 9), 3, np.int32)


def count(path: pathlib.Path) -> int:
    """Lines of a file; 0 where there is none."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def held_out(path: str = "held_out.rox") -> Roxxel:
    """What has nothing to do with the batches: its loss only grows."""
    ids = np.random.default_rng(1).integers(0, 16, 1003).astype(np.uint8)
    return Roxxel(path).write([ids], mode="skip")


@roxxel.experiment
def followed(steps: int = 10, results: str | None = None) -> fdl.Config[Trainer]:
    """Overfits from the first step on; the best checkpoint is the first."""
    schedule = fdl.Config(optim.warmup_cosine, peak=0.3, total_steps=steps)
    return fdl.Config(
        Trainer,
        model=fdl.Partial(Sized),
        optimizer=fdl.Config(optim.adamw, schedule=schedule),
        schedule=schedule,
        stream=fdl.Config(Input, source=fdl.Config(Paced, results=results), prefetch=0),
        total_steps=steps,
        evaluation={
            "main": fdl.Config(
                Evaluation,
                dataset=fdl.Config(held_out),
                seq_len=24,
                by_follower=True,
            )
        },
        best="main_loss",
        checkpointer=fdl.Partial(Checkpointer, max_to_keep=1),
        logger=fdl.Partial(roxxel.Logger, console=False),
        save_every=SAVE_EVERY,
    )
