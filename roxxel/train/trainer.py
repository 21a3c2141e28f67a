"""`Trainer`: what a run is made of. `roxxel.train.loop` runs it."""

import contextlib
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import optax
from flax import nnx

from roxxel import notices
from roxxel.budget import Length
from roxxel.checkpoint import Checkpointer
from roxxel.distributed import is_lead
from roxxel.errors import ConfigError
from roxxel.logger import Logger
from roxxel.models.losses import next_token_loss
from roxxel.sharding import AxisRules
from roxxel.train import (
    accounts,
    accumulate,
    ema,
    ending,
    evaluator,
    initial,
    inputs,
    lock,
    outcome,
    program_cache,
)
from roxxel.train import profile as profile_lib
from roxxel.train.divergence import Divergence
from roxxel.train.early_stopping import EarlyStopping
from roxxel.train.evaluation import Evaluation, sets_of
from roxxel.train.loop import Run
from roxxel.train.optimizer import RunOptimizer
from roxxel.train.plan import resolve_cadences
from roxxel.train.precision import Precision
from roxxel.train.sample import Sample
from roxxel.train.step import LossFn, TrainStep, make_train_step
from roxxel.train.stop import StopRequest
from roxxel.train.watch import Watch
from roxxel.train.watchdog import NO_DEADLINES, Deadlines

# Of this process; all processes of a run have theirs in the same order.
_RUNS = itertools.count()


