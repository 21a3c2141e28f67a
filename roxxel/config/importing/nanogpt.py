"""Settings of nanoGPT (karpathy/nanoGPT, `config/*.py`).

Names, defaults and meanings as in its `train.py`. A file is read, never run.
"""

import ast
import operator
from collections.abc import Mapping
from typing import Any

from roxxel.config.importing.settings import Program, setting
from roxxel.errors import ConfigError

_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def read(text: str, where: str) -> dict[str, Any]:
    """Top-level assignments of a Python file, arithmetic of them included.

    Raises:
      ConfigError: it is no Python, or a value is computed in another way.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as err:
        raise ConfigError(f"{where}:{err.lineno} is no Python: {err.msg}.") from err
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            try:
                found[name] = _value(node.value, found)
            except ValueError as err:
                raise ConfigError(
                    f"{where}:{node.lineno}: {name} is computed by "
                    f"{ast.unparse(node.value)}, which is not run; write its value."
                ) from err
    return found


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    operation = _OPERATORS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if isinstance(node, ast.BinOp) and operation is not None:
        left, right = _value(node.left, names), _value(node.right, names)
        if not all(isinstance(v, int | float) and abs(v) < 1e18 for v in (left, right)):
            raise ValueError
        if isinstance(node.op, ast.Pow) and abs(right) > 64:
            raise ValueError
        return operation(left, right)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    return ast.literal_eval(node)


def _rows(theirs: Mapping[str, Any]) -> int:
    return theirs["batch_size"] * theirs["gradient_accumulation_steps"]


def _tokens(theirs: Mapping[str, Any]) -> int:
    return theirs["max_iters"] * _rows(theirs) * theirs["block_size"]


def _warmup(theirs: Mapping[str, Any]) -> int:
    return int(theirs["warmup_iters"]) if theirs["decay_lr"] else 0


def _final_fraction(theirs: Mapping[str, Any]) -> float:
    if not theirs["decay_lr"]:
        return 1.0
    if theirs["lr_decay_iters"] != theirs["max_iters"]:
        raise ConfigError(
            f"nanoGPT: lr_decay_iters {theirs['lr_decay_iters']} is not max_iters "
            f"{theirs['max_iters']}; the schedule here is as long as the run. Make "
            "them equal, and end early with --stop_after."
        )
    return theirs["min_lr"] / theirs["learning_rate"]


NANOGPT = Program(
    name="nanoGPT",
    settings=(
        setting("n_layer", 12, "model.n_layers"),
        setting("n_head", 12, "model.n_heads"),
        setting("n_embd", 768, "model.d_model"),
        setting("block_size", 1024, "stream.seq_len"),
        setting("bias", False, "model.bias"),
        setting("dropout", 0.0, must_be=(0.0, 0), note="There is no dropout here."),
        setting(
            "dtype",
            "bfloat16",
            "model.compute_dtype",
            lambda theirs: {"float16": "bfloat16"}.get(
                theirs["dtype"], theirs["dtype"]
            ),
            note="float16 becomes bfloat16",
        ),
        setting(
            "batch_size",
            12,
            "stream.batch_size",
            _rows,
            note="times accumulation: ours is the batch of an update",
        ),
        setting(
            "gradient_accumulation_steps",
            40,
            "accumulate",
            note="micro-batches of an update over all processes",
        ),
        setting("max_iters", 600_000, "total_steps.tokens", _tokens, note="as tokens"),
        setting("learning_rate", 6e-4, "schedule.peak"),
        setting("warmup_iters", 2000, "schedule.warmup", _warmup),
        setting("min_lr", 6e-5, "schedule.final_fraction", _final_fraction),
        setting("decay_lr", True, note="False: no warm-up, no decay"),
        setting("lr_decay_iters", 600_000, note="must be max_iters"),
        setting("beta1", 0.9, "optimizer.b1"),
        setting("beta2", 0.95, "optimizer.b2"),
        setting("weight_decay", 0.1, "optimizer.weight_decay"),
        setting(
            "grad_clip",
            1.0,
            "optimizer.clip_norm",
            lambda theirs: theirs["grad_clip"] or None,
            note="0 is None",
        ),
        setting("eval_interval", 2000, "save_every", note="it saves when it evaluates"),
        setting("init_from", "scratch", must_be=("scratch",)),
        setting("dataset", "", note="builders.nanogpt reads its train.bin"),
        setting("eval_iters", 200, note="the whole held-out set is evaluated"),
        setting("out_dir", "out", note="--workdir"),
        setting("log_interval", 1, note="logger.console_every"),
        setting("always_save_checkpoint", True, note="newest and best are kept"),
        setting("eval_only", False, note="--mode=eval"),
        setting("wandb_log", False, note="a sink of the logger"),
        setting("wandb_project", "", note="a sink of the logger"),
        setting("wandb_run_name", "", note="a sink of the logger"),
        setting("backend", "nccl", note="found out by jax"),
        setting("device", "cuda", note="found out by jax"),
        setting("compile", True, note="always"),
    ),
    remarks=(
        "the model is Llama-style (RMS norm, rotary positions, gated silu of 8/3 the "
        "width), not GPT-2's (layer norm, learned positions, gelu): sizes are the "
        "same, weights cannot be exchanged",
        "vocab_size is 50304, GPT-2's padded; set it to your tokenizer's",
        "batches are rows without repeats in an epoch, there random windows",
    ),
    read=read,
)
