"""Runs many variants of an experiment: `python -m launch.sweep`.

    python -m launch.sweep --fdl_config=ssm_tiny \\
        --sweep.optimizer.schedule.peak=1e-3,3e-3 --sweep.model.n_layers=1,2 --workers=2

A trial is a run of `roxxel.main` with its own work directory `SWEEP/trials/<id>`, where
the id depends on its overrides only. All that the driver knows lies in files: killed
and started again it runs no trial twice and forgets none. The same command continues a
sweep; one with more values, axes or trials extends it. To run a finished trial again,
delete its work directory.

Exit codes: 0 all trials are over, none failed; 1 some failed, or none has the metric;
2 the command line is wrong; 42 stopped by a signal after the running trials saved,
start it again.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch import attempts, functions, options, planners, results, slurm, trials
from launch.folder import SPEC_FILE, Folder, read_json, write_json
from launch.pool import Planner, Pool, slot_environments
from launch.problems import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_OK,
    EXIT_RESTART,
    SweepError,
    did_you_mean,
)
from launch.trials import Trial

_CHECK_MODULE = "configs.trial_check"
_SEARCH_MODULE = "configs.search"
_RUNGS_FILE = "rungs.json"
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); the exit code."""
    try:
        return _main(options.parse(sys.argv[1:] if argv is None else argv))
    except SweepError as err:
        sys.stderr.write(f"sweep: error: {err}\n")
        return EXIT_CONFIG
    except KeyboardInterrupt:  # before anything runs; later a signal stops the trials
        return EXIT_INTERRUPTED


def _main(given: options.Options) -> int:
    folder = Folder(given.sweep_dir)
    if "help" in given.switches:
        return _say(options.USAGE)
    if "report" in given.switches:
        return _report(folder, given)
    folder.check_spec(_spec(given))
    sampler = _sampler(folder, given) if given.ranges else None
    planned = [] if sampler else _planned(given)
    ends = trials.unique(sampler.corners()) if sampler else []
    totals = _checked(folder, given, [*planned, *ends])
    with folder.driven():
        write_json(folder.path / SPEC_FILE, _spec(given))
        for trial in planned:
            folder.add(trial.id, dict(trial.overrides), trial.flags(given.words))
        if "retry_failed" in given.switches:
            _forgive(folder)
        if given.text.get("emit") == "slurm":
            return _emit(folder, given)
        planner = _planner(folder, given, planned, totals, sampler)
        return _run(folder, given, planner)


def _spec(given: options.Options) -> dict[str, Any]:
    """What all trials of a folder share."""
    spec: dict[str, Any] = {"flags": given.base, "metric": given.metric}
    spec["goal"] = given.goal
    if "halving" in given.switches:
        spec["halving"] = {"rungs": given.numbers["rungs"], "eta": given.numbers["eta"]}
    if given.ranges:
        spec["search"] = {"ranges": given.ranges, "seed": given.numbers["seed"]}
    return spec


def _planned(given: options.Options) -> list[Trial]:
    """The trials of the axes, each with every set of overrides of the function."""
    combined = trials.combine(given.axes, zipped="zip" in given.switches)
    extra: list[dict[str, object]] = [{}]
    if "sweep_config" in given.text:
        extra = functions.overrides(given.text["sweep_config"])
    return trials.unique({**one, **other} for one in combined for other in extra)


def _checked(
    folder: Folder, given: options.Options, planned: Sequence[Trial]
) -> dict[str, int]:
    """Checks every value before anything starts; total steps by trial for halving.

    Trials that the folder has were checked when they were added.
    """
    known = set(folder.ids())
    totals = (read_json(folder.path / _RUNGS_FILE) or {}).get("total_steps", {})
    if "halving" in given.switches:
        chosen = [trial for trial in planned if trial.id not in totals]
    else:
        chosen = trials.covering([t for t in planned if t.id not in known])
    if not chosen:
        return totals
    # Halving sets a field of every trial, which the experiment has to have.
    more = ["--fdl.stop_after=1"] if "halving" in given.switches else []
    request = {
        "trials": [[*trial.flags(given.words), *more] for trial in chosen],
        "total_steps": "halving" in given.switches,
        "metric": given.text.get("metric"),
    }
    answer = _ask_in_a_process(request)
    found = answer.get("total_steps", [])
    return totals | {t.id: n for t, n in zip(chosen, found, strict=False)}


