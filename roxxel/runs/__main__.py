"""`python -m roxxel.runs list DIR | compare RUN... | why RUN... | report RUN... |
serve DIR`.

Exit codes: 0 done, 2 no run is there or a wrong argument.
"""

import argparse
import pathlib
import sys

from roxxel.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from roxxel.runs import reading, tables


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        sys.stdout.write(args.run(args) + "\n")
    except (ConfigError, ImportError, OSError) as err:
        sys.stderr.write(f"roxxel.runs: {' '.join(str(err).split())}\n")
        return EXIT_CONFIG
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m roxxel.runs", description="What the runs in folders did."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = _command(commands, _list, "one line for every run below a folder")
    listing.add_argument("folder", nargs="?", default="runs", metavar="DIR")
    compare = _command(commands, _compare, "results and settings that differ")
    compare.add_argument("path", nargs="+", metavar="RUN")
    why = _command(commands, _why, "why it is slow, and which setting changes that")
    why.add_argument("path", nargs="+", metavar="RUN")
    report = _command(commands, _report, "one HTML file with curves, works offline")
    report.add_argument("path", nargs="+", metavar="RUN")
    report.add_argument("-o", "--output", default="report.html", metavar="FILE")
    serve = _command(commands, _serve, "the report, live, on localhost")
    serve.add_argument("folder", nargs="?", default="runs", metavar="DIR")
    serve.add_argument("--port", type=int, default=8765, help="8765; 0 for a free one")
    return parser


def _command(commands, run, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(run.__name__[1:], help=text, description=text)
    command.set_defaults(run=run)
    return command


def _list(args: argparse.Namespace) -> str:
    runs = reading.find(args.folder)
    return tables.listing(runs) if runs else f"No run below {args.folder}."


def _compare(args: argparse.Namespace) -> str:
    return tables.comparison([reading.open_run(path) for path in args.path])


def _why(args: argparse.Namespace) -> str:
    from roxxel.runs import why

    return "\n".join(why.explain(reading.open_run(path)) for path in args.path)


def _report(args: argparse.Namespace) -> str:
    from roxxel.runs import report

    output = pathlib.Path(args.output)
    size = report.write([reading.open_run(path) for path in args.path], output)
    return f"{output}: {size / 1e6:.1f} MB"


def _serve(args: argparse.Namespace) -> str:
    from roxxel.runs import serve

    with serve.make_server(args.folder, args.port) as server:
        address = f"http://localhost:{server.server_address[1]}/"
        sys.stdout.write(f"Serving {args.folder} at {address} (Ctrl-C ends)\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return "Ended."
    return "Ended."


if __name__ == "__main__":
    sys.exit(main())
