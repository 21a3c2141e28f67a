"""What evaluations of a run found: by itself, and by `--mode=eval` afterwards."""

import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from roxxel.runs import files

FILE_NAME = "evaluations.jsonl"

# Ends of the names of metrics that evaluations tell, `<set>_<metric>`, and which way
# is better; `eval_loss` is that of the set "eval".
BETTER: Mapping[str, str] = {
    "_loss": "min",
    "_perplexity": "min",
    "_bits_per_byte": "min",
    "_accuracy": "max",
}
_MOST_ROWS = 10_000  # of the file of somebody else


def read(
    workdir: pathlib.Path,
    columns: Mapping[str, np.ndarray],
    sets: Iterable[str] = (),
) -> list[dict[str, float]]:
    """Evaluations in the order of their steps, each with "step" and its metrics.

    Args:
      workdir: of the run.
      columns: of its metrics table.
      sets: names of those that the run looks at; other columns count where they are
        named like an evaluation and most steps have none.
    """
    found: dict[int, dict[str, float]] = {}
    for step, metrics in [
        *_of_table(columns, tuple(sets)),
        *_of_file(workdir / FILE_NAME),
    ]:
        found.setdefault(step, {"step": step}).update(metrics)
    return [found[step] for step in sorted(found)]


def names(evaluations: Sequence[Mapping[str, float]]) -> list[str]:
    """The metrics of evaluations, in the order of their first appearance."""
    known = dict.fromkeys(name for one in evaluations for name in one)
    return [name for name in known if name != "step"]


def best_step(evaluations: Sequence[Mapping[str, float]], name: str) -> int | None:
    """The step of the best value of a metric; None where no way is better."""
    way = next((way for end, way in BETTER.items() if name.endswith(end)), None)
    known = [
        (one[name], int(one["step"]))
        for one in evaluations
        if name in one and not math.isnan(one[name])
    ]
    if way is None or not known:
        return None
    sign = 1 if way == "min" else -1
    return min(known, key=lambda pair: (sign * pair[0], pair[1]))[1]


def _of_table(
    columns: Mapping[str, np.ndarray], sets: tuple[str, ...]
) -> list[tuple[int, dict[str, float]]]:
    own = {name: v for name, v in columns.items() if _is_one(name, v, sets)}
    if not own:
        return []
    known = ~np.isnan(columns["step"])
    known &= np.any([~np.isnan(values) for values in own.values()], axis=0)
    return [
        (
            int(columns["step"][row]),
            {name: float(v[row]) for name, v in own.items() if not np.isnan(v[row])},
        )
        for row in np.flatnonzero(known)[-_MOST_ROWS:]
    ]


def _is_one(name: str, values: np.ndarray, sets: tuple[str, ...]) -> bool:
    end = next((end for end in BETTER if name.endswith(end)), None)
    if end is None:
        return False
    is_rare = 2 * int(np.count_nonzero(~np.isnan(values))) <= len(values)
    return is_rare or name.removesuffix(end) in sets


def _of_file(path: pathlib.Path) -> list[tuple[int, dict[str, float]]]:
    lines = files.text(path, -files.MOST_BYTES).splitlines()
    return [one for line in lines[-_MOST_ROWS:] if (one := _parsed(line))]


def _parsed(line: str) -> tuple[int, dict[str, float]] | None:
    """None for a line that a kill cut, or that somebody else wrote."""
    try:
        found = json.loads(line)
        step = int(found["step"])
        metrics = {
            str(name): float(value)
            for name, value in found.items()
            if name != "step" and isinstance(value, int | float)
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return step, metrics
