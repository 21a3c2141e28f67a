"""`--mode=eval --follow`: each new checkpoint of a run that goes on, evaluated.

A process of its own, on devices of its own. It holds checkpoints that wait, so that the
trainer does not delete them; writes metrics into them, which is how the trainer and
`--checkpoint=best` learn of the best one; and ends when the run has ended:

| what is there                                   | what follows                      |
|-------------------------------------------------|-----------------------------------|
| the run ended (0), diverged (3) or failed (1, 2) | the rest is evaluated, exit 0     |
| it was stopped (42), or killed                  | waits for the next attempt, at    |
|                                                 | most `--patience` seconds, exit 42 |
| SIGTERM or SIGINT                               | ends between two batches, exit 42 |

The same command goes on where it ended: a checkpoint that has the metrics of all sets
is not evaluated again.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel import distributed, errors
from roxxel.config import arguments, evaluating, opened, resolve, say, scalars
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from roxxel.checkpointing.files import Step
    from roxxel.train.evaluation import Evaluation

DEFAULT_PATIENCE_SECS = 600.0
_POLL_SECS = 0.5
_MOST_WAITING = 4  # held; of more the oldest are passed over


def run(
    found: resolve.Experiment,
    line: arguments.CommandLine,
    workdir: Path,
    names: list[str] | None,
    place: Path,
) -> int:
    """Follow the run in `workdir`; the exit code.

    Raises:
      ConfigError: a flag does not go with it, or there is no such set.
    """
    patience = _patience(line.get("patience"))
    if line.has("checkpoint"):
        raise ConfigError("--follow takes each checkpoint; leave out --checkpoint.")
    if not os.access(workdir, os.W_OK):
        raise ConfigError(
            f"--follow writes metrics into checkpoints; {workdir} cannot be written."
        )
    import jax

    from roxxel.train.stop import StopNow, StopRequest

    with StopRequest() as stop:
        distributed.initialize()
        if jax.process_count() > 1:
            raise ConfigError("--follow is one process; start it without the others.")
        sets = evaluating.build_sets(found, names)
        if names is None:
            sets = {n: one for n, one in sets.items() if one.by_follower} or sets
        follower = Follower(found, workdir, sets, place, stop)
        try:
            return follower.run(patience)
        except StopNow:
            say.lines([f"roxxel: stopped by {stop.reason}; the same command goes on."])
            return errors.EXIT_RESTART


class Follower:
    """Evaluates checkpoints as they appear.

    Args:
      found: the experiment.
      workdir: of the run.
      sets: to evaluate.
      place: file that a line is added to for each.
      stop: raises `StopNow` between two batches.
    """

    def __init__(
        self,
        found: resolve.Experiment,
        workdir: Path,
        sets: "dict[str, Evaluation]",
        place: Path,
        stop: Any,
    ):
        self._found, self._workdir, self._sets = found, workdir, sets
        self._place, self._stop = place, stop
        self._root = workdir / opened.CHECKPOINTS
        self._metrics = [name for one in sets.values() for name in one.metric_names()]
        self._passed: set[int] = set()
        self._at_hand: opened.Opened | None = None
        self._evaluating: evaluating.Evaluating | None = None

    def run(self, patience_secs: float) -> int:
        """Until the run has ended, or nobody trains for `patience_secs`."""
        from roxxel.checkpointing import holds
        from roxxel.train import outcome

        say.lines([f"roxxel: following {self._workdir}: {', '.join(self._sets)}"])
        seen = time.monotonic()
        while not self._root.is_dir() and not outcome.is_over(self._workdir):
            if outcome.is_alive(self._workdir):
                seen = time.monotonic()
            if time.monotonic() - seen > patience_secs:
                return self._gone(patience_secs)
            self._pause()
        self._root.mkdir(exist_ok=True)
        with holds.Hold(self._root) as hold:
            while True:
                # Before the checkpoints: the last one is complete by then.
                is_over = outcome.is_over(self._workdir)
                if outcome.is_alive(self._workdir):
                    is_over, seen = False, time.monotonic()
                if self._evaluate_next(hold):
                    continue
                if is_over:
                    say.lines(["roxxel: the run has ended; all is evaluated."])
                    return errors.EXIT_OK
                if time.monotonic() - seen > patience_secs:
                    return self._gone(patience_secs)
                self._pause()

    def _evaluate_next(self, hold: Any) -> bool:
        """Evaluates the oldest checkpoint that waits; False where none does."""
        waiting, newest = self._waiting()
        if not waiting:
            hold.keep_from(newest + 1)
            return False
        hold.keep_from(waiting[0].serial)
        self._evaluate(waiting[0])
        return True

    def _waiting(self) -> "tuple[list[Step], int]":
        from roxxel.checkpointing import files

        steps = files.scan(self._root)[0][::-1]
        newest = steps[-1].serial if steps else 0
        waiting = [
            step
            for step in steps
            if step.serial not in self._passed
            and not all(name in step.record["metrics"] for name in self._metrics)
        ]
        for step in waiting[:-_MOST_WAITING]:
            self._passed.add(step.serial)
            count = len(waiting)
            say.lines([f"roxxel: step {step.number} is passed over: {count} wait"])
        return waiting[-_MOST_WAITING:], newest

    def _evaluate(self, step: "Step") -> None:
        from roxxel.checkpointing import files

        self._passed.add(step.serial)  # whatever happens, it has had its turn
        try:
            self._open(step.number)
        except ConfigError as err:
            if files.inspect(step.path) != step:
                return  # another was saved under its number meanwhile
            if not isinstance(err.__cause__, files.CheckpointError):
                raise
            say.lines([f"roxxel: step {step.number} is passed over: {err}"])
            return
        assert self._evaluating is not None
        metrics = self._evaluating.run(on_batch=self._stop.check)
        if files.add_metrics(step, metrics):
            evaluating.tell(self._place, step.number, metrics, self._sets)

    def _open(self, number: int) -> None:
        if self._at_hand is not None:
            return opened.reopen(self._at_hand, number)
        mesh = evaluating.make_mesh(self._found)
        self._at_hand = opened.open_run(
            self._found, self._workdir, checkpoint=number, mesh=mesh
        )
        self._evaluating = evaluating.Evaluating(
            self._found, self._sets, self._at_hand, mesh
        )

    def _pause(self) -> None:
        self._stop.check()
        with self._stop.interruptible():
            time.sleep(_POLL_SECS)

    def _gone(self, patience_secs: float) -> int:
        say.lines(
            [
                f"roxxel: nobody has trained in {self._workdir} for "
                f"{patience_secs:g} s, and the run has not ended; the same command "
                "goes on."
            ]
        )
        return errors.EXIT_RESTART


def _patience(text: str | None) -> float:
    if text is None:
        return DEFAULT_PATIENCE_SECS
    try:
        seconds = scalars.parse_float(text)
    except scalars.MismatchError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"--patience={text}: expected seconds, 0 or more.")
    return seconds
