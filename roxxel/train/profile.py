"""A trace of a few steps of a run, and where their time went as text.

`profile="10:20"` of the trainer (`--profile=10:20`) traces the steps behind the tenth,
up to the twentieth: ten steps, those of the rows 11 to 20, each with its wait for data
and with an evaluation or a save that falls between them. The trace lies in
`WORKDIR/profile`, for XProf, TensorBoard and Perfetto; `WORKDIR/profile.txt` and the
log hold a summary. Several processes have a folder each, `profile/process_<i>`; the
summary is that of the lead. The device runs empty before the first of these steps and
after the last, so that nothing else is in the trace.
"""

import contextlib
import pathlib
import time
from typing import TYPE_CHECKING, Any

import jax

from roxxel.errors import ConfigError
from roxxel.train import operations

if TYPE_CHECKING:
    from roxxel.train.loop import Run
    from roxxel.train.trainer import Trainer

FOLDER = "profile"
TEXT_FILE = "profile.txt"
_NOTHING = contextlib.nullcontext()


def parse(text: str | None) -> tuple[int, int] | None:
    """Completed steps before the first traced one and after the last; None for None.

    Raises:
      ConfigError: not START:STOP with 0 <= START < STOP.
    """
    if text is None:
        return None
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal() and int(start) < int(stop)):
        raise ConfigError(
            f"trainer: profile is {text!r}, expected START:STOP in completed "
            "steps, START below STOP: 10:20 traces the steps 11 to 20."
        )
    return int(start), int(stop)


def check(spec: "Trainer") -> None:
    """Raises a ConfigError where the steps to trace are none of the run's."""
    steps = parse(spec.profile)
    last = min(spec.total_steps, spec.stop_after or spec.total_steps)
    if steps is not None and steps[1] > last:
        raise ConfigError(
            f"trainer: profile is {spec.profile!r}, but the run ends with step {last}; "
            f"expected STOP to be at most {last}."
        )


class Profiler:
    """Traces the steps that the trainer names; costs nothing where it names none.

    Args:
      run: gives the clock, the log and the work directory.
      start: completed steps that this attempt begins with.
    """

    def __init__(self, run: "Run", start: int):
        self._run = run
        self._steps = parse(run.spec.profile)
        self._since: tuple[float, dict[str, float]] | None = None
        self._began_at = start
        if self._steps is not None and self._steps[1] <= start:
            run.logger.log_message(
                f"No profile: step {start} is done, steps up to {self._steps[1]} were "
                "to be traced."
            )
            self._steps = None

    @property
    def folder(self) -> pathlib.Path:
        """Of the traces of this process."""
        folder = self._run.workdir / FOLDER
        if jax.process_count() == 1:
            return folder
        return folder / f"process_{jax.process_index()}"

    def before(self, done: int) -> None:
        """Begins to trace if the next step is the first that was asked for."""
        if self._steps is None or self._since or done < self._steps[0]:
            return
        with self._run.clock.phase("step"):
            jax.block_until_ready(self._run.leaves)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every call: slow, and nothing about a device
        try:
            jax.profiler.start_trace(self.folder, profiler_options=options)
        except (OSError, RuntimeError) as err:
            self._steps = None
            self._warn(err)
            return
        self._began_at = done
        self._since = time.perf_counter(), self._run.clock.seconds

    def step(self, done: int) -> contextlib.AbstractContextManager:
        """A context that marks one step in the trace."""
        if self._since is None:
            return _NOTHING
        return jax.profiler.StepTraceAnnotation("train", step_num=done + 1)

    def after(self, done: int, program: Any) -> None:
        """Ends the trace if the last step that was asked for has been dispatched."""
        if self._steps is None or self._since is None or done < self._steps[1]:
            return
        with self._run.clock.phase("step"):
            jax.block_until_ready(self._run.leaves)
        began, before = self._since
        wall = time.perf_counter() - began
        after = self._run.clock.seconds
        phases = {name: after[name] - before.get(name, 0.0) for name in after}
        try:
            self.close()
            if jax.process_index() == 0:
                self._tell(done, wall, phases, program)
        except (OSError, RuntimeError, ValueError) as err:
            self._warn(err)

    def close(self) -> None:
        """Ends a trace that goes on; may be called again."""
        if self._since is not None:
            self._since = self._steps = None
            jax.profiler.stop_trace()

    def _tell(
        self, done: int, wall: float, phases: dict[str, float], program: Any
    ) -> None:
        trace = max(self.folder.rglob("*.xplane.pb"), key=lambda p: p.stat().st_mtime)
        count = done - self._began_at
        head = (
            f"Profile of the steps {self._began_at + 1} to {done}: "
            f"{1e3 * wall / count:.2f} ms a step, {wall:.2f} s in all; trace in {trace}"
        )
        found = operations.read(trace, operations.origins(program))
        text = "\n\n".join(
            [
                head,
                operations.phases_text(phases, steps=count),
                operations.text(found, wall=wall, steps=count),
            ]
        )
        (self._run.workdir / TEXT_FILE).write_text(text + "\n", encoding="utf-8")
        self._run.logger.log_message(text)

    def _warn(self, err: Exception) -> None:
        text = f"No profile: {' '.join(str(err).split()) or type(err).__name__}"
        self._run.logger.log_message(text, level="warning")
