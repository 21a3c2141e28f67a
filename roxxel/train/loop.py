"""The training loop. Its order is a contract.

A step runs; its metrics go to the logger as device values; when due, the run evaluates,
then saves; only then is the next batch taken. A checkpoint's number is the number of
completed steps, which is also the index of the next batch.
"""

import contextlib
import functools
import pathlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import jax

from roxxel import sharding
from roxxel.errors import EXIT_OK
from roxxel.logger import Logger
from roxxel.notices import Board
from roxxel.progress import Waiting
from roxxel.train import (
    accumulate,
    describe,
    ema,
    ending,
    in_flight,
    meshes,
    precision,
)
from roxxel.train.accounts import Accounts
from roxxel.train.evaluator import Evaluator
from roxxel.train.feeds import InputEnded
from roxxel.train.in_flight import InFlight
from roxxel.train.plan import make_plan
from roxxel.train.profile import Profiler
from roxxel.train.programs import StepPrograms
from roxxel.train.refusals import Refusals, Rewind
from roxxel.train.start import begin, position
from roxxel.train.step import Leaves, TrainStep
from roxxel.train.stop import StopNow, StopRequest
from roxxel.train.timing import StepClock

if TYPE_CHECKING:
    from roxxel.train.trainer import Trainer

_NOTHING = contextlib.nullcontext()


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
        board: Board | None = None,
    ):
        self.spec, self.workdir, self.logger, self.stop = spec, workdir, logger, stop
        self.run_info, self.board = run_info, board
        self.clock = StepClock(run_info.pop("process_secs", 0.0))
        self.mesh = meshes.make(spec)
        rows = sharding.batch_sharding(self.mesh, spec.axis_rules)
        self.stream = spec.stream.place(self.mesh, rows)
        accumulate.check_divides(self.stream.spans(), spec.accumulate, self.mesh)
        precision.check_mesh(
            spec.precision, None if self.mesh is None else self.mesh.shape
        )
        self.model, self.optimizer = meshes.create(spec, self.mesh)
        self.checkpointer = stack.enter_context(
            spec.open_checkpoints(workdir, self.model, self.optimizer)
        )
        self.evaluator = Evaluator(spec, self.model, self.mesh)
        self.plan = make_plan(spec)
        self.last_step = self.plan.last_step
        self.saved_step = self.evaluated_step = -1
        self.done = 0
        self.accounts: Accounts | None = None

    def run(self) -> int:
        """Trains what is left, and finishes; the exit code."""
        start = self._begin()
        if self._is_over(start) and not ending.is_unfinished(self):
            self.logger.log_message(describe.nothing_left(self.plan, start))
            self.logger.log_message(f"Results are in {self.workdir}.")
            return EXIT_OK
        self.accounts = Accounts(self, start)
        self.train_step: TrainStep = self.spec.make_step(self.model, self.optimizer)
        self.leaves: Leaves = self.train_step.leaves(self.model, self.optimizer)
        self.programs = StepPrograms(
            self.train_step,
            self.leaves,
            self.stream,
            self.plan.started_spans(),
            compiling=functools.partial(self._long, "compile", "compiling"),
        )
        self.refusals = Refusals(self)
        self.profiler = Profiler(self, start)
        try:
            self._make_up_evaluation(self.begun_position or {})
            self._loop_with_rewinds(start)
            if self._is_over(self.done):
                return self._finish()
        except StopNow:
            pass
        finally:
            self.profiler.close()
        return self._stopped()

    def beat(self) -> None:
        """Called often while the run goes on, on another thread."""
        if self.accounts is not None:
            self.accounts.beat(self.done)

    # -- before the loop ---------------------------------------------------------

    def _begin(self) -> int:
        """Restores or makes a beginning, and tells the plan; the completed steps."""
        with self._long("start", "restoring"):
            begun = begin(
                self.spec,
                self.plan,
                self.stream,
                self.model,
                self.optimizer,
                self.checkpointer,
                self.workdir,
            )
        self.done, self.saved_step = begun.step, begun.step or -1
        self.evaluator.restore(begun.position)
        self.begun_position = begun.position
        self.logger.rewind(begun.step)
        plan = describe.plan_lines(
            self.model, self.stream, self.plan, self.spec.evaluations
        )
        mean = ema.begin(self.checkpointer.restored, self.model, self.optimizer)
        for line in (f"Work directory {self.workdir}", *plan, *begun.lines, *mean):
            self.logger.log_message(line)
        record = describe.run_record(
            self.model, self.stream, self.plan, self.mesh, start=begun.step
        )
        ending.write_json(self, "run.json", self.run_info | record | begun.record)
        return begun.step

    # -- the loop ----------------------------------------------------------------

    def _loop_with_rewinds(self, start: int) -> None:
        while True:
            try:
                return self._loop(start)
            except Rewind:
                start = self.refusals.go_back()

    def _loop(self, start: int) -> None:
        self.clock.switch("other")
        with (
            contextlib.closing(self.stream.steps(start, self.last_step)) as batches,
            in_flight.progress(self, start) as progress,
        ):
            flight = InFlight(self, progress)
            while not self._is_over(self.done):
                self.profiler.before(self.done)
                batch = self._next(batches, flight)
                if batch is None:
                    break
                program = self.programs.of(batch, self.refusals.left_out(self.done))
                if self.stop.reached():
                    break
                with self.clock.phase("step"), self.profiler.step(self.done):
                    self.leaves, metrics = program(self.leaves, batch)
                    self.programs.prepare_after(self.done)
                    self.done += 1
                    flight.add(self.done, metrics)
                self.profiler.after(self.done, program)
                if self._evaluation_due() or self._save_due():
                    flight.see_all()
                    self._evaluate_and_save()
            flight.see_all()

    def _next(self, batches: Iterator, flight: InFlight) -> Any:
        """The next batch, or None where a stop ended the wait for it.

        The wait counts as "data" where the device idles meanwhile, else as "step".
        """
        before = self.clock.seconds.get("data", 0.0)
        try:
            with self.clock.phase("data"), self.stop.interruptible():
                batch = next(batches)
        except StopNow:
            return None
        except InputEnded:
            flight.see_all()
            self._save_alone()
            raise
        if flight.is_device_busy():
            waited = self.clock.seconds["data"] - before
            self.clock.move(waited, "data", "step")
        return batch

    @contextlib.contextmanager
    def _long(self, phase: str, words: str) -> Generator[None]:
        """A phase that may take long and shows no progress of its own."""
        lead = jax.process_index() == 0
        with self.clock.phase(phase), Waiting(words) if lead else _NOTHING:
            yield

    def _make_up_evaluation(self, position: dict[str, Any]) -> None:
        """What a stop kept the run from, at the step that it was saved at."""
        if position.get("owes_evaluation"):
            self.saved_step = -1
            self._evaluate_and_save()

    # -- evaluation and checkpoints ----------------------------------------------

    def _is_over(self, done: int) -> bool:
        return done >= self.last_step or self.evaluator.stops_early

    def _evaluation_due(self) -> bool:
        return bool(self.plan.sets_at(self.done))

    def _save_due(self) -> bool:
        if self.evaluator.improved_at(self.done) or self.evaluator.stops_early:
            return True
        return self.plan.saves_at(self.done)

    def _evaluate_and_save(self) -> None:
        due = self.plan.sets_at(self.done)
        metrics = self._evaluate(due) if due else {}
        if self._save_due():
            self.save(metrics)

    def _evaluate(self, names: list[str] | None = None) -> dict[str, float]:
        with self._long("evaluation", "evaluating"):
            metrics = self.evaluator.run(
                self.done,
                self.train_step.evaluated(self.leaves),
                names,
                on_batch=self._after_batch,
            )
        self.evaluated_step = self.done
        self.logger.log_metrics_summary(self.done, **metrics)
        return metrics

    def _after_batch(self) -> None:
        self.clock.beat()
        self.stop.check()

    def save(self, metrics: dict[str, float]) -> None:
        """Saves a checkpoint of the completed steps, unless there is one."""
        if self.saved_step == self.done:
            return
        with self._long("save", "saving"):
            # Rows first: a checkpoint must not be ahead of the table it continues.
            self.logger.flush()
            self.write_back()
            self.checkpointer.save(
                self.done,
                metrics,
                position=self._position(),
                milestone=self.done == self.plan.milestone,
            )
        self.saved_step = self.done

    def _position(self) -> dict[str, Any]:
        found = position(self.spec, self.plan, self.stream, self.done)
        owed = self._evaluation_due() and self.evaluated_step != self.done
        kept = {"evaluation": self.evaluator.state(), "owes_evaluation": owed}
        return found | kept

    def write_back(self) -> None:
        """Puts the arrays as they are now into `model` and `optimizer`."""
        self.train_step.write_back(self.leaves, self.model, self.optimizer)

    def wait_for_checkpoint(self) -> None:
        """Waits until the checkpoint that is being written is complete."""
        with self._long("save", "writing the checkpoint"):
            self.checkpointer.wait()

    def _save_alone(self) -> None:
        """Keeps what is done when only this process may know that it cannot go on."""
        if self.done and jax.process_count() == 1:
            self.save({})
            self.wait_for_checkpoint()

    # -- ways to end ---------------------------------------------------------------

    def _stopped(self) -> int:
        if self.done:
            self.save({})
        return ending.stopped(self)

    def _finish(self) -> int:
        if self.done < self.spec.total_steps and not self.evaluator.stops_early:
            return ending.stopped_as_asked(self)
        if self.evaluator.is_incomplete:
            self._evaluate()
        return ending.finished(self)
