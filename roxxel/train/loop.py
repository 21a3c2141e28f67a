"""The training loop. Its order is a contract.

A step runs; its metrics go to the logger as device values; when due, the run evaluates,
then saves; only then is the next batch taken. A checkpoint's number is the number of
completed steps, which is also the index of the next batch.
"""

import collections
import contextlib
import json
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from roxxel import sharding
from roxxel.errors import EXIT_OK, EXIT_RESTART, ConfigError, DivergedError
from roxxel.logger import Logger
from roxxel.progress import Progress
from roxxel.train import describe
from roxxel.train.evaluation import evaluate, make_eval_step
from roxxel.train.feeds import InputEnded
from roxxel.train.step import Leaves, TrainStep, make_train_step
from roxxel.train.stop import StopRequest
from roxxel.train.timing import StepClock

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer

# Steps that may be dispatched ahead of the one whose results the host has seen. Two
# keep the device busy; more would only delay the sight of a loss that is not finite.
MAX_STEPS_AHEAD = 2

# Several processes agree on a stop only this often: it costs a wait for the device.
AGREE_EVERY_STEPS = 10

# What makes the batch of a step, of `RoxxelStream.position`; causes before effects.
SAME_ON_RESUME = (
    "seed",
    "batch_size",
    "seq_len",
    "overlap",
    "fingerprint",
    "epoch",
    "rows_in_epoch",
)

SUMMARY_FILE = "summary.json"

# Steps that were dispatched and whose results the host has not looked at.
_Unseen = collections.deque[tuple[int, dict[str, jax.Array]]]