@dataclasses.dataclass(kw_only=True)
class Trainer:
    """Trains, evaluates, saves, resumes and samples one language model.

    Attributes:
      model: makes the NNX module when called with `rngs=`.
      optimizer: an Optax transformation.
      stream: a `roxxel.RoxxelStream` or one of its kin with `overlap=1`, its batches
        `[batch_size, seq_len + 1]` int32; or what `roxxel.train.inputs.Input` takes.
      total_steps: optimizer steps of the whole run; the schedule's horizon.
      schedule: for the `learning_rate` metric.
      loss: `(model, batch, loss_mask=None) -> (mean loss, counted targets)`.
      evaluation: the held-out set, several by name (`{"code": ..., "prose": ...}`,
        each with its own `every`), or None.
      best: metric of an evaluation that ranks checkpoints, such as `eval_loss` or
        `max:eval_accuracy`; an evaluation that gives the best value is followed by a
        checkpoint, and the best is kept. None: `best_metric` of the checkpointer.
      early_stopping: ends the run where a metric has stopped to improve, or None.
      sample: what the lead process generates at the end, or None.
      checkpointer: makes the checkpointer when called with path, model, optimizer.
      logger: makes the logger when called with `log_dir=`.
      save_every: how often to save, as a `roxxel.budget.Length` (steps, a fraction of
        the run, text with a unit); one more checkpoint comes at the end, and one that
        is kept where the schedule's decay starts.
      mesh_axes: sizes by axis name within a slice, the outermost first; -1 takes what
        the others leave. The default `axis_rules` know "data" and "replica" (rows),
        "fsdp" (rows, parameters), "tensor" (heads, inner widths, vocabulary) and
        "context" (the sequence).
      dcn_axes: sizes by axis name over slices, which a slower network joins:
        `{"data": 2}`; None: one slice.
      axis_rules: which axes cut which dimension.
      accumulate: micro-batches a step, one after the other: the same result with the
        memory of one of them. Each lies over all devices of the batch.
      precision: in which types weights, products and gradients are; see
        `roxxel.train.precision.Precision`: float32, products as the model says.
      ema_decay: of a running mean of the weights, which is saved, evaluated and sampled
        from in their place; 0.999 is usual. None: no mean. See `roxxel.train.ema`.
      divergence: what happens at a step that is not finite, or a spike.
      stop_after: stop once this many steps are completed, with the schedule unchanged.
      seed: of the parameters.
      init_from: work directory or checkpoints of another run, or a Hugging Face folder
        (`config.json` and safetensors), whose parameters this run begins with where
        names and shapes are the same. Once the run has a checkpoint of its own, it
        continues from that.
      init_step: completed steps of the other run, "best", or None for its newest.
      workdir: where `python -m roxxel.main` runs it unless `--workdir` says.
      init_rules: dotted names of parameters there to names here, or to None to leave
        them out; `*` stands for any text: `{"old.*": "new.*"}`. Those of a Hugging
        Face folder have the names that they get here.
      init_part: what of the other run's checkpoint is taken: "model", "ema" (its mean
        of the weights), or the beginning of the names of another copy of them.
      init_resize: names of parameters here that may have another number of rows, such
        as `["embedding", "head"]` for a larger vocabulary: rows in common are taken.
      init_cast: take values of a wider type too, rounded; narrower ones always are.
      init_settings: settings, such as `["rope_theta"]`, that a Hugging Face folder may
        have otherwise than the model here.
      compilation_cache: folder of compiled programs for later starts, relative to the
        one that holds the work directory; None: none. JAX_COMPILATION_CACHE_DIR wins.
      deadlines: when a phase of the run counts as hung, see `Deadlines`; None: never.
      profile: `"10:20"` traces the steps 11 to 20 into `profile/` of the work directory
        and tells where their time went, see `roxxel.train.profile`; None: no trace.
    """

    model: Callable[..., nnx.Module]
    optimizer: optax.GradientTransformation
    stream: Any
    total_steps: int
    schedule: optax.Schedule | None = None
    loss: LossFn = next_token_loss
    evaluation: Evaluation | Mapping[str, Evaluation] | None = None
    best: str | None = None
    early_stopping: EarlyStopping | None = None
    sample: Sample | None = None
    checkpointer: Callable[..., Checkpointer] = Checkpointer
    logger: Callable[..., Logger] = Logger
    save_every: Length | None = 500
    mesh_axes: dict[str, int] = dataclasses.field(default_factory=lambda: {"data": -1})
    dcn_axes: dict[str, int] | None = None
    axis_rules: AxisRules = dataclasses.field(default_factory=AxisRules)
    accumulate: int = 1
    precision: Precision | None = dataclasses.field(default_factory=Precision)
    ema_decay: float | None = None
    divergence: Divergence = dataclasses.field(default_factory=Divergence)
    stop_after: int | None = None
    seed: int = 0
    init_from: str | os.PathLike | None = None
    init_step: int | Literal["best"] | None = None
    init_rules: Mapping[str, str | None] | None = None
    init_part: str = "model"
    init_resize: Sequence[str] = ()
    init_cast: bool = False
    init_settings: Sequence[str] = ()
    workdir: str | os.PathLike | None = None
    compilation_cache: str | os.PathLike | None = ".jax_cache"
    deadlines: Deadlines | None = dataclasses.field(default_factory=Deadlines)
    profile: str | None = None

    def __post_init__(self):
        for name in ("total_steps", "stop_after"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"trainer: {name} must be positive, got {value}.")
        self.stream = inputs.as_source(self.stream)
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"trainer: seed must be in [0, 2**32), got {self.seed}.")
        if getattr(self.stream, "start_step", 0):
            raise ConfigError(
                "trainer: the stream's start_step must be 0, the checkpoint says where "
                f"to start; got {self.stream.start_step}."
            )
        # Made abstractly, without a device: a model that cannot be built ends here.
        nnx.eval_shape(self._make_model)
        if self.stream.overlap != 1:
            raise ConfigError(
                "trainer: the stream must have overlap=1 (inputs and their successors),"
                f" got {self.stream.overlap}."
            )
        evaluator.check(self)
        resolve_cadences(self)
        ema.check_decay(self.ema_decay)
        accumulate.check_count(self.accumulate)
        accumulate.check_divides(self.stream.spans(), self.accumulate, None)
        initial.check_options(self)
        profile_lib.check(self)

    def create(self) -> tuple[nnx.Module, nnx.Optimizer]:
        """A new model and its optimizer, wherever the caller has them made."""
        model = self._make_model()
        optimizer = RunOptimizer(
            model,
            self.optimizer,
            ema_decay=self.ema_decay,
            divergence=self.divergence,
            precision=self.precision,
        )
        return model, optimizer

    def _make_model(self) -> nnx.Module:
        options = self.precision.model_options() if self.precision else {}
        return self.model(rngs=nnx.Rngs(self.seed), **options)

    def make_step(self, model: nnx.Module, optimizer: nnx.Optimizer) -> TrainStep:
        """The step that the run takes, for modules as `create` makes them."""
        return make_train_step(
            model,
            optimizer,
            self.loss,
            schedule=self.schedule,
            accumulate=self.accumulate,
            divergence=self.divergence,
            precision=self.precision,
        )

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """The evaluation sets by name."""
        return sets_of(self.evaluation)

    def open_checkpoints(
        self, workdir: pathlib.Path, model: Any = None, optimizer: Any = None
    ) -> Checkpointer:
        """The checkpoints of a run, ranked as the trainer says."""
        rank = evaluator.ranking(self)
        options = {"best_metric": rank.metric, "best_mode": rank.mode} if rank else {}
        return self.checkpointer(
            checkpoint_path=pathlib.Path(workdir) / "checkpoints",
            model=model,
            optimizer=optimizer,
            **options,
        )

    def nothing_left(self, workdir: pathlib.Path) -> bool:
        """Whether `run(workdir)` would train nothing; asks for no device."""
        step, stopped = ending.newest(pathlib.Path(workdir))
        last = min(self.total_steps, self.stop_after or self.total_steps)
        if step is None:
            return False
        if evaluator.ended_early(self, stopped):
            return ending.has_results(workdir, step)
        if step < last:
            return False
        return step < self.total_steps or ending.has_results(workdir, step)

    def run(self, workdir: pathlib.Path, run_info: dict[str, Any] | None = None) -> int:
        """Runs to the end, or to a stop that was asked for; returns the exit code.

        Raises:
          ConfigError: the work directory belongs to a run at another position, or
            another process runs there.
          DivergedError: a loss or gradient is not finite.
        """
        workdir = pathlib.Path(workdir)
        if self.init_from is not None:
            model = nnx.eval_shape(self._make_model)
            initial.check_source(self, workdir, model)
        workdir.mkdir(parents=True, exist_ok=True)
        board = notices.board(f"run-{next(_RUNS)}")
        with contextlib.ExitStack() as stack:
            if is_lead():
                stack.enter_context(lock.hold(workdir))
            stop = stack.enter_context(StopRequest(board))
            logger = stack.enter_context(self.logger(log_dir=workdir))
            watch = Watch(workdir, stop, self.deadlines or NO_DEADLINES, board, logger)
            stack.enter_context(watch)
            with watch.telling(), program_cache.used(self.compilation_cache, workdir):
                info = dict(run_info or {})
                run = Run(self, workdir, logger, stop, stack, info, board)
                watch.follow(run.clock, run.beat)
                with accounts.closing(run):
                    return outcome.recorded(workdir, run.run, lambda: run.done)
