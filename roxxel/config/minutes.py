"""A run whose length is given in minutes: measured once, recorded, then in steps.

`budget.json` in the work directory holds the measured rate and the steps, so that a
resumed run keeps its length and its schedule whatever the machine does that day.
"""

import json
from pathlib import Path
from typing import Any

import fiddle as fdl
from fiddle import daglish

from roxxel import budget, distributed
from roxxel.config import workdir as workdir_lib
from roxxel.config.resolve import Experiment

BUDGET_JSON = "budget.json"
_PROVISIONAL_STEPS = 1000


def resolve(found: Experiment, workdir: Path, flag: str) -> list[str]:
    """Puts `steps` in the place of `minutes`; remarks for the user come back.

    Touches the devices where nothing was recorded yet, for some seconds. Makes the work
    directory to record it.

    Raises:
      ConfigError: the graph cannot be built or its run has no rate to measure.
    """
    nodes = [node for node, _ in daglish.iterate(found.config) if _in_minutes(node)]
    if not nodes:
        return []
    minutes = nodes[0].minutes
    record = _recorded(workdir)
    if record is None or record["minutes"] != minutes:
        record = _measured(found, nodes, minutes, record)
        workdir_lib.make(workdir, flag)
        if distributed.is_lead():
            text = json.dumps(record, indent=1) + "\n"
            workdir_lib.write_text(workdir / BUDGET_JSON, text)
    _set_steps(nodes, record["steps"])
    return [
        f"roxxel: note: {minutes:g} minutes at {record['tokens_per_second']:,.0f} "
        f"tokens/s are {record['steps']:,} steps (kept in {workdir / BUDGET_JSON})"
    ]


def _in_minutes(node: Any) -> bool:
    return (
        isinstance(node, fdl.Buildable)
        and fdl.get_callable(node) is budget.total_steps
        and node.__arguments__.get("minutes") is not None
    )


def _set_steps(nodes: list[fdl.Buildable], steps: int) -> None:
    for node in nodes:
        node.minutes, node.steps = None, steps


def _measured(
    found: Experiment, nodes: list[fdl.Buildable], minutes: float, old: dict | None
) -> dict[str, Any]:
    """The record of a run built with a provisional length; keeps the rate of `old`."""
    from roxxel.train import calibrate

    _set_steps(nodes, _PROVISIONAL_STEPS)
    try:
        trainer = fdl.build(found.config)
    finally:
        for node in nodes:
            node.minutes, node.steps = minutes, None
    rate = old["tokens_per_second"] if old else calibrate.tokens_per_second(trainer)
    steps = max(1, trainer.stream.steps_for(int(rate * 60 * minutes)))
    return {"minutes": minutes, "tokens_per_second": rate, "steps": steps}


def _recorded(workdir: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((workdir / BUDGET_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    keys = {"minutes", "tokens_per_second", "steps"}
    return record if isinstance(record, dict) and keys <= record.keys() else None
