"""`--mode=graph`: a drawing of the graph, as SVG, HTML, DOT or text.

Where Graphviz is installed, its `dot` lays the nodes out; else the tree is drawn.
"""

import os
import shutil
import subprocess
from pathlib import Path

from roxxel.config import drawing_dot, drawing_svg, resolve, say, tree, workdir
from roxxel.errors import ConfigError

DOT_TIMEOUT_SECS = 60.0
FORMATS = (".svg", ".html", ".dot", ".txt")


def draw(
    found: resolve.Experiment, path: str | None = None, output: str | None = None
) -> str:
    """Draw a graph; what to print on stdout.

    Args:
      found: the experiment.
      path: draw only this node and what is below it.
      output: a file whose ending says the format. None: SVG on stdout where `dot` is
        installed, else a text tree.

    Raises:
      ConfigError: the file has another ending or cannot be written, there is nothing
        at `path`, or `dot` fails.
    """
    rows = tree.rows(found.config, path)
    if output is None:
        if shutil.which("dot"):
            return _svg(found, rows)
        say.lines(["roxxel: note: Graphviz (dot) is not installed; this is the tree."])
        return as_text(rows)
    file = Path(os.path.expanduser(output))
    if file.suffix not in FORMATS:
        raise ConfigError(
            f"--output={output}: expected a file that ends in {', '.join(FORMATS)}."
        )
    return _written(file, _content(found, rows, file.suffix), output)


def as_text(rows: list[tree.Row]) -> str:
    """The tree in text."""
    stems = tree.branches(row.depth for row in rows)
    return "\n".join(
        f"{stem}{row.label}" for stem, row in zip(stems, rows, strict=True)
    )


def _content(found: resolve.Experiment, rows: list[tree.Row], suffix: str) -> str:
    if suffix == ".txt":
        return as_text(rows)
    if suffix == ".dot":
        return drawing_dot.source(rows)
    svg = _svg(found, rows)
    return svg if suffix == ".svg" else drawing_svg.page(found.name, svg)


def _svg(found: resolve.Experiment, rows: list[tree.Row]) -> str:
    program = shutil.which("dot")
    if program is None:
        return drawing_svg.drawing(found.name, rows)
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=drawing_dot.source(rows),
            capture_output=True,
            encoding="utf-8",
            timeout=DOT_TIMEOUT_SECS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as err:
        raise ConfigError(f"--mode=graph: {program} failed: {err}") from err
    if done.returncode:
        reason = done.stderr.strip().splitlines() or ["no message"]
        raise ConfigError(f"--mode=graph: {program} failed: {reason[0]}")
    return done.stdout.rstrip()


def _written(file: Path, content: str, output: str) -> str:
    try:
        workdir.write_text(file, f"{content}\n")
    except OSError as err:
        raise ConfigError(f"--output={output}: {err.strerror}.") from err
    return f"{file}"
