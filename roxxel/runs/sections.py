"""The parts of a report, as HTML: all that comes from a run is escaped here."""

import html
import json
from collections.abc import Sequence
from typing import Any

from roxxel.runs import evaluations, tables, why
from roxxel.runs.reading import Run

COLORS = (
    *("#3b76c4", "#d9822b", "#3a9b5c", "#c4453c", "#8b62b8", "#8a6048", "#d46ab0"),
    *("#7d858c", "#a8a829", "#2fa3b5"),
)
_FIRST_METRICS = ("loss", "eval_loss")
_MORE_PLOTS = ("learning_rate", "tokens_per_sec")
_WHOLE_CONFIGS = 6
_ERROR_CHARS = 20_000  # of one run
_TEXT_CHARS = 120_000  # of one kind, of all runs together
_EVALUATIONS_SHOWN = 20  # the newest of a run, and the best ones


def labels_of(runs: Sequence[Run]) -> list[str]:
    """The names of the folders; whole paths where two have the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [str(run.path) for run in runs]


def errors(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Tracebacks of the runs that crashed, and what their single processes left."""
    parts = []
    for run, label in zip(runs, labels, strict=True):
        if run.error:
            parts.append(f"<h2>{html.escape(label)} ended with an error</h2>")
            parts.append(
                f'<pre class="error">{html.escape(run.error[:_ERROR_CHARS])}</pre>\n'
            )
        if run.failures:
            parts.append(f"<h2>Processes of {html.escape(label)}</h2>")
            parts += [_folded(name, _pre(text)) for name, text in run.failures]
    return "".join(parts)


