"""How a run ends, what a finished one leaves behind, and how to see that it has."""

import json
import os
import pathlib
import time
from typing import TYPE_CHECKING, Any

from flax import nnx

from roxxel.checkpoint import Checkpointer
from roxxel.distributed import is_lead
from roxxel.errors import EXIT_OK, EXIT_RESTART, ConfigError
from roxxel.train import describe, meshes

if TYPE_CHECKING:
    from roxxel.train.loop import Run

SUMMARY_FILE = "summary.json"


def newest(workdir: pathlib.Path) -> tuple[int | None, dict[str, Any] | None]:
    """Completed steps of the newest checkpoint in `workdir`, and its position."""
    with Checkpointer(workdir / "checkpoints", read_only=True) as checkpointer:
        return checkpointer.latest_step(), checkpointer.read_position()


def has_results(workdir: str | os.PathLike, step: int) -> bool:
    """Whether the results of a run of `step` steps are there, all of them."""
    try:
        summary = json.loads((pathlib.Path(workdir) / SUMMARY_FILE).read_text())
        return summary["steps"] == step
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_unfinished(run: "Run") -> bool:
    """Whether all steps are done but a kill came before the results."""
    is_over = run.done == run.spec.total_steps or run.evaluator.stops_early
    return is_over and not has_results(run.workdir, run.done)


def stopped(run: "Run") -> int:
    """A signal was obeyed and the state is being saved: waits for it; exit code 42."""
    run.wait_for_checkpoint()
    asked_at = run.stop.asked_at or time.monotonic()
    run.logger.log_message(
        f"Stopped by {run.stop.reason} after step {run.done}, "
        f"{time.monotonic() - asked_at:.1f} s after it came; the same command "
        f"{'continues from there' if run.done else 'begins anew'}."
    )
    return EXIT_RESTART


def stopped_as_asked(run: "Run") -> int:
    """The end of a run with `stop_after`."""
    run.wait_for_checkpoint()
    run.logger.log_message(f"Stopped after step {run.done} as asked (stop_after).")
    return EXIT_OK


def finished(run: "Run") -> int:
    """All steps are done and evaluated: samples and writes the results."""
    run.write_back()
    run.train_step.write_means(run.leaves, run.model)
    _sample(run)
    run.wait_for_checkpoint()
    results, verdict = run.evaluator.results, run.evaluator.verdict()
    summary = {"steps": run.done, **results, **verdict, "seconds": run.clock.seconds}
    if run.accounts is not None:
        summary |= run.accounts.summary(run.done)
    write_json(run, SUMMARY_FILE, summary)
    run.logger.log_message(describe.results_line(run.done, results, verdict))
    return EXIT_OK


def write_json(run: "Run", name: str, values: dict[str, Any]) -> None:
    """Writes a file of the work directory at once or not at all; the lead does."""
    _write(run, name, json.dumps(values, indent=2, default=str) + "\n")


def _write(run: "Run", name: str, text: str) -> None:
    if is_lead():
        part = run.workdir / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(run.workdir / name)


def _sample(run: "Run") -> None:
    if run.spec.sample is None:
        return
    with run.clock.phase("sample"):
        with run.stop.interruptible():
            can_sample = _can_sample(run)
        if not can_sample:
            return run.logger.log_message(
                "No sample: the model is larger than the free memory of one device."
            )
        model = _model_of_lead(run)
        with run.stop.interruptible():
            text = None if model is None else _sampled(run, model)
            if model is None:
                _wait_for_lead(run, "sampled")
        run.stop.check()  # a stop that came too late to interrupt: the same for all
    if model is None:
        return
    if run.board is not None:
        run.board.post("sampled", "")
    if text is None:
        return
    _write(run, "sample.txt", text)
    run.logger.log_message("Sample:\n%s", text)
    run.logger.log_text(run.done, "sample", text)


def _can_sample(run: "Run") -> bool:
    """The lead's word on whether it can; alone it always can, on the mesh."""
    if run.board is None:
        return True
    if is_lead():
        run.board.post("can sample", str(meshes.fits_one_device(run.model)))
    return _wait_for_lead(run, "can sample") == "True"


def _sampled(run: "Run", model: nnx.Module) -> str | None:
    """The text; None, and a warning, where the run's data lack a tokenizer for it."""
    assert run.spec.sample is not None
    try:
        return run.spec.sample.text(model, run.run_info.get("data"))
    except ConfigError as err:
        run.logger.log_message("No sample: %s", err, level="warning")
        return None


def _wait_for_lead(run: "Run", name: str) -> str:
    assert run.board is not None
    while name not in (found := run.board.read()):
        time.sleep(0.1)  # in Python, where a signal interrupts it
    return found[name]


def _model_of_lead(run: "Run") -> nnx.Module | None:
    """The model, whole on a device of the lead; None in other processes.

    A token at a time on a mesh is little but waiting and takes long to compile: the
    model stays there only where a device has no room for all of it.
    """
    if run.mesh is None or (
        run.board is None and not meshes.fits_one_device(run.model)
    ):
        return run.model
    state = meshes.gathered(run.model, run.mesh)
    if not is_lead():
        return None
    abstract = nnx.eval_shape(lambda: run.spec.create()[0])
    return nnx.merge(nnx.graphdef(abstract), state)
