"""What a run says of itself: the plan at its start, `run.json`, the results."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from roxxel import optim
from roxxel.models.ssm import num_params
from roxxel.train.evaluation import Evaluation
from roxxel.train.plan import Plan


def plan_lines(
    model: nnx.Module, stream: Any, plan: Plan, sets: Mapping[str, Evaluation]
) -> list[str]:
    """The model, the data and the plan of the run, for the log."""
    params = nnx.state(model, nnx.Param)
    return [
        f"Model {type(model).__name__}, {num_params(model):,} parameters, on "
        f"{jax.device_count()} {jax.devices()[0].platform} device(s) in "
        f"{jax.process_count()} process(es)",
        *_data_line(stream, plan.total_steps),
        *plan.lines({name: one.describe() for name, one in sets.items()}),
        "No weight decay on: " + _folded(optim.undecayed_names(params)),
    ]


def _data_line(stream: Any, total_steps: int) -> list[str]:
    if not stream.steps_per_epoch:
        return []
    elements = getattr(getattr(stream, "dataset", stream), "num_elements", None)
    size = f"{elements:,} elements, " if elements else ""
    epochs = total_steps / stream.steps_per_epoch
    return [
        f"Data {size}{stream.steps_per_epoch:,} steps an epoch, "
        f"{epochs:.2f} epochs in all"
    ]


def run_record(
    model: nnx.Module, stream: Any, plan: Plan, mesh: Mesh | None, *, start: int
) -> dict[str, Any]:
    """What only the running program knows, for `run.json`."""
    position = stream.position(start)
    position.pop("parts", None)  # states of iterators belong to checkpoints
    return {
        "parameters": num_params(model),
        "devices": [str(device) for device in jax.devices()],
        "device_kind": jax.devices()[0].device_kind,
        "mesh": {} if mesh is None else dict(mesh.shape),
        "position": position,
        "total_steps": plan.total_steps,
        "plan": plan.record(),
    }


def nothing_left(plan: Plan, step: int) -> str:
    """Why a start trains nothing."""
    if step < plan.total_steps and step >= plan.last_step:
        return (
            f"Nothing left to train: stop_after={plan.last_step} is reached; without "
            f"it the run goes on to step {plan.total_steps:,}."
        )
    return f"Nothing left to train: {step:,} of {plan.total_steps:,} steps are done."


def results_line(
    step: int, results: Mapping[str, float], verdict: Mapping[str, Any]
) -> str:
    """`Done after step 3. eval_loss 1.2346, ...`, and what `verdict` says."""
    values = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
    why = verdict.get("stopped_early")
    best = verdict.get("best")
    lines = [
        f"Stopped early after step {step}: {why}."
        if why
        else f"Done after step {step}.",
        values,
        f"Best {best['metric']} {best['value']:.6g} is that of step {best['step']}."
        if best
        else "",
    ]
    return " ".join(filter(None, lines))


def _folded(names: list[str]) -> str:
    """Names with layer numbers folded: `layers.*.norm.scale`."""
    folded = (
        ".".join("*" if part.isdigit() else part for part in name.split("."))
        for name in names
    )
    return ", ".join(dict.fromkeys(folded)) or "nothing"
