"""A report of runs as one HTML file that works offline.

Everything that comes from a run is text in it, never markup or script: it is escaped
here, put into the page by `textContent` or as JSON, and a content security policy lets
only the page's own scripts run.
"""

import html
import json
import pathlib
import secrets
from collections.abc import Sequence
from importlib import resources

from roxxel import extras
from roxxel.errors import ConfigError
from roxxel.runs import curves, tables
from roxxel.runs.reading import Run

try:
    from plotly.offline import get_plotlyjs
except ImportError as err:
    raise extras.missing("roxxel.runs.report", "report", err) from err

_COLORS = (
    *("#3b76c4", "#d9822b", "#3a9b5c", "#c4453c", "#8b62b8", "#8a6048", "#d46ab0"),
    *("#7d858c", "#a8a829", "#2fa3b5"),
)
_FIRST_METRICS = ("loss", "eval_loss")
_MORE_PLOTS = ("learning_rate", "tokens_per_sec")


def write(runs: Sequence[Run], path: pathlib.Path) -> int:
    """Writes the report of `runs`; returns its size in bytes.

    Raises:
      ConfigError: the file cannot be written.
    """
    content = page(runs).encode("utf-8", "backslashreplace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as err:
        raise ConfigError(f"{path}: cannot be written: {err.strerror}.") from err
    return len(content)


def page(runs: Sequence[Run], *, refresh_secs: int = 0, version: str = "") -> str:
    """The whole page; with `refresh_secs` it asks its server for a newer version."""
    labels = _labels(runs)
    data = {
        "runs": [
            {
                "id": i,
                "label": label,
                "color": _COLORS[i % len(_COLORS)],
                "curves": curves.of_run(run, len(runs)),
                "seconds": run.summary.get("seconds"),
            }
            for i, (run, label) in enumerate(zip(runs, labels, strict=True))
        ],
        "refresh": refresh_secs,
        "version": version,
    }
    body = [
        _errors(runs, labels),
        _table_of_runs(runs, labels),
        _plots(data),
        _results(runs, labels),
        _differences(runs, labels),
        _texts("Samples", [run.sample for run in runs], labels),
        _configs(runs, labels),
        _texts("Environment", [_pretty(run.info) for run in runs], labels),
        _texts("Last log lines", [run.log_tail for run in runs], labels),
    ]
    return _document("".join(body), data, title=", ".join(labels[:3]))


def _document(body: str, data: dict, title: str) -> str:
    nonce = secrets.token_urlsafe(16)
    connect = "'self'" if data["refresh"] else "'none'"
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
        f"img-src data: blob:; connect-src {connect}; base-uri 'none'; "
        "form-action 'none'"
    )
    files = resources.files("roxxel.runs")
    script, style = (files.joinpath(n).read_text() for n in ("page.js", "page.css"))
    safe = json.dumps(data).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)} - roxxel</title>\n"
        f"<style>\n{style}</style></head>\n"
        f"<body><header><h1>{html.escape(title)}</h1>"
        '<button id="theme" type="button">Light or dark</button></header>\n'
        f'{body}\n<script type="application/json" id="data">{safe}</script>\n'
        f'<script nonce="{nonce}">{get_plotlyjs()}</script>\n'
        f'<script nonce="{nonce}">\n{script}</script></body></html>\n'
    )


