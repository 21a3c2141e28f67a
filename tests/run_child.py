"""One process of a small run that is disturbed: `run_child.py WORKDIR JSON`.

The JSON says what happens where: `process` (of all, by default), `at` one of `POINTS`,
`action` a signal's number, "raise", "sleep" or "kill"; in a program also a function.
"""

import json
import os
import pathlib
import signal
import sys
import time

import jax
from flax import nnx

from roxxel import distributed, errors, optim
from roxxel.checkpoint import Checkpointer
from roxxel.dataset import Roxxel
from roxxel.logger import Logger
from roxxel.models.losses import next_token_loss
from roxxel.train.evaluation import Evaluation
from roxxel.train.sample import Sample
from roxxel.train.trainer import Trainer
from roxxel.train.watchdog import Deadlines
from tests.tiny import Bigram

STEPS, SEQ_LEN, BATCH_SIZE = 12, 8, 8
POINTS = ("start", "compile", "data", "step", "evaluation", "save", "sample")


class Disturbance:
    """Does its action once, at its point, in its process."""

    def __init__(self, process=None, at="data", action=signal.SIGTERM, step=6):
        self.process, self.at, self.action, self.step = process, at, action, step
        self.is_over = False

    def pass_by(self, point: str) -> None:
        here = self.process in (None, jax.process_index())
        if self.is_over or point != self.at or not here:
            return
        self.is_over = True
        if callable(self.action):
            self.action()
            return
        if self.action == "raise":
            raise OSError(f"broken in process {jax.process_index()}")
        if self.action == "sleep":
            time.sleep(600)
        number = signal.SIGKILL if self.action == "kill" else self.action
        os.kill(os.getpid(), number)
        if point == "sample":  # until all agreed to stop
            time.sleep(60)
        if point == "data":  # all wait for long, one alone not
            time.sleep(60 if self.process is None else 1)


class Stream:
    """A stream that passes the point "data" before one of its batches."""

    def __init__(self, stream, disturbance):
        self._stream, self._disturbance = stream, disturbance

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def place(self, *args, **kwargs):
        return Stream(self._stream.place(*args, **kwargs), self._disturbance)

    def steps(self, start, stop):
        for step, batch in enumerate(self._stream.steps(start, stop), start):
            if step == self._disturbance.step:
                self._disturbance.pass_by("data")
            yield batch


def optimizer(model):
    """As that of the run, to restore it."""
    tx = optim.adamw(schedule=lambda count: 0.0)
    return nnx.Optimizer(model, tx, wrt=nnx.Param)


def train(workdir, disturbance, **options):
    dataset = Roxxel(workdir.parent / "train_*.rox")
    stream = dataset.stream(SEQ_LEN, BATCH_SIZE, seed=3, overlap=1)
    schedule = optim.warmup_cosine(peak=0.05, total_steps=STEPS)

    class Data:
        """Passes the point "evaluation" in the second batch of the second one."""

        def __init__(self):
            self.reads = 0

        def __getattr__(self, name):
            return getattr(dataset, name)

        def elements(self, start, stop):
            self.reads += start == 20 * SEQ_LEN
            if self.reads == 2:
                disturbance.pass_by("evaluation")
            return dataset.elements(start, stop)

    class Saving(Checkpointer):
        def __init__(self, *args, **kwargs):
            disturbance.pass_by("start")
            super().__init__(*args, **kwargs)

        def save(self, step, *args, **kwargs):
            done = super().save(step, *args, **kwargs)
            disturbance.pass_by("save")
            return done

    class Sampling(Sample):
        def text(self, model, data=None):
            disturbance.pass_by("sample")
            return "text"

    def loss(model, tokens, mask=None):
        disturbance.pass_by("compile")  # while it is traced
        return next_token_loss(model, tokens, mask)

    Watched.disturbance = disturbance
    trainer = Trainer(
        logger=Watched,
        model=Bigram,
        optimizer=optim.adamw(schedule=schedule),
        schedule=schedule,
        stream=Stream(stream, disturbance),
        total_steps=STEPS,
        loss=loss,
        evaluation=Evaluation(dataset=Data(), seq_len=SEQ_LEN, batch_size=16, every=4),
        sample=Sampling(prompt="\x01\x02", num_tokens=4),
        checkpointer=Saving,
        save_every=5,
        **options,
    )
    return trainer.run(workdir)


class Watched(Logger):
    """Passes the point "step" once a step was seen."""

    disturbance: Disturbance

    def log_metrics_summary(self, step, *args, **kwargs):
        super().log_metrics_summary(step, *args, **kwargs)
        if step == self.disturbance.step:
            self.disturbance.pass_by("step")


def main(workdir, told):
    distributed.initialize()
    jax.config.update("jax_num_cpu_devices", 2)
    given = json.loads(told)
    deadlines = Deadlines(**given.pop("deadlines", {}))
    try:
        code = train(workdir, Disturbance(**given), deadlines=deadlines)
    except errors.ConfigError as err:
        sys.stderr.write(f"{err}\n")
        code = errors.EXIT_CONFIG
    sys.exit(code)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
