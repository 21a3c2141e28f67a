"""What the runs of a sweep have reached, read from their work directories."""

import csv
import dataclasses
import math
from pathlib import Path

from launch import attempts
from launch.folder import Folder, read_json, write_text

SUMMARY = "summary.json"
METRICS = "roxxel_metrics.csv"
LEADERBOARD = "leaderboard.csv"
_SMOOTHED_ROWS = 20  # of a metric that is there at every step, as the training loss
_COLUMNS = ("id", "status")


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of the leaderboard; `value` is NaN where there is no metric yet."""

    id: str
    status: str
    value: float
    steps: int
    seconds: float
    overrides: dict[str, str]
    workdir: str


def collect(folder: Folder, metric: str, goal: str) -> list[Result]:
    """The results of all trials, best first, those without one last."""
    results = [of_trial(folder, trial_id, metric) for trial_id in folder.ids()]
    return sorted(results, key=lambda result: rank(result.value, goal))


def of_trial(folder: Folder, trial_id: str, metric: str) -> Result:
    """The result of one trial, as far as it has come."""
    workdir, state = folder.workdir(trial_id), attempts.read(folder, trial_id)
    return Result(
        id=trial_id,
        status=state.status,
        value=math.nan
        if state.status in ("diverged", "failed")
        else metric_of(workdir, metric),
        steps=steps_of(workdir),
        seconds=state.seconds,
        overrides=folder.record(trial_id).get("overrides", {}),
        workdir=str(workdir),
    )


def rank(value: float, goal: str) -> float:
    """A key that sorts the best value first and values that are not finite last."""
    if not math.isfinite(value):
        return math.inf
    return value if goal == "min" else -value


def metric_of(workdir: Path, metric: str, *, step: int | None = None) -> float:
    """The metric at the end of a run, or its last one at or before a step.

    A metric that has a value at every step is noisy; the mean of the last 20 is taken.
    NaN where there is none.
    """
    summary = read_json(workdir / SUMMARY) or {}
    if step is None and isinstance(summary.get(metric), int | float):
        return float(summary[metric])
    rows = _rows(workdir / METRICS)
    if step is not None:
        rows = [row for row in rows if int(row["step"]) <= step]
    values = [_number(row[metric]) for row in rows if row.get(metric)]
    if not values:
        return math.nan
    last = values[-_SMOOTHED_ROWS:] if len(values) * 2 > len(rows) else values[-1:]
    return sum(last) / len(last)


def names(workdir: Path) -> set[str]:
    """What a run has told numbers of: in its summary, or in its table."""
    summary = read_json(workdir / SUMMARY) or {}
    numbers = {k for k, v in summary.items() if isinstance(v, int | float)}
    told = {k for row in _rows(workdir / METRICS) for k, v in row.items() if k and v}
    return (numbers | told) - {"step", "steps"}


def has(workdir: Path, metric: str) -> bool:
    """Whether a run has told of a metric, be it a number that is not finite."""
    return metric in names(workdir)


def steps_of(workdir: Path) -> int:
    """Completed steps of a run, by its summary or its table."""
    summary = read_json(workdir / SUMMARY) or {}
    if isinstance(summary.get("steps"), int):
        return summary["steps"]
    rows = _rows(workdir / METRICS)
    return int(rows[-1]["step"]) if rows else 0


def write_csv(folder: Folder, results: list[Result], metric: str) -> Path:
    """`leaderboard.csv`: a row a trial, its overrides as columns."""
    keys = _override_keys(results)
    rows: list[list[object]] = [
        [*_COLUMNS, metric, "steps", "seconds", *keys, "workdir"]
    ]
    for result in results:
        cells = [result.id, result.status, _shown(result.value), result.steps]
        cells.append(f"{result.seconds:.1f}")
        cells += [result.overrides.get(key, "") for key in keys]
        rows.append([*cells, result.workdir])
    return _write_table(folder.path / LEADERBOARD, rows)


def table(results: list[Result], metric: str) -> str:
    """The leaderboard as text: one line a trial below a header."""
    keys = _override_keys(results)
    names = [key.removeprefix("--fdl_tag.").removeprefix("--") for key in keys]
    rows = [["", *_COLUMNS, metric, "steps", "seconds", *names]]
    for number, result in enumerate(results, 1):
        cells = [str(number), result.id, result.status, _shown(result.value)]
        cells += [str(result.steps), f"{result.seconds:.0f}"]
        rows.append([*cells, *(result.overrides.get(key, "-") for key in keys)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _override_keys(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(key for result in results for key in result.overrides))


def _rows(path: Path) -> list[dict[str, str]]:
    """The complete rows of a table; one that is being written is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    complete = text[: text.rfind("\n") + 1]
    return [row for row in csv.DictReader(complete.splitlines()) if row.get("step")]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _shown(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def _write_table(path: Path, rows: list[list[object]]) -> Path:
    def quoted(cell: object) -> str:
        text = str(cell)
        return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n') else text

    write_text(path, "".join(",".join(map(quoted, row)) + "\n" for row in rows))
    return path
