"""What a run says of itself: the plan at its start, `run.json`, the results."""

from typing import Any

import jax
from flax import nnx

from roxxel import optim
from roxxel.models.ssm import num_params


def plan_lines(model: nnx.Module, stream: Any, *, total_steps: int) -> list[str]:
    """The model, the data and the length of the run, for the log."""
    params = nnx.state(model, nnx.Param)
    return [
        f"Model {type(model).__name__}, {num_params(model):,} parameters, on "
        f"{jax.device_count()} {jax.devices()[0].platform} device(s) in "
        f"{jax.process_count()} process(es)",
        *_data_lines(stream, total_steps),
        "No weight decay on: " + _folded(optim.undecayed_names(params)),
    ]


def _data_lines(stream: Any, total_steps: int) -> list[str]:
    size = f"{stream.batch_size} x {stream.seq_len} tokens"
    if not stream.steps_per_epoch:
        return [f"Plan {total_steps:,} steps of {size}"]
    return [
        f"Data {stream.dataset.num_elements:,} elements, "
        f"{stream.steps_per_epoch:,} steps an epoch",
        f"Plan {total_steps:,} steps of {size}, "
        f"{total_steps / stream.steps_per_epoch:.2f} epochs",
    ]


def run_record(
    model: nnx.Module, stream: Any, *, start: int, total_steps: int
) -> dict[str, Any]:
    """What only the running program knows, for `run.json`."""
    return {
        "parameters": num_params(model),
        "devices": [str(device) for device in jax.devices()],
        "position": stream.position(start),
        "total_steps": total_steps,
    }


def results_line(step: int, results: dict[str, float]) -> str:
    """`Done after step 3. eval_loss 1.2346, ...`."""
    values = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
    return f"Done after step {step}. {values}".rstrip()


def _folded(names: list[str]) -> str:
    """Names with layer numbers folded: `layers.*.norm.scale`."""
    folded = (
        ".".join("*" if part.isdigit() else part for part in name.split("."))
        for name in names
    )
    return ", ".join(dict.fromkeys(folded)) or "nothing"