def _ask_in_a_process(request: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", _CHECK_MODULE],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == EXIT_CONFIG:
        raise SweepError(done.stderr.strip())
    if done.returncode != EXIT_OK:
        raise SweepError(f"the trials could not be checked:\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def _planner(
    folder: Folder,
    given: options.Options,
    planned: Sequence[Trial],
    totals: dict[str, int],
    sampler: Any,
) -> Planner:
    workers = given.numbers["workers"]
    if sampler is not None:
        return planners.Search(folder, sampler, given.words, workers=workers)
    if "halving" not in given.switches:
        return planners.Grid(folder, [trial.id for trial in planned])
    write_json(folder.path / _RUNGS_FILE, {"total_steps": totals})
    rungs, eta = given.numbers["rungs"], given.numbers["eta"]
    return planners.Halving(
        folder,
        {t.id: _rung_steps(totals[t.id], rungs, eta) for t in planned},
        eta=eta,
        metric=given.metric,
        goal=given.goal,
    )


def _rung_steps(total: int, rungs: int, eta: int) -> list[int | None]:
    """Steps at which each rung stops, e.g. 50, 100, None of 200 for 3 rungs of 2."""
    stops: list[int | None] = [
        -(-total // eta**left) for left in range(rungs - 1, 0, -1)
    ]
    return [*stops, None]


def _sampler(folder: Folder, given: options.Options) -> Any:
    try:
        module = importlib.import_module(_SEARCH_MODULE)
        return module.Sampler(
            folder.path / "search.journal",
            given.ranges,
            trials=given.numbers["trials"],
            metric=given.metric,
            goal=given.goal,
            seed=given.numbers["seed"],
        )
    except (ImportError, ValueError) as err:
        raise SweepError(str(err)) from err


def _run(folder: Folder, given: options.Options, planner: Planner) -> int:
    workers = given.numbers["workers"]
    slots = slot_environments(workers, given.threads, given.gpus)
    pool = Pool(folder, slots, lambda i: _tell(folder, given.metric, i))
    is_complete = pool.run(planner)
    for note in getattr(planner, "notes", []):
        sys.stderr.write(f"sweep: note: {note}\n")
    has_metric = _report(folder, given) == EXIT_OK
    if not is_complete:
        sys.stderr.write("sweep: stopped; the same command continues.\n")
        return EXIT_RESTART
    failed = [i for i in folder.ids() if attempts.read(folder, i).status == "failed"]
    for trial_id in failed:
        log = folder.state(trial_id) / "output.log"
        sys.stderr.write(f"sweep: trial {trial_id} failed: {_last_line(log)} ({log})\n")
    return EXIT_FAILED if failed or not has_metric else EXIT_OK


def _tell(folder: Folder, metric: str, trial_id: str) -> None:
    """One line for a trial whose process has ended."""
    result = results.of_trial(folder, trial_id, metric)
    others = " ".join(f"{key}={value}" for key, value in result.overrides.items())
    sys.stderr.write(
        f"sweep: {trial_id} {result.status} after step {result.steps}, "
        f"{metric} {result.value:.6g}  ({others})\n"
    )


def _report(folder: Folder, given: options.Options) -> int:
    """Writes the leaderboard; not 0 where trials are done and none has the metric."""
    spec = read_json(folder.path / SPEC_FILE)
    if spec is None:
        raise SweepError(f"{folder.path} holds no sweep; give --sweep_dir=DIR.")
    metric = given.text.get("metric", spec["metric"])
    goal = given.text.get("goal", spec["goal"])
    found = results.collect(folder, metric, goal)
    path = results.write_csv(folder, found, metric)
    _say(f"{results.table(found, metric)}\n{path}")
    done = [result for result in found if result.status == "done"]
    if not done or any(results.has(folder.workdir(r.id), metric) for r in done):
        return EXIT_OK
    names = {name for r in done for name in results.names(folder.workdir(r.id))}
    sys.stderr.write(
        f"sweep: error: --metric={metric}: no finished trial has it."
        f"{did_you_mean(metric, names)}\n"
    )
    return EXIT_FAILED


def _emit(folder: Folder, given: options.Options) -> int:
    script = slurm.write(
        folder, folder.ids(), options=given.text.get("slurm", ""), cwd=Path.cwd()
    )
    return _say(f"sbatch {script}")


def _forgive(folder: Folder) -> None:
    for trial_id in folder.ids():
        if attempts.read(folder, trial_id).status in ("failed", "diverged"):
            attempts.forgive(folder, trial_id)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def _say(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
