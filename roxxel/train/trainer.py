"""`Trainer`: what a run is made of. `roxxel.train.loop` runs it."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import optax
from flax import nnx

from roxxel.checkpoint import Checkpointer
from roxxel.distributed import is_lead
from roxxel.errors import ConfigError
from roxxel.logger import Logger
from roxxel.models.losses import next_token_loss
from roxxel.train import inputs, lock
from roxxel.train.evaluation import Evaluation
from roxxel.train.loop import Run
from roxxel.train.sample import Sample
from roxxel.train.step import LossFn
from roxxel.train.stop import StopRequest


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
        self.stream = inputs.as_source(self.stream)
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"trainer: seed must be in [0, 2**32), got {self.seed}.")
        if getattr(self.stream, "start_step", 0):
            raise ConfigError(
                "trainer: the stream's start_step must be 0, the checkpoint says where "
                f"to start; got {self.stream.start_step}."
            )
        # Made abstractly, without a device: a model that cannot be built ends here.
        nnx.eval_shape(lambda: self.model(rngs=nnx.Rngs(self.seed)))
        if self.stream.overlap != 1:
            raise ConfigError(
                "trainer: the stream must have overlap=1 (inputs and their successors),"
                f" got {self.stream.overlap}."
            )

    def run(self, workdir: pathlib.Path, run_info: dict[str, Any] | None = None) -> int:
        """Runs to the end, or to a stop that was asked for; returns the exit code.

        Raises:
          ConfigError: the work directory belongs to a run at another position, or
            another process runs there.
          DivergedError: a loss or gradient is not finite.
        """
        workdir = pathlib.Path(workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if is_lead():
                stack.enter_context(lock.hold(workdir))
            stop = stack.enter_context(StopRequest())
            logger = stack.enter_context(self.logger(log_dir=workdir))
            return Run(self, workdir, logger, stop, stack, run_info or {}).run()