def table_of_runs(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """A row a run, with a box that takes its curves out."""
    rows = []
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        box = (
            f'<label><input type="checkbox" data-run="{i}" checked> '
            f"{_chip(i)} {html.escape(label)}</label>"
        )
        rate, mfu = why.number_of(run, "tokens_per_sec"), why.number_of(run, "mfu")
        cells = [
            html.escape(str(run.info.get("experiment", ""))),
            f'<span class="{run.status}">{run.status}</span>',
            f"{run.steps:,} of {run.total_steps or 0:,}",
            _count(run.info.get("parameters")),
            "" if rate is None else f"{rate:,.0f}",
            "" if mfu is None else f"{100 * mfu:.1f} %",
            f"{100 * run.step_share:.1f} %" if "step" in run.seconds else "",
            html.escape(str(run.info.get("started", ""))),
        ]
        rows.append([box, *cells])
    head = ["run", "experiment", "status", "steps", "parameters", "tokens/s", "MFU"]
    return "<h2>Runs</h2>" + _html_table([*head, "goodput", "started"], rows)


def _chip(i: int) -> str:
    return f'<span class="chip" style="background:{COLORS[i % len(COLORS)]}"></span>'


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else html.escape(str(value or ""))


def plots(data: dict) -> str:
    """The places of the curves, with what chooses how they are drawn."""
    names = [name for run in data["runs"] for name in run["curves"] if name]
    metrics = sorted(dict.fromkeys(names), key=_metric_order)
    options = "".join(f"<option>{html.escape(name)}</option>" for name in metrics)
    more = "".join(
        f'<div class="plot" data-metric="{name}"></div>'
        for name in _MORE_PLOTS
        if name in names
    )
    return (
        '<h2>Curves</h2><div class="controls">'
        f'<label>metric <select id="metric">{options}</select></label>'
        '<label>by <select id="axis"><option>step</option><option>tokens</option>'
        "<option>minutes</option></select></label>"
        '<label><input type="checkbox" id="log"> logarithmic loss</label>'
        '<label>smoothing <input type="range" id="smooth" min="0" max="0.99" '
        'step="0.01" value="0"></label></div>'
        f'<div class="plot" id="main-plot"></div>{more}'
    )


def time_spent(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """The place of the bars of wall time by phase, what to turn, and profiles."""
    known = [run for run in runs if run.seconds]
    if not known:
        return ""
    reasons = [why.explain(run) if run.seconds else "" for run in runs]
    return (
        '<h2>Where the time went</h2><label>as <select id="unit">'
        "<option>seconds</option><option>percent</option></select></label>"
        '<div id="goodput"></div>'
        + texts("Which setting to turn", reasons, labels, is_open=len(runs) == 1)
        + texts("Profile", [run.profile for run in runs], labels)
    )


def _metric_order(name: str) -> tuple[int, str]:
    order = {metric: i for i, metric in enumerate(_FIRST_METRICS)}
    return order.get(name, len(order)), name


def results(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Evaluations of each run at several steps, the best of each metric marked."""
    parts = [
        _folded(label, _evaluations_of(run), is_open=len(runs) == 1)
        for run, label in zip(runs, labels, strict=True)
        if run.evaluations
    ]
    beside = _last_values(runs, labels) if len(runs) > 1 else ""
    shown = beside + "".join(parts)
    return f"<h2>Evaluations</h2>{shown}" if shown else ""


def _evaluations_of(run: Run) -> str:
    names = evaluations.names(run.evaluations)
    several = len(run.evaluations) > 1
    best = {
        name: evaluations.best_step(run.evaluations, name) if several else None
        for name in names
    }
    newest = {one["step"] for one in run.evaluations[-_EVALUATIONS_SHOWN:]}
    rows = [
        [
            f"{one['step']:,}",
            *(
                _value(one.get(name), is_best=best[name] == one["step"])
                for name in names
            ),
        ]
        for one in run.evaluations
        if one["step"] in newest.union(best.values())
    ]
    return _html_table(["step", *map(html.escape, names)], rows)


def _last_values(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """One row a run: the last value of each metric, and the best where one is."""
    names = dict.fromkeys(
        ["loss", *(n for run in runs for n in evaluations.names(run.evaluations))]
    )
    rows = [
        [f"{_chip(i)} {html.escape(labels[i])}"]
        + [_last_and_best(run, name) for name in names]
        for i, run in enumerate(runs)
    ]
    return _html_table(["last (best)", *map(html.escape, names)], rows)


def _last_and_best(run: Run, name: str) -> str:
    known = {
        one["step"]: one[name] for one in run.evaluations if one.get(name) is not None
    }
    if not known:
        return _value(run.last(name))
    last = known[max(known)]
    best = evaluations.best_step(run.evaluations, name)
    if best is None or best == max(known):
        return _value(last)
    return f"{_value(last)} ({_value(known[best])} at {best:,})"


def _value(value: float | None, *, is_best: bool = False) -> str:
    if value is None:
        return ""
    return f"<b>{value:.5g} best</b>" if is_best else f"{value:.5g}"


def differences(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """The settings in which runs differ; a row a run where they are many."""
    if len(runs) < 2:
        return ""
    found = tables.differences(runs)
    if not found:
        return "<h2>Settings that differ</h2><p>None.</p>"
    rows = [[path, *values] for path, values in found]
    head = ["setting", *labels]
    if len(runs) > len(found):
        head, *rows = zip(head, *rows, strict=True)
    cells = [list(map(html.escape, row)) for row in rows]
    return "<h2>Settings that differ</h2>" + _html_table(
        list(map(html.escape, head)), cells, value_cells=True
    )


def configs(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """All settings of each run, to be searched; of many, where they differ."""
    parts = []
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        is_short = i > 0 and len(runs) > _WHOLE_CONFIGS
        known = runs[0].config if is_short else {}
        rows = "".join(
            f'<tr data-path="{html.escape(path)}"><td>{html.escape(path)}</td>'
            f'<td class="value">{html.escape(value)}</td></tr>'
            for path, value in run.config.items()
            if known.get(path) != value
        )
        label = f"{label}, as {labels[0]} but for:" if is_short else label
        table = f'<div class="scroll"><table>{rows}</table></div>'
        parts.append(_folded(label, table, is_open=len(runs) == 1))
    search = '<input type="search" id="search" placeholder="search the settings">'
    return f'<h2>Configuration</h2>{search}<div id="config">{"".join(parts)}</div>'


def texts(
    title: str,
    found: Sequence[str],
    labels: Sequence[str],
    *,
    is_open: bool = False,
) -> str:
    """A text of each run that has one, under a title; its end where it is long."""
    most = _TEXT_CHARS // max(len(labels), 1)
    parts = [
        _folded(label, _pre(text[-most:]), is_open=is_open)
        for text, label in zip(found, labels, strict=True)
        if text
    ]
    return f"<h2>{title}</h2>{''.join(parts)}" if parts else ""


def pretty(info: dict) -> str:
    """JSON to read; "" for nothing."""
    return json.dumps(info, indent=1, default=str) if info else ""


def _folded(label: str, content: str, *, is_open: bool = False) -> str:
    """`content` (HTML) under a label (text) that opens it."""
    opened = " open" if is_open else ""
    name = html.escape(label)
    return f"<details{opened}><summary>{name}</summary>{content}</details>"


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _html_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, value_cells: bool = False
) -> str:
    """A table of cells that are HTML already."""
    kind = ' class="value"' if value_cells else ""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{lines}</table></div>'