def _labels(runs: Sequence[Run]) -> list[str]:
    """The names of the folders; whole paths where two have the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [str(run.path) for run in runs]


def _errors(runs: Sequence[Run], labels: Sequence[str]) -> str:
    return "".join(
        f"<h2>{html.escape(label)} ended with an error</h2>"
        f'<pre class="error">{html.escape(run.error)}</pre>\n'
        for run, label in zip(runs, labels, strict=True)
        if run.error
    )


def _table_of_runs(runs: Sequence[Run], labels: Sequence[str]) -> str:
    rows = []
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        color = _COLORS[i % len(_COLORS)]
        box = (
            f'<label><input type="checkbox" data-run="{i}" checked> '
            f'<span class="chip" style="background:{color}"></span> '
            f"{html.escape(label)}</label>"
        )
        cells = [
            html.escape(str(run.info.get("experiment", ""))),
            f'<span class="{run.status}">{run.status}</span>',
            f"{run.steps:,} of {run.total_steps or 0:,}",
            html.escape(f"{run.info.get('parameters', '')}"),
            html.escape(str(run.info.get("started", ""))),
        ]
        rows.append([box, *cells])
    head = ["run", "experiment", "status", "steps", "parameters", "started"]
    return "<h2>Runs</h2>" + _html_table(head, rows)


def _plots(data: dict) -> str:
    names = [name for run in data["runs"] for name in run["curves"] if name]
    metrics = sorted(dict.fromkeys(names), key=_metric_order)
    options = "".join(f"<option>{html.escape(name)}</option>" for name in metrics)
    more = "".join(
        f'<div class="plot" data-metric="{name}"></div>'
        for name in _MORE_PLOTS
        if name in names
    )
    has_seconds = any(run["seconds"] for run in data["runs"])
    goodput = '<h2>Where the time went</h2><div id="goodput"></div>'
    return (
        '<h2>Curves</h2><div class="controls">'
        f'<label>metric <select id="metric">{options}</select></label>'
        '<label>by <select id="axis"><option>step</option><option>tokens</option>'
        "<option>minutes</option></select></label>"
        '<label><input type="checkbox" id="log"> logarithmic loss</label>'
        '<label>smoothing <input type="range" id="smooth" min="0" max="0.99" '
        'step="0.01" value="0"></label></div>'
        f'<div class="plot" id="main-plot"></div>{more}{goodput if has_seconds else ""}'
    )


def _metric_order(name: str) -> tuple[int, str]:
    order = {metric: i for i, metric in enumerate(_FIRST_METRICS)}
    return order.get(name, len(order)), name


def _results(runs: Sequence[Run], labels: Sequence[str]) -> str:
    names = dict.fromkeys(
        name
        for run in runs
        for name in [*run.summary, *run.metrics]
        if name.startswith("eval") or name == "loss"
    )
    rows = [[html.escape(name), *(_last(run, name) for run in runs)] for name in names]
    head = ["last value", *map(html.escape, labels)]
    return "<h2>Results</h2>" + _html_table(head, rows) if rows else ""


def _last(run: Run, name: str) -> str:
    value = run.last(name)
    return "" if value is None else f"{value:.5g}"


def _differences(runs: Sequence[Run], labels: Sequence[str]) -> str:
    if len(runs) < 2:
        return ""
    rows = [
        [html.escape(path), *map(html.escape, values)]
        for path, values in tables.differences(runs)
    ]
    if not rows:
        return "<h2>Settings that differ</h2><p>None.</p>"
    head = ["setting", *map(html.escape, labels)]
    return "<h2>Settings that differ</h2>" + _html_table(head, rows, value_cells=True)


def _configs(runs: Sequence[Run], labels: Sequence[str]) -> str:
    parts = []
    for run, label in zip(runs, labels, strict=True):
        rows = "".join(
            f'<tr data-path="{html.escape(path)}"><td>{html.escape(path)}</td>'
            f'<td class="value">{html.escape(value)}</td></tr>'
            for path, value in run.config.items()
        )
        opened = " open" if len(runs) == 1 else ""
        parts.append(
            f"<details{opened}><summary>{html.escape(label)}</summary>"
            f'<div class="scroll"><table>{rows}</table></div></details>'
        )
    search = '<input type="search" id="search" placeholder="search the settings">'
    return f'<h2>Configuration</h2>{search}<div id="config">{"".join(parts)}</div>'


def _texts(title: str, texts: Sequence[str], labels: Sequence[str]) -> str:
    parts = [
        f"<details><summary>{html.escape(label)}</summary>"
        f"<pre>{html.escape(text)}</pre></details>"
        for text, label in zip(texts, labels, strict=True)
        if text
    ]
    return f"<h2>{title}</h2>{''.join(parts)}" if parts else ""


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


def _pretty(info: dict) -> str:
    return json.dumps(info, indent=1, default=str) if info else ""
