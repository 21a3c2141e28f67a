"""A live report on localhost: made anew whenever a run has written something."""

import functools
import http.server
import pathlib
import urllib.parse

from roxxel.runs import report
from roxxel.runs.reading import Run, find, open_run

_REFRESH_SECS = 5
_WATCHED = ("roxxel_metrics.csv", "summary.json", "run.json", "roxxel_system.log")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers `/` with the report and `/version` with what its state is called.

    Only names of this machine are served: another page in the browser cannot reach the
    report under a name of its own.
    """

    def __init__(self, folder: pathlib.Path, *args):
        self._folder = folder
        super().__init__(*args)

    def do_GET(self) -> None:
        """Serves the two addresses."""
        host = urllib.parse.urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in ("localhost", "127.0.0.1", "::1"):
            self.send_error(403)
            return
        path = urllib.parse.urlsplit(self.path).path
        if path not in ("/", "/version"):
            self.send_error(404)
            return
        runs = [Run(run.path) for run in _runs(self._folder)]
        version = _version(runs)
        if path == "/version":
            self._answer(version, "text/plain")
            return
        page = report.page(runs, refresh_secs=_REFRESH_SECS, version=version)
        self._answer(page, "text/html")

    def _answer(self, text: str, kind: str) -> None:
        content = text.encode("utf-8", "backslashreplace")
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args) -> None:
        """Nothing: a page that asks every five seconds is no news."""


def make_server(folder: str, port: int) -> http.server.ThreadingHTTPServer:
    """A server bound to 127.0.0.1 that is not yet running.

    Raises:
      ConfigError: the folder holds no run.
      OSError: the port is taken.
    """
    path = pathlib.Path(folder)
    _runs(path)
    handler = functools.partial(Handler, path)
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


def _runs(folder: pathlib.Path) -> list[Run]:
    found = find(str(folder))
    return found or [open_run(str(folder))]


def _version(runs: list[Run]) -> str:
    stats = []
    for run in runs:
        for name in _WATCHED:
            path = run.path / name
            if path.exists():
                stat = path.stat()
                stats.append((str(path), stat.st_size, stat.st_mtime_ns))
    return str(hash(tuple(stats)))
