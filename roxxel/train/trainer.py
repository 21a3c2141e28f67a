"""The training loop. Its order is a contract.

A step runs; its metrics go to the logger as device values; when due, the run evaluates,
then saves; only then is the next batch taken. A checkpoint's number is the number of
completed steps, which is also the index of the next batch.
"""

import collections
import contextlib
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from roxxel import optim, sharding
from roxxel.checkpoint import Checkpointer
from roxxel.errors import (
    EXIT_OK,
    EXIT_RESTART,
    ConfigError,
    DivergedError,
)
from roxxel.logger import Logger
from roxxel.models.losses import next_token_loss
from roxxel.progress import Progress
from roxxel.train.evaluation import Evaluation, evaluate, make_eval_step
from roxxel.train.sample import Sample
from roxxel.train.step import Leaves, LossFn, TrainStep, make_train_step
from roxxel.train.stop import StopRequest
from roxxel.train.timing import StepClock

# Steps that may be dispatched ahead of the one whose results the host has seen. Two
# keep the device busy; more would only delay the sight of a loss that is not finite.
MAX_STEPS_AHEAD = 2

# What makes the batch of a step, of `RoxxelStream.position`.
SAME_ON_RESUME = ("seed", "batch_size", "seq_len", "overlap", "fingerprint")

# Steps that were dispatched and whose results the host has not looked at.
_Unseen = collections.deque[tuple[int, dict[str, jax.Array]]]


@dataclasses.dataclass(kw_only=True)
class Trainer:
    """Trains, evaluates, saves, resumes and samples one language model.

    Attributes:
      model: makes the NNX module when called with `rngs=`.
      optimizer: an Optax transformation.
      stream: a `roxxel.RoxxelStream` with `overlap=1`; its batches are
        `[batch_size, seq_len + 1]` int32.
      total_steps: optimizer steps of the whole run; the schedule's horizon.
      schedule: for the `learning_rate` metric.
      loss: `(model, batch, loss_mask=None) -> (mean loss, counted targets)`.
      evaluation: the held-out set, or None.
      sample: what is generated at the end, or None.
      checkpointer: makes the checkpointer when called with path, model, optimizer.
      logger: makes the logger when called with `log_dir=`.
      save_every: steps between checkpoints; one more comes at the end.
      mesh_axes: sizes by axis name; -1 takes what the others leave.
      stop_after: stop once this many steps are completed, with the schedule unchanged.
      seed: of the parameters.
    """

    model: Callable[..., nnx.Module]
    optimizer: optax.GradientTransformation
    stream: Any
    total_steps: int
    schedule: optax.Schedule | None = None
    loss: LossFn = next_token_loss
    evaluation: Evaluation | None = None
    sample: Sample | None = None
    checkpointer: Callable[..., Checkpointer] = Checkpointer
    logger: Callable[..., Logger] = Logger
    save_every: int = 500
    mesh_axes: dict[str, int] = dataclasses.field(default_factory=lambda: {"data": -1})
    stop_after: int | None = None
    seed: int = 0

    def __post_init__(self):
        for name in ("total_steps", "save_every", "stop_after"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"trainer: {name} must be positive, got {value}.")
        if self.stream.overlap != 1:
            raise ConfigError(
                "trainer: the stream must have overlap=1 (inputs and their successors),"
                f" got {self.stream.overlap}."
            )

    def run(self, workdir: pathlib.Path, run_info: dict[str, Any] | None = None) -> int:
        """Runs to the end, or to a stop that was asked for; returns the exit code.

        Raises:
          ConfigError: the work directory belongs to a run at another position.
          DivergedError: a loss or gradient is not finite.
        """
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(StopRequest())
            logger = stack.enter_context(self.logger(log_dir=workdir))
            return _Run(self, workdir, logger, stop, stack, run_info or {}).run()


