"""What a work directory says about its run: config.json, config.txt, run.json."""

from pathlib import Path
from typing import Any

from roxxel.config import dump, resolve, run_info, suggest, text, workdir

MAX_CHANGES = 50  # kept of the configuration


def write(
    found: resolve.Experiment,
    directory: Path,
    info: dict[str, Any],
    diff: str | None = None,
) -> list[str]:
    """Write the files; remarks for the user come back, one line each.

    Args:
      found: the experiment as it is going to run.
      directory: the work directory, which exists.
      info: from `run_info.collect`; gets `changes`, what this and earlier resumes have
        changed of the configuration.
      diff: from `run_info.uncommitted`; kept as a file unless it is long.
    """
    as_text = dump.to_text(found.config, name=found.name, source=found.source)
    as_json, warning = dump.to_json(found.config, name=found.name, source=found.source)
    before = workdir.read_text(directory)
    remarks = []
    changes = text.difference(before, as_text) if before is not None else []
    known = run_info.read(directory).get("changes") or []
    info["changes"] = [*known, *changes][-MAX_CHANGES:]
    if changes:
        listed = suggest.listing(changes)
        remarks.append(f"roxxel: note: {directory} ran before with {listed}")
    if warning is not None:
        remarks.append(f"roxxel: warning: {warning}")
    workdir.write_text(directory / workdir.CONFIG_JSON, as_json)
    workdir.write_text(directory / workdir.CONFIG_TEXT, as_text)
    run_info.write(directory, info)
    return remarks + _keep_diff(directory, diff or "")


def _keep_diff(directory: Path, diff: str) -> list[str]:
    file = directory / workdir.UNCOMMITTED
    size = len(diff.encode())
    if size > run_info.MAX_DIFF_BYTES:
        file.unlink(missing_ok=True)
        return [
            f"roxxel: note: the uncommitted changes are {size} bytes; run.json keeps "
            "only their SHA-256. Commit them to be able to replay this run."
        ]
    if diff:
        workdir.write_text(file, f"{diff}\n")
    else:
        file.unlink(missing_ok=True)
    return []
