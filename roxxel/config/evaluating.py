"""`--mode=eval`: the sets of an experiment, with the parameters of a checkpoint.

A line of `evaluations.jsonl` in the work directory is one evaluation:

    {"time": "2026-11-30T02:10:00", "step": 2800, "heldout_loss": 1.09, ...}
"""

import datetime
import functools
import itertools
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel import distributed, errors, tasks
from roxxel.config import arguments, opened, resolve, say, suggest
from roxxel.errors import ConfigError
from roxxel.runs import tables
from roxxel.tasks import suite

if TYPE_CHECKING:
    from roxxel.train.evaluation import Evaluation

FILE_NAME = "evaluations.jsonl"
ALL_TASKS = "in_context"  # in --sets: every generated task
_TASK_ROWS = 512
_COLUMNS = ("loss", "perplexity", "accuracy", "bits_per_byte")


def run(found: resolve.Experiment, line: arguments.CommandLine) -> int:
    """Evaluate what `--run` or `--workdir` holds, once or following it; the exit code.

    Raises:
      ConfigError: there is no such run, checkpoint or set, or no place for the results.
    """
    workdir = opened.folder(found, line)
    wanted = opened.parse_checkpoint(line.get("checkpoint"))
    output = line.get("output")
    place = Path(os.path.expanduser(output)) if output else workdir / FILE_NAME
    _check_writable(place, f"--output={output}" if output else str(workdir))
    names = named_sets(found, line.get("sets"))
    if line.on("follow"):
        from roxxel.config import following

        return following.run(found, line, workdir, names, place)
    distributed.initialize()
    sets = build_sets(found, names)
    mesh = make_mesh(found)
    at_hand = opened.open_run(found, workdir, checkpoint=wanted, mesh=mesh)
    metrics = Evaluating(found, sets, at_hand, mesh).run()
    tell(place, at_hand.step, metrics, sets)
    return errors.EXIT_OK


class Evaluating:
    """Evaluates sets with the model of an opened run, as it is at each call."""

    def __init__(
        self,
        found: resolve.Experiment,
        sets: "dict[str, Evaluation]",
        at_hand: opened.Opened,
        mesh: Any,
    ):
        from roxxel.train import evaluator

        self._model, self._names = at_hand.model, list(sets)
        loss = opened.part(found, "loss")
        rules = opened.part(found, "axis_rules")
        self._sets = evaluator.Sets(sets, at_hand.model, loss, mesh, rules)

    def run(self, **options: Any) -> dict[str, float]:
        """The metrics; `options` as of `roxxel.train.evaluation.evaluate`."""
        import jax
        from flax import nnx

        leaves = jax.tree.leaves(nnx.state(self._model))
        return self._sets.run(self._names, leaves, **options)


def make_mesh(found: resolve.Experiment) -> Any:
    """The run's mesh where it fits the devices that are here, else rows over all."""
    import jax

    from roxxel import sharding

    axes = opened.part(found, "mesh_axes")
    try:
        sharding.axis_sizes(axes, jax.device_count())
    except ConfigError:
        axes = {"data": -1}
    return sharding.make_mesh(axes)


# -- sets ------------------------------------------------------------------------------


def named_sets(found: resolve.Experiment, given: str | None) -> list[str] | None:
    """The names in `--sets`; None for all sets of the experiment.

    Raises:
      ConfigError: one is empty or twice there.
    """
    opened.part(found, "loss")  # says so where it is no trainer
    if given is None:
        return None
    names = [word.strip() for word in given.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"--sets={given}: expected names with commas, each once.")
    expanded = [suite.NAMES if name == ALL_TASKS else [name] for name in names]
    return list(dict.fromkeys(itertools.chain(*expanded)))


def build_sets(
    found: resolve.Experiment, names: list[str] | None
) -> "dict[str, Evaluation]":
    """The sets of an experiment, or those named; names of tasks make such sets.

    Raises:
      ConfigError: there are none, or not one of the names.
    """
    from roxxel.train import evaluation

    own = evaluation.sets_of(opened.part(found, "evaluation"))
    if names is None and not own:
        raise ConfigError(
            f"{found.name} has no evaluation: give --fdl.evaluation=..., or "
            f"--sets={ALL_TASKS} for generated tasks."
        )
    names = list(own) if names is None else names
    known = [*own, ALL_TASKS, *suite.NAMES]
    for name in names:
        if name not in known:
            hint = suggest.did_you_mean(name, known, what="sets")
            raise ConfigError(f"--sets: there is no set {name!r}.{hint}")
    tasks_of = functools.partial(_task_set, found)
    return {name: own[name] if name in own else tasks_of(name) for name in names}


def _task_set(found: resolve.Experiment, name: str) -> "Evaluation":
    from roxxel.train import evaluation

    vocab_size = _vocab_size(found)
    task = suite.make(name, vocab_size=vocab_size)
    rows = tasks.TaskSet(task, num_rows=_TASK_ROWS)
    return evaluation.Evaluation(dataset=rows, batch_size=32, name=name)


def _vocab_size(found: resolve.Experiment) -> int:
    from flax import nnx

    make, seed = opened.part(found, "model"), opened.part(found, "seed")
    model = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(seed)))
    size = getattr(model, "vocab_size", None)
    if size is None:
        raise ConfigError(f"{found.name}: its model does not tell a vocab_size.")
    return size


# -- results ---------------------------------------------------------------------------


def _check_writable(place: Path, flag: str) -> None:
    if place.is_dir() or not place.parent.is_dir():
        raise ConfigError(f"{flag}: there is no place for a file {place}.")
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise ConfigError(
            f"{flag}: {place} cannot be written; give another file: --output=FILE."
        )


def tell(
    place: Path, step: int, metrics: dict[str, float], sets: "dict[str, Evaluation]"
) -> None:
    """A table on stdout and a line in a file; the lead process does it."""
    if not distributed.is_lead():
        return
    now = datetime.datetime.now().isoformat(timespec="seconds")
    row = {"time": now, "step": step} | {k: _plain(v) for k, v in metrics.items()}
    with open(place, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    say.result(f"step {step}\n{table(metrics, sets)}")


def table(metrics: dict[str, float], sets: "dict[str, Evaluation]") -> str:
    """A row a set, a column a metric that one of them tells."""
    columns = [
        kind for kind in _COLUMNS if any(f"{name}_{kind}" in metrics for name in sets)
    ]
    lines = [["set", *columns, "targets"]]
    for name, one in sets.items():
        values = [metrics.get(f"{name}_{kind}") for kind in columns]
        shown = ["" if value is None else f"{value:.6g}" for value in values]
        lines.append([name, *shown, f"{one.num_targets:,}"])
    return tables.table(lines)


def _plain(value: float) -> float | str:
    """JSON knows no NaN: as text, like the records of checkpoints."""
    return value if math.isfinite(value) else str(value)
