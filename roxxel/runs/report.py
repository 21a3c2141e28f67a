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
from roxxel.goodput import LOST, PHASES
from roxxel.runs import curves, sections
from roxxel.runs.reading import Run

try:
    from plotly.offline import get_plotlyjs
except ImportError as err:
    raise extras.missing("roxxel.runs.report", "report", err) from err


# One for each round through the colors.
_DASHES = ("solid", "dot", "dash", "dashdot")


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
    labels = sections.labels_of(runs)
    drawn = curves.of_runs(runs)
    data = {
        "runs": [
            {
                "id": i,
                "label": label,
                "color": sections.COLORS[i % len(sections.COLORS)],
                "dash": _DASHES[i // len(sections.COLORS) % len(_DASHES)],
                "curves": drawn[i],
                "seconds": _known_phases(run.seconds),
            }
            for i, (run, label) in enumerate(zip(runs, labels, strict=True))
        ],
        "phases": [*PHASES, LOST],
        "refresh": refresh_secs,
        "version": version,
    }
    body = [
        sections.errors(runs, labels),
        sections.table_of_runs(runs, labels),
        sections.plots(data),
        sections.differences(runs, labels),
        sections.results(runs, labels),
        sections.time_spent(runs, labels),
        sections.texts("Samples", [run.sample for run in runs], labels),
        sections.configs(runs, labels),
        sections.texts(
            "Environment", [sections.pretty(run.info) for run in runs], labels
        ),
        sections.texts("Last log lines", [run.log_tail for run in runs], labels),
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


def _known_phases(seconds: dict[str, float]) -> dict[str, float]:
    """Names of other programs are no part of a drawing, which takes some as markup."""
    return {name: secs for name, secs in seconds.items() if name in (*PHASES, LOST)}
