"""Settings of MaxText (AI-Hypercomputer/maxtext): `base.yml` and what extends it.

Names, defaults and meanings as in its `configs/types.py` of 2025.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from roxxel.config.importing.settings import OMIT, Program, setting
from roxxel.errors import ConfigError

_REMAT = {"full": "full", "none": "none", "minimal": "dots"}
_AXES = ("data", "fsdp", "tensor", "context")


def read(text: str, where: str) -> dict[str, Any]:
    """Top-level settings of a YAML file.

    Raises:
      ConfigError: it is no YAML, or not a mapping of names.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as err:
        first = re.sub(r"\s+", " ", str(err))
        raise ConfigError(f"{where} is no YAML: {first}") from err
    if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
        raise ConfigError(f"{where}: expected names and values, as in MaxText's YAML.")
    return {key: _number(value) for key, value in found.items()}


def _number(value: Any) -> Any:
    """YAML 1.1 reads `3.e-5` and `1e-5` as text; they are numbers."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+\.?\d*[eE][-+]?\d+", value):
        return float(value)
    return value


def _batch_size(theirs: Mapping[str, Any]) -> int:
    rows = theirs["per_device_batch_size"] * theirs["devices"]
    rows *= theirs["gradient_accumulation_steps"]
    if rows != int(rows) or rows < 1:
        raise ConfigError(
            f"MaxText: per_device_batch_size {theirs['per_device_batch_size']} on "
            f"{theirs['devices']} device(s) is {rows} rows; give --devices=N."
        )
    return int(rows)


def _total_steps(theirs: Mapping[str, Any]) -> int:
    return max(1, int(theirs["steps"]))


def _mesh(theirs: Mapping[str, Any]) -> dict[str, int]:
    sizes = {axis: theirs[f"ici_{axis}_parallelism"] for axis in _AXES}
    return {axis: size for axis, size in sizes.items() if size != 1} or {"data": -1}


def _slices(theirs: Mapping[str, Any]) -> Any:
    sizes = {axis: theirs[f"dcn_{axis}_parallelism"] for axis in _AXES}
    return {axis: size for axis, size in sizes.items() if size > 1} or OMIT


def _tokens(theirs: Mapping[str, Any]) -> int:
    return _total_steps(theirs) * _batch_size(theirs) * theirs["max_target_length"]


def _scaled(name: str):
    return lambda theirs: theirs[name] * theirs["global_parameter_scale"]


def _remat(theirs: Mapping[str, Any]) -> str:
    policy = theirs["remat_policy"]
    if policy not in _REMAT:
        known = ", ".join(_REMAT)
        raise ConfigError(
            f"MaxText: remat_policy {policy!r} has no equal here (known: {known}); set "
            "one of them in the file, and model.remat afterwards."
        )
    return _REMAT[policy]


_MODEL = (
    setting(
        "decoder_block",
        "llama2",
        must_be=("llama2", "default"),
        note="Only Llama-style blocks are the same: RMS norm, rotary, gated silu.",
    ),
    setting("mlp_activations", ["silu", "linear"], must_be=(["silu", "linear"],)),
    setting("num_experts", 1, must_be=(1,), note="There are no experts here."),
    setting("attention_type", "global", must_be=("global",)),
    setting("global_parameter_scale", 1, note="multiplied into the sizes"),
    setting("vocab_size", 32000, "model.vocab_size"),
    setting("base_emb_dim", 2048, "model.d_model", _scaled("base_emb_dim")),
    setting("base_num_decoder_layers", 16, "model.n_layers"),
    setting(
        "base_num_query_heads", 16, "model.n_heads", _scaled("base_num_query_heads")
    ),
    setting("base_num_kv_heads", 16, "model.n_kv_heads", _scaled("base_num_kv_heads")),
    setting("base_mlp_dim", 7168, "model.d_ff", _scaled("base_mlp_dim")),
    setting("head_dim", 128, "model.head_dim"),
    setting("normalization_layer_epsilon", 1e-5, "model.norm_eps"),
    setting(
        "rope_max_timescale", 10_000, "model.rope_theta", note="the base of the waves"
    ),
    setting("logits_via_embedding", False, "model.tie_embeddings"),
    setting("attention_bias", False, must_be=(False,)),
    setting("dtype", "bfloat16", "model.compute_dtype"),
    setting("weight_dtype", "float32", must_be=("float32",)),
    setting("scan_layers", True, "model.scan_layers"),
    setting(
        "remat_policy",
        "full",
        "model.remat",
        _remat,
        note="minimal is `dots`; policies by name have no equal",
    ),
    setting("dropout_rate", 0.0, must_be=(0.0, 0), note="No dropout here."),
)

_RUN = (
    setting("max_target_length", 2048, "stream.seq_len"),
    setting(
        "per_device_batch_size",
        12,
        "stream.batch_size",
        _batch_size,
        note="times devices and accumulation: ours is global",
    ),
    setting("gradient_accumulation_steps", 1, "accumulate"),
    setting("data_shuffle_seed", 0, "stream.seed"),
    setting("init_weights_seed", 0, "seed"),
    setting("steps", 150_001, "total_steps.tokens", _tokens, note="as tokens"),
    setting("opt_type", "adamw", must_be=("adamw",)),
    setting("learning_rate", 3e-5, "schedule.peak"),
    setting("warmup_steps_fraction", 0.1, "schedule.warmup"),
    setting("cosine_learning_rate_final_fraction", 0.1, "schedule.final_fraction"),
    setting(
        "learning_rate_schedule_steps",
        -1,
        must_be=(-1,),
        note="The schedule is as long as the run; `--stop_after` ends early.",
    ),
    setting("adam_b1", 0.9, "optimizer.b1"),
    setting("adam_b2", 0.95, "optimizer.b2"),
    setting("adam_eps", 1e-8, "optimizer.eps"),
    setting("adam_weight_decay", 0.1, "optimizer.weight_decay"),
    setting(
        "gradient_clipping_threshold",
        1.0,
        "optimizer.clip_norm",
        lambda theirs: theirs["gradient_clipping_threshold"] or None,
        note="0 is None",
    ),
    setting(
        "checkpoint_period", 10_000, "save_every", note="of steps; also at the end"
    ),
    setting("max_num_checkpoints_to_keep", None, note="checkpointer.max_to_keep"),
    setting("eval_interval", -1, note="evaluation.every, of an Evaluation of your own"),
    setting("dataset_type", "tfds", note="build shards once: docs/your-data.md"),
    setting("dataset_path", "", note="build shards once: docs/your-data.md"),
    setting("dataset_name", "", note="build shards once: docs/your-data.md"),
    setting("hf_path", "", note="roxxel.builders: a source of its own"),
    setting("grain_train_files", "", note="roxxel.builders: a source of its own"),
    setting("tokenizer_path", "", note="give it to the builder of the data set"),
    setting("tokenizer_type", "", note="give it to the builder of the data set"),
    setting("base_output_directory", "", note="--workdir"),
    setting("run_name", "", note="--workdir"),
    setting("enable_checkpointing", True, note="always on"),
    setting("async_checkpointing", True, note="always on"),
    setting("log_period", 100, note="logger.console_every; metrics are not thinned"),
    setting("attention", "autoselected", note="taken by platform here too"),
    setting("hardware", "tpu", note="found out by jax"),
    setting("profiler", "", note="--profile=START:STOP"),
)

_PARALLEL = (
    setting("ici_data_parallelism", 1, "mesh_axes", _mesh, note="one of the axes"),
    *(
        setting(
            f"ici_{axis}_parallelism",
            -1 if axis == "fsdp" else 1,
            "mesh_axes",
            _mesh,
            note="one of the axes",
        )
        for axis in _AXES[1:]
    ),
    *(
        setting(
            f"dcn_{axis}_parallelism",
            -1 if axis == "data" else 1,
            "dcn_axes",
            _slices,
            note="one of the axes, where it is over 1",
        )
        for axis in _AXES
    ),
)

MAXTEXT = Program(
    name="MaxText",
    settings=(*_MODEL, *_RUN, *_PARALLEL),
    remarks=(
        "initial weights are drawn differently",
        "weight decay leaves norms out here; there it takes all parameters",
        "batches follow roxxel's own keyed order of the data",
    ),
    read=read,
)