class Run:
    """What is open while a trainer runs."""

    def __init__(
        self,
        spec: "Trainer",
        workdir: pathlib.Path,
        logger: Logger,
        stop: StopRequest,
        stack: contextlib.ExitStack,
        run_info: dict[str, Any],
    ):
        self.spec, self.workdir, self.logger, self.stop = spec, workdir, logger, stop
        self.run_info = run_info
        self.mesh = sharding.make_mesh(spec.mesh_axes)
        self.stream = spec.stream.place(self.mesh, sharding.batch_sharding(self.mesh))
        if spec.evaluation is not None:
            spec.evaluation.check_divides(self.mesh)
        self.model, self.optimizer = sharding.create_on(self.mesh, self._create)
        self.checkpointer = stack.enter_context(
            spec.checkpointer(
                checkpoint_path=workdir / "checkpoints",
                model=self.model,
                optimizer=self.optimizer,
            )
        )
        self.clock = StepClock(self.stream.batch_size * self.stream.seq_len)
        self.last_step = min(spec.total_steps, spec.stop_after or spec.total_steps)
        self.last_eval: dict[str, float] = {}
        self.saved_step = -1
        self.done = 0

    def _create(self) -> tuple[nnx.Module, nnx.Optimizer]:
        model = self.spec.model(rngs=nnx.Rngs(self.spec.seed))
        return model, nnx.Optimizer(model, self.spec.optimizer, wrt=nnx.Param)

    def run(self) -> int:
        """Trains what is left, and finishes; the exit code."""
        start = self._restore()
        self._describe(start)
        if start >= self.last_step and not self._unfinished():
            self.logger.log_message(
                f"Nothing left to train: {start} of {self.last_step} steps are done. "
                f"Results are in {self.workdir}."
            )
            return EXIT_OK
        self.train_step: TrainStep = make_train_step(
            self.model, self.optimizer, self.spec.loss, schedule=self.spec.schedule
        )
        self.eval_step = make_eval_step(self.model, self.spec.loss)
        self.leaves: Leaves = self.train_step.leaves(self.model, self.optimizer)
        self._loop(start)
        if self.done < self.last_step:
            return self._stopped()
        return self._finish()

    # -- before the loop ---------------------------------------------------------

    def _restore(self) -> int:
        start = self.checkpointer.restore()
        saved = self.checkpointer.read_position(start) if start else None
        if saved is not None:
            self._seek(saved, start)
        self.done, self.saved_step = start, start or -1
        self.logger.rewind(start)
        return start

    def _seek(self, saved: dict[str, Any], start: int) -> None:
        """Brings the stream to a saved position, or refuses it."""
        _check_position(saved, self.stream, start, self.workdir)
        if hasattr(self.stream, "restore"):
            self.stream.restore(saved)

    def _describe(self, start: int) -> None:
        total = self.spec.total_steps
        self.logger.log_message(f"Work directory {self.workdir}")
        for line in describe.plan_lines(self.model, self.stream, total_steps=total):
            self.logger.log_message(line)
        if start:
            self.logger.log_message(f"Resuming after step {start} of {total}")
        record = describe.run_record(
            self.model, self.stream, start=start, total_steps=total
        )
        self._write("run.json", _json(self.run_info | record))

    # -- the loop ----------------------------------------------------------------

    def _loop(self, start: int) -> None:
        unseen: _Unseen = collections.deque()
        with (
            contextlib.closing(self.stream.steps(start, self.last_step)) as batches,
            self._progress(start) as progress,
        ):
            while self.done < self.last_step and not self._stop_agreed():
                try:
                    batch = next(batches)
                except InputEnded:
                    self._see_all(unseen, progress)
                    self._save_alone()
                    raise
                self.leaves, metrics = self.train_step.run(self.leaves, batch)
                self.done += 1
                unseen.append((self.done, metrics))
                if len(unseen) > MAX_STEPS_AHEAD:
                    self._see(*unseen.popleft(), progress)
                if self._evaluation_due() or self._save_due():
                    self._see_all(unseen, progress)
                    self._evaluate_and_save()
            self._see_all(unseen, progress)

    def _see_all(self, unseen: _Unseen, progress: Progress | None) -> None:
        while unseen:
            self._see(*unseen.popleft(), progress)

    def _see(
        self, step: int, metrics: dict[str, Any], progress: Progress | None
    ) -> None:
        """Waits for a step that was dispatched some steps ago, and judges it."""
        finite = bool(np.asarray(metrics.pop("finite")))
        self.clock.tick()
        rate = self.clock.tokens_per_sec
        if rate:
            metrics["tokens_per_sec"] = round(rate)
        self.logger.log_metrics_summary(step, **metrics)
        if not finite:
            self._diverged(step, float(np.asarray(metrics["loss"])))
        if progress is not None:
            loss = float(np.asarray(metrics["loss"]))
            progress.set(step, note=f"loss {loss:.4f}  {rate:,.0f} tokens/s")

    def _progress(self, start: int) -> contextlib.AbstractContextManager:
        # Off a terminal the logger's own lines are the progress.
        if jax.process_index() or not sys.stderr.isatty():
            return contextlib.nullcontext()
        return contextlib.closing(
            Progress(self.last_step, label="train", unit="steps", initial=start)
        )

    def _stop_agreed(self) -> bool:
        """Whether to stop before the next step; all processes give the same answer."""
        if jax.process_count() == 1:
            return bool(self.stop)
        if self.done % AGREE_EVERY_STEPS:
            return False
        from jax.experimental import multihost_utils

        asked = multihost_utils.process_allgather(np.asarray(bool(self.stop)))
        return bool(np.any(asked))

    # -- evaluation and checkpoints ----------------------------------------------

    def _evaluation_due(self) -> bool:
        evaluation = self.spec.evaluation
        if evaluation is None:
            return False
        every = evaluation.every
        at_end = self.done == self.spec.total_steps
        return at_end or bool(every and self.done % every == 0)

    def _save_due(self) -> bool:
        return self.done % self.spec.save_every == 0 or self.done == self.last_step

    def _evaluate_and_save(self) -> None:
        metrics = {}
        if self._evaluation_due():
            with self.clock.phase("evaluation"):
                metrics = self._evaluate()
        if self._save_due():
            with self.clock.phase("save"):
                self._save(metrics)

    def _evaluate(self) -> dict[str, float]:
        assert self.spec.evaluation is not None
        count = len(jax.tree.leaves(nnx.state(self.model)))
        self.last_eval = evaluate(
            self.spec.evaluation, self.eval_step, self.leaves[:count], self.mesh
        )
        self.logger.log_metrics_summary(self.done, **self.last_eval)
        return self.last_eval

    def _save(self, metrics: dict[str, float]) -> None:
        if self.saved_step == self.done:
            return
        # Rows first: a checkpoint must not be ahead of the table that it continues.
        self.logger.flush()
        self.train_step.write_back(self.leaves, self.model, self.optimizer)
        self.checkpointer.save(
            self.done, metrics, position=self.stream.position(self.done)
        )
        self.saved_step = self.done

    def _save_alone(self) -> None:
        """Keeps what is done when only this process may know that it cannot go on."""
        if self.done and jax.process_count() == 1:
            self._save({})
            self.checkpointer.wait()

    # -- ways to end ---------------------------------------------------------------

    def _diverged(self, step: int, loss: float) -> None:
        # The step left the state as it was before; so did those dispatched after it.
        self.done = step - 1
        self._save({})
        self.checkpointer.wait()
        self._check_vocabulary(step - 1)
        raise DivergedError(
            f"step {step} (batch {step - 1}) is not finite: loss {loss}. The state "
            f"after step {step - 1} is kept in {self.workdir / 'checkpoints'}. Lower "
            "the learning rate or look at that batch; do not just start again."
        )

    def _check_vocabulary(self, step: int) -> None:
        """Tells ids that the model does not have from a real divergence."""
        size = getattr(self.model, "vocab_size", None)
        if size is None or jax.process_count() > 1:
            return
        ids = np.asarray(self.stream.batch(step))
        if ids.min() < 0 or ids.max() >= size:
            raise ConfigError(
                f"batch {step} holds ids from {ids.min()} to {ids.max()}, the model "
                f"has vocab_size {size}; set vocab_size above the largest id."
            )

    def _stopped(self) -> int:
        if self.done:
            self._save({})
        self.checkpointer.wait()
        self.logger.log_message(
            f"Stopped by {self.stop.signal_name or 'another process'} after step "
            f"{self.done}; the same command continues from there."
        )
        return EXIT_RESTART

    def _unfinished(self) -> bool:
        """Whether all steps are done but a kill came before the results."""
        if self.done != self.spec.total_steps:
            return False
        try:
            summary = json.loads((self.workdir / SUMMARY_FILE).read_text())
            return summary["steps"] != self.done
        except (OSError, ValueError, KeyError, TypeError):
            return True

    def _finish(self) -> int:
        if self.done < self.spec.total_steps:
            self.checkpointer.wait()
            self.logger.log_message(
                f"Stopped after step {self.done} as asked (stop_after)."
            )
            return EXIT_OK
        if self.spec.evaluation is not None and not self.last_eval:
            self._evaluate()
        self.train_step.write_back(self.leaves, self.model, self.optimizer)
        self._sample()
        self.checkpointer.wait()
        summary = {"steps": self.done, **self.last_eval, "seconds": self.clock.seconds}
        self._write(SUMMARY_FILE, _json(summary))
        self.logger.log_message(describe.results_line(self.done, self.last_eval))
        return EXIT_OK

    def _sample(self) -> None:
        if self.spec.sample is None or jax.process_count() > 1:
            return
        with self.clock.phase("sample"):
            text = self.spec.sample.text(self.model)
        self._write("sample.txt", text)
        self.logger.log_message("Sample:\n%s", text)

    def _write(self, name: str, text: str) -> None:
        if jax.process_index() == 0:
            part = self.workdir / f".{name}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(self.workdir / name)


def _check_position(
    saved: dict[str, Any], stream: Any, step: int, workdir: pathlib.Path
) -> None:
    """Refuses to continue where the saved step would name other batches.

    The settings are compared by name first, for all that changed to be named at once.
    """
    changed = [
        f"{key} was {saved[key]!r} and is now {now!r}"
        for key, now in stream.position(step).items()
        if key in SAME_ON_RESUME and key in saved and saved[key] != now
    ]
    try:
        if not changed and stream.step_of(saved) != step:
            changed = [f"step {step} begins elsewhere"]
    except ConfigError as err:
        changed = [str(err).rstrip(".")]
    if changed:
        raise ConfigError(
            f"{workdir} holds a run whose batches were others: {'; '.join(changed)}. "
            "Set it back, or choose another --workdir."
        )


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2, default=str) + "\n"
