"""The numbers of a run and its goodput, kept while it runs and told at its end."""

import contextlib
import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import jax
from absl import logging

from roxxel.train import ending
from roxxel.train.goodput import Goodput, Recorder
from roxxel.train.numbers import Numbers

if TYPE_CHECKING:
    from roxxel.train.loop import Run

RUN_FILE = "run.json"


class Accounts:
    """Of one attempt that trains; the lead alone writes."""

    def __init__(self, run: "Run", start: int):
        self._run = run
        self._recorder = None
        if jax.process_index() == 0:
            self._recorder = Recorder(run.workdir, run.clock, start)
        before = 0.0 if self._recorder is None else self._recorder.elapsed_before
        self._numbers = Numbers(run.model, run.plan.spans, run.clock, before)

    def row(self, step: int) -> dict[str, float]:
        """What a step's row of metrics holds beside those of the step itself."""
        return self._numbers.row(step)

    def beat(self, done: int) -> None:
        """Called often, on the watching thread."""
        if self._recorder is not None:
            self._recorder.beat(done)

    def summary(self, done: int) -> dict[str, Any]:
        """Numbers and goodput, for `summary.json`."""
        if self._recorder is None:
            return {}
        goodput = self._recorder.goodput(done)
        return {**self._numbers.summary(done), "goodput": goodput.record()}

    def finish(self, end: str) -> None:
        """Tells the numbers and the goodput, and keeps them with the run."""
        run, recorder = self._run, self._recorder
        if recorder is None:
            return
        self._recorder = None
        goodput = recorder.finish(run.done, end)
        run.logger.log_message(self._numbers.line(run.done))
        run.logger.log_message(goodput.line())
        _add_to_run_file(run, goodput)


@contextlib.contextmanager
def closing(run: "Run") -> Generator[None]:
    """The attempt is accounted for, whichever way the block ends."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the error that comes is the cause
            _finish(run, "failed")
        raise
    try:
        _finish(run, "stopped" if run.stop else "done")
    except OSError as err:  # a full disk: what was trained and saved counts
        logging.warning("the time of this attempt is not on record: %s", err)


def _finish(run: "Run", end: str) -> None:
    if run.accounts is not None:
        run.accounts.finish(end)


def _add_to_run_file(run: "Run", goodput: Goodput) -> None:
    try:
        known = json.loads((run.workdir / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(known, dict):
        ending.write_json(run, RUN_FILE, known | {"goodput": goodput.record()})
