"""Lists and comparisons of runs as text."""

from collections.abc import Sequence
from typing import Any

from roxxel.runs.reading import Run

_METRICS = ("loss", "eval_loss", "eval_bits_per_byte", "tokens_per_sec")


def listing(runs: Sequence[Run]) -> str:
    """One line a run: experiment, status, steps, last metrics, path."""
    head = ["run", "experiment", "status", "steps", *_METRICS, "started"]
    rows = [
        [
            run.name,
            str(run.info.get("experiment", "")),
            run.status,
            f"{run.steps:,} of {run.total_steps or 0:,}",
            *(_number(run.last(name)) for name in _METRICS),
            str(run.info.get("started", ""))[:16].replace("T", " "),
        ]
        for run in runs
    ]
    return table([head, *rows])


def comparison(runs: Sequence[Run]) -> str:
    """Results side by side, then every setting in which the runs differ."""
    head = ["", *(run.name for run in runs)]
    names = [name for run in runs for name in run.metrics if name != "step"]
    results = [
        [name, *(_number(run.last(name)) for run in runs)]
        for name in dict.fromkeys(names)
    ]
    plan = [
        ["status", *(run.status for run in runs)],
        ["steps", *(f"{run.steps:,}" for run in runs)],
    ]
    settings = [[path, *values] for path, values in differences(runs)]
    return table([head, *plan, *results, *settings])


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Paths of the configuration whose values differ, with the value of each run."""
    paths = dict.fromkeys(path for run in runs for path in run.config)
    rows = [(path, [run.config.get(path, "-") for run in runs]) for path in paths]
    return [(path, values) for path, values in rows if len(set(values)) > 1]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns of equal width; control characters are shown, not sent."""
    plain = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in plain
    )
    return "\n".join(line.rstrip() for line in lines)


def _printable(cell: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell)


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
