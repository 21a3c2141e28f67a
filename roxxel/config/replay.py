"""`--mode=replay`: a run again in a new folder, compared bit by bit.

Before any step, what the run depended on is compared with what is here, and its data
are read in full. A difference ends the replay, unless it is forced.
"""

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roxxel import distributed, errors
from roxxel.config import (
    arguments,
    curves,
    data_facts,
    dump,
    fields,
    ingredients,
    joining,
    resolve,
    run_info,
    say,
    start,
)
from roxxel.config import workdir as workdir_lib
from roxxel.errors import ConfigError

SUMMARY = "summary.json"


def run(
    found: resolve.Experiment, line: arguments.CommandLine, argv: Sequence[str]
) -> int:
    """Run again what `--run` holds; 0 where all numbers are the same, else 1.

    Raises:
      ConfigError: something that the run depended on is not as it was, its data are
        damaged, or there is nothing to compare with.
    """
    flag = f"--run={line.get('run')}"
    origin = workdir_lib.choose(line.get("run"), "")
    before = curves.read(origin, flag)
    recorded = run_info.read(origin)
    if not recorded:
        raise ConfigError(f"{flag}: there is no run.json that can be read.")
    workdir = _new_folder(origin, line.get("workdir"))
    as_text = dump.to_text(found.config, name=found.name, source=found.source)
    _stop_where_the_run_did(found, origin, max(before))
    start.check_runs(found.target, found.name)
    distributed.initialize(*joining.given(line), timeout_secs=line.get("init_timeout"))
    built = start.build(found)
    _check_data(built, flag)
    refuse = functools.partial(_refuse, flag=flag, forced=line.on("force"))
    differences = refuse(_differences(origin, recorded, built, as_text))
    if recorded.get("devices"):  # last, for it starts them
        differences = refuse(ingredients.devices(recorded)) + differences
    code = start.run(
        found,
        built,
        workdir,
        argv,
        flag=f"--workdir={workdir}",
        is_new=not workdir.exists(),
        extra={"replay_of": str(origin)},
    )
    if code or not distributed.is_lead():
        return code
    return _verdict(before, curves.read(workdir, f"--workdir={workdir}"), differences)


def _new_folder(origin: Path, given: str | None) -> Path:
    path = workdir_lib.choose(given, "") if given else Path(f"{origin}-replay")
    workdir_lib.check_writable(path, f"--workdir={path}")
    if path.exists() and any(path.iterdir()):
        raise ConfigError(
            f"--workdir={path}: is not empty; a replay needs a folder of its own."
        )
    return path


def _stop_where_the_run_did(
    found: resolve.Experiment, origin: Path, last_step: int
) -> None:
    """An unfinished run is replayed up to its last step, with its own schedule."""
    finished = _summary(origin).get("steps") == last_step
    if not finished and "stop_after" in fields.names(found.config):
        found.config.stop_after = last_step
    if found.config.__arguments__.get("profile") is not None:
        found.config.profile = None  # its steps may come later


def _summary(origin: Path) -> dict[str, Any]:
    try:
        content = json.loads((origin / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _check_data(built: Any, flag: str) -> None:
    found = data_facts.datasets(built)
    size = sum(os.path.getsize(path) for data in found.values() for path in data.shards)
    say.lines([f"roxxel: note: reading {size / 1e6:,.1f} MB of data to check them"])
    faults = [fault for data in found.values() for fault in data_facts.faults(data)]
    if faults:
        raise ConfigError(
            "\n".join([f"{flag}: the data are damaged: {faults[0]}", *faults[1:]])
        )


def _differences(
    origin: Path, recorded: dict[str, Any], built: Any, as_text: str
) -> list[ingredients.Difference]:
    source = str(recorded.get("source") or "")
    diff = run_info.uncommitted(run_info.repository(source))
    now = run_info.collect(argv=[], experiment="", source=source, workdir="", diff=diff)
    now["data"] = data_facts.of(built)
    return ingredients.compare(origin, recorded, now, as_text)


def _refuse(
    differences: list[ingredients.Difference], *, flag: str, forced: bool
) -> list[ingredients.Difference]:
    """The differences, when none of them ends the replay."""
    blocking = [one.text for one in differences if one.blocks]
    if blocking and not forced:
        first = (
            f"{flag}: cannot be the same run: {blocking[0]}. --force runs it anyway."
        )
        raise ConfigError("\n".join([first, *blocking[1:]]))
    say.lines(f"roxxel: note: {one.text}" for one in differences)
    return differences


def _verdict(
    before: dict[int, dict[str, str]],
    after: dict[int, dict[str, str]],
    differences: list[ingredients.Difference],
) -> int:
    difference = curves.first_difference(before, after)
    names = ", ".join(name for name in next(iter(after.values())) if name != "step")
    if difference is None:
        say.result(f"replay: bit-equal, {len(after)} steps of {names}")
        return errors.EXIT_OK
    cause = differences[0].text if differences else "nothing else is known to differ"
    say.result(f"replay: differs: {difference}. First ingredient: {cause}")
    return errors.EXIT_ERROR
