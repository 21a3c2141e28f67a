"""What the host does about a step that was refused: tell, note, stop or go back.

The step itself has decided (`roxxel.train.divergence`) and left the state alone. All
processes see the same decision and take the same way here.
"""

import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from roxxel.errors import ConfigError, DivergedError
from roxxel.train import offenders, start
from roxxel.train.ledger import FILE_NAME, Ledger
from roxxel.train.optimizer import OPTIONAL
from roxxel.train.step import LeftOut

if TYPE_CHECKING:
    from roxxel.train.loop import Run


class Rewind(Exception):
    """The run goes back to its newest checkpoint; raised through the loop."""


class Refusals:
    """The refused steps of a run, and its ledger."""

    def __init__(self, run: "Run"):
        self._run = run
        self._rule = run.spec.divergence
        self._ledger = Ledger(run.workdir)
        if len(self._ledger):
            run.logger.log_message(
                f"{FILE_NAME}: {len(self._ledger)} earlier decision(s) to leave rows "
                "out are held to."
            )
        if self._rule.policy == "rewind" and not run.done:
            run.save({})  # there has to be something to go back to

    def left_out(self, batch: int) -> LeftOut:
        """What the ledger leaves out of a batch."""
        return self._ledger.left_out(batch)

    def see(self, step: int, metrics: dict[str, Any], *, alive: bool) -> None:
        """A step was refused: `alive` says whether the run went on behind it.

        Raises:
          Rewind: the policy says so; what is left out is noted.
          DivergedError: the run ends here, its state is saved.
          ConfigError: the batch holds ids that the model does not have.
        """
        if alive and self._ledger.left_out(step - 1) == "all":
            return  # as it was noted before
        reason = _reason(step, metrics)
        if not alive:
            # The state is that before the step; later ones have changed nothing.
            self._run.done = step - 1
        with self._run.clock.phase("other"):
            batch = self._batch(step - 1)
            self._check_vocabulary(step - 1, batch)
            self._run.write_back()
            rows = None if batch is None else self._rows(metrics, batch)
            self._dump(step, reason, metrics, rows)
        if alive:
            self._note(step, reason, rows, "all")
            self._tell(f"{reason}: its update is left out.")
            return
        if self._rule.policy == "rewind" and not self._has_gone_back_enough():
            self._note(step, reason, rows, self._new_left_out(step - 1, rows, batch))
            self._tell(f"{reason}: going back to the newest checkpoint.")
            raise Rewind
        self._stop(reason)

    def go_back(self) -> int:
        """Restores the newest checkpoint; returns its completed steps."""
        run = self._run
        run.wait_for_checkpoint()
        step = run.checkpointer.restore(optional=OPTIONAL, release=True)
        saved = run.checkpointer.read_position(step)
        if saved is not None:
            start.seek(saved, run.stream, step, run.workdir)
        run.evaluator.restore(saved)
        run.logger.rewind(step)
        run.done = run.saved_step = step
        run.leaves = run.train_step.leaves(run.model, run.optimizer)
        self._tell(f"Went back to step {step}.")
        return step

    # -- what happened ---------------------------------------------------------------

    def _batch(self, number: int) -> Any:
        """The batch again; None where the input cannot go back to it."""
        try:
            return self._run.stream.batch(number)
        except ConfigError:
            return None

    def _rows(self, metrics: dict[str, Any], batch: Any) -> tuple[int, ...] | None:
        """Rows that are not finite by themselves; None: no single ones."""
        if all(map(math.isfinite, _numbers(metrics).values())):
            return None
        spec = self._run.spec
        return offenders.find(self._run.model, spec.loss, batch, count=spec.accumulate)

    def _new_left_out(
        self, number: int, rows: tuple[int, ...] | None, batch: Any
    ) -> LeftOut:
        """The rows; all where there are no single ones or it was no use."""
        if rows is None or not isinstance(batch, jax.Array | np.ndarray):
            return "all"
        is_new = self._ledger.left_out(number) is None
        return rows if is_new and len(rows) < batch.shape[0] else "all"

    def _has_gone_back_enough(self) -> bool:
        target = self._run.checkpointer.latest_step() or 0
        return self._ledger.count("rewind", target) >= self._rule.most_rewinds

    # -- telling ---------------------------------------------------------------------

    def _dump(
        self,
        step: int,
        reason: str,
        metrics: dict[str, Any],
        rows: tuple[int, ...] | None,
    ) -> None:
        described = offenders.described(self._run.stream, step - 1, rows)
        facts = {
            "step": step,
            "batch": step - 1,
            "reason": reason,
            "numbers": {k: str(v) for k, v in _numbers(metrics).items()},
            "single_rows": rows is not None,
            "rows": described,
        }
        path = offenders.write(self._run.workdir, step, facts)
        where = "these rows" if rows is not None else "no single row, the whole batch"
        self._tell(f"step {step}: {where} in {path}: {rows or ''}".rstrip(": "))

    def _note(
        self,
        step: int,
        reason: str,
        rows: tuple[int, ...] | None,
        left_out: LeftOut,
    ) -> None:
        described = offenders.described(self._run.stream, step - 1, rows)
        kept = ("position", "dataset", "row", "shard", "offset", "document")
        self._ledger.append(
            {
                "step": step,
                "batch": step - 1,
                "policy": self._rule.policy,
                "reason": reason,
                "left_out": left_out if left_out == "all" else list(left_out or ()),
                "single_rows": rows is not None,
                "rows": [{key: row[key] for key in kept} for row in described],
            }
        )

    def _tell(self, text: str) -> None:
        self._run.logger.log_message(text, level="warning")

    # -- ways to end -----------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        run = self._run
        run.save({})
        run.wait_for_checkpoint()
        after = {
            "stop": "",
            "skip": f" after {self._rule.most_skips} refused steps in a row",
            "rewind": f" after {self._rule.most_rewinds} rewinds",
        }[self._rule.policy]
        raise DivergedError(
            f"{reason}{after}. The state after step {run.done} is kept in "
            f"{run.workdir / 'checkpoints'}. Lower the learning rate or look at that "
            "batch; do not just start again."
        )

    def _check_vocabulary(self, number: int, batch: Any) -> None:
        """Tells ids that the model does not have from a real divergence."""
        run = self._run
        size = getattr(run.model, "vocab_size", None)
        if size is None or batch is None or jax.process_count() > 1:
            return
        ids = np.asarray(batch.get("tokens", 0) if isinstance(batch, dict) else batch)
        if ids.min() < 0 or ids.max() >= size:
            run.save({})
            run.wait_for_checkpoint()
            raise ConfigError(
                f"batch {number} holds ids from {ids.min()} to {ids.max()}, the model "
                f"has vocab_size {size}; set vocab_size above the largest id."
            )


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    names = {"loss": "loss", "gradient norm": "grad_norm", "update norm": "update_norm"}
    return {name: float(np.asarray(metrics[key])) for name, key in names.items()}


def _reason(step: int, metrics: dict[str, Any]) -> str:
    numbers = _numbers(metrics)
    what = "a spike" if all(map(math.isfinite, numbers.values())) else "not finite"
    told = ", ".join(f"{name} {value:.6g}" for name, value in numbers.items())
    return f"step {step} (batch {step - 1}) is {what}: {told}"