class _Run:
    """What is open while a trainer runs."""

    def __init__(
        self,
        spec: Trainer,
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
        start = self._restore()
        self._describe(start)
        if start >= self.last_step:
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
        self._finish()
        return EXIT_OK

    # -- before the loop ---------------------------------------------------------

    def _restore(self) -> int:
        start = self.checkpointer.restore()
        saved = self.checkpointer.read_position(start) if start else None
        if saved is not None:
            _check_position(saved, self.stream.position(0), self.workdir)
        self.done = self.saved_step = start
        self.logger.rewind(start)
        return start

    def _describe(self, start: int) -> None:
        params = nnx.state(self.model, nnx.Param)
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        spec, stream = self.spec, self.stream
        lines = [
            f"Work directory {self.workdir}",
            f"Model {type(self.model).__name__}, {count:,} parameters, on "
            f"{jax.device_count()} {jax.devices()[0].platform} device(s) in "
            f"{jax.process_count()} process(es)",
            f"Data {stream.dataset.num_elements:,} elements, "
            f"{stream.steps_per_epoch:,} steps an epoch",
            f"Plan {spec.total_steps:,} steps of {stream.batch_size} x "
            f"{stream.seq_len} tokens, "
            f"{spec.total_steps / stream.steps_per_epoch:.2f} epochs",
            "No weight decay on: " + _shortened(optim.undecayed_names(params)),
        ]
        if start:
            lines.append(f"Resuming after step {start} of {spec.total_steps}")
        for line in lines:
            self.logger.log_message(line)
        if jax.process_index() == 0:
            info = self.run_info | {
                "parameters": count,
                "devices": [str(device) for device in jax.devices()],
                "position": stream.position(start),
                "total_steps": spec.total_steps,
            }
            path = self.workdir / "run.json"
            path.write_text(json.dumps(info, indent=2, default=str) + "\n")

    # -- the loop ----------------------------------------------------------------

    def _loop(self, start: int) -> None:
        unseen: _Unseen = collections.deque()
        with (
            contextlib.closing(self.stream.steps(start, self.last_step)) as batches,
            self._progress(start) as progress,
        ):
            while self.done < self.last_step and not self._stop_agreed():
                batch = next(batches)
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
        self, step: int, metrics: dict[str, jax.Array], progress: Progress | None
    ) -> None:
        """Waits for a step that was dispatched some steps ago, and judges it."""
        finite = bool(np.asarray(metrics.pop("finite")))
        self.clock.tick()
        rate = self.clock.tokens_per_sec
        self.logger.log_metrics_summary(
            step, **metrics, tokens_per_sec=round(rate) if rate else math.nan
        )
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
        if self.saved_step == self.done or self.done == 0:
            return
        self.train_step.write_back(self.leaves, self.model, self.optimizer)
        self.checkpointer.save(
            self.done, metrics, position=self.stream.position(self.done)
        )
        self.saved_step = self.done

    # -- ways to end ---------------------------------------------------------------

    def _diverged(self, step: int, loss: float) -> None:
        # The step left the state as it was before; so did those dispatched after it.
        self.done = step - 1
        self._save({})
        self.checkpointer.wait()
        raise DivergedError(
            f"step {step} (batch {step - 1}) is not finite: loss {loss}. The state "
            f"after step {step - 1} is kept in {self.workdir / 'checkpoints'}. Lower "
            "the learning rate or look at that batch; do not just start again."
        )

    def _stopped(self) -> int:
        self._save({})
        self.checkpointer.wait()
        self.logger.log_message(
            f"Stopped by {self.stop.signal_name or 'another process'} after step "
            f"{self.done}; the same command continues from there."
        )
        return EXIT_RESTART

    def _finish(self) -> None:
        self.train_step.write_back(self.leaves, self.model, self.optimizer)
        self.checkpointer.wait()
        if self.done < self.spec.total_steps:
            self.logger.log_message(
                f"Stopped after step {self.done} as asked (stop_after)."
            )
            return
        if self.spec.sample is not None and jax.process_count() == 1:
            text = self.spec.sample.text(self.model)
            (self.workdir / "sample.txt").write_text(text, encoding="utf-8")
            self.logger.log_message(f"Sample:\n{text}")
        summary = {"steps": self.done, **self.last_eval, "seconds": self.clock.seconds}
        if jax.process_index() == 0:
            path = self.workdir / "summary.json"
            path.write_text(json.dumps(summary, indent=2) + "\n")
        results = ", ".join(f"{k} {v:.4f}" for k, v in self.last_eval.items())
        self.logger.log_message(f"Done after step {self.done}. {results}")


def _check_position(saved: dict, current: dict, workdir: pathlib.Path) -> None:
    """Refuses to continue where the saved step would name other batches."""
    changed = [
        f"{key} was {saved[key]!r} and is now {current[key]!r}"
        for key in SAME_ON_RESUME
        if saved.get(key) != current[key]
    ]
    if changed:
        raise ConfigError(
            f"{workdir} holds a run whose batches were others: {'; '.join(changed)}. "
            "Set it back, or choose another --workdir."
        )


def _shortened(names: list[str]) -> str:
    """Names with layer numbers folded: `layers.*.norm.scale`."""
    folded = (
        ".".join("*" if part.isdigit() else part for part in name.split("."))
        for name in names
    )
    return ", ".join(dict.fromkeys(folded)) or "nothing"
