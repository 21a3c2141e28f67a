"""Mamba-2 as transformers keeps it (`Mamba2ForCausalLM`).

Their in_proj has our columns (z, x, B, C, dt) as rows, their conv1d the current step as
its last tap, their gated norm works per group: all as `models.mixer` has it.
"""

import math
from typing import Any

from roxxel.exchange import names
from roxxel.exchange.fields import Fields
from roxxel.models.ssm import Mamba2LM

MODEL = Mamba2LM
MODEL_TYPE = "mamba2"
ARCHITECTURE = "Mamba2ForCausalLM"

_MIXER, _OURS = "backbone.layers.{}.mixer.", "blocks.{}.mixer."
_TABLE: dict[str, tuple[str, names.Form]] = {
    "backbone.embeddings.weight": ("embedding", "rows"),
    "backbone.layers.{}.norm.weight": ("blocks.{}.norm.scale", "same"),
    f"{_MIXER}in_proj.weight": (f"{_OURS}in_proj", "transposed"),
    f"{_MIXER}conv1d.weight": (f"{_OURS}conv_weight", "taps"),
    f"{_MIXER}conv1d.bias": (f"{_OURS}conv_bias", "same"),
    f"{_MIXER}dt_bias": (f"{_OURS}dt_bias", "same"),
    f"{_MIXER}A_log": (f"{_OURS}A_log", "same"),
    f"{_MIXER}D": (f"{_OURS}D", "same"),
    f"{_MIXER}norm.weight": (f"{_OURS}norm.scale", "same"),
    f"{_MIXER}out_proj.weight": (f"{_OURS}out_proj", "transposed"),
    "backbone.norm_f.weight": ("norm.scale", "same"),
    "lm_head.weight": ("head", "rows"),
}


def settings(fields: Fields) -> dict[str, Any]:
    """Arguments of `Mamba2LM`; `fields.problems` tells what it cannot express."""
    d_model, expand = fields.size("hidden_size"), fields.size("expand", 2)
    heads, head_dim = fields.size("num_heads", 128), fields.size("head_dim", 64)
    if d_model * expand != heads * head_dim:
        fields.problems.append(
            f"hidden_size * expand = {d_model * expand} is not num_heads * head_dim = "
            f"{heads * head_dim}"
        )
    fields.only("use_bias", False, why="projections of the mixer have no bias here")
    fields.only("hidden_act", "silu", "swish", why="no other activation here")
    limits = ([0.0, math.inf], None)
    fields.only("time_step_limit", *limits, why="time steps are not clamped here")
    return {
        "vocab_size": fields.size("vocab_size"),
        "d_model": d_model,
        "n_layers": fields.size("num_hidden_layers"),
        "expand": expand,
        "head_dim": head_dim,
        "state_dim": fields.size("state_size", 128),
        "n_groups": fields.size("n_groups", 8),
        "conv_width": fields.size("conv_kernel", 4),
        "chunk_size": fields.size("chunk_size", 256),
        "conv_bias": fields.flag("use_conv_bias", True),
        "norm_eps": fields.number("layer_norm_epsilon", 1e-5),
    }


def settings_of(model: Mamba2LM) -> dict[str, Any]:
    """The arguments of `settings` that `model` was made with."""
    mixer = model.blocks[0].mixer
    return {
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "n_layers": len(model.blocks),
        "expand": mixer.d_inner // model.d_model,
        "head_dim": mixer.head_dim,
        "state_dim": mixer.state_dim,
        "n_groups": mixer.n_groups,
        "conv_width": mixer.conv_weight.shape[0],
        "chunk_size": mixer.chunk_size,
        "conv_bias": mixer.conv_bias is not None,
        "norm_eps": model.norm.eps,
        "tie_embeddings": model.head is None,
    }


def pairs(made: dict[str, Any]) -> list[names.Pair]:
    """The tensors of a model with these arguments."""
    without = [] if made["conv_bias"] else ["conv1d.bias"]
    without += ["lm_head.weight"] if made["tie_embeddings"] else []
    return names.expand(_TABLE, n_layers=made["n_layers"], without=without)


def config(made: dict[str, Any], *, max_length: int) -> dict[str, Any]:
    """The fields of `config.json` that belong to this architecture."""
    del max_length  # the state has no limit
    d_inner = made["expand"] * made["d_model"]
    return {
        "hidden_size": made["d_model"],
        "num_hidden_layers": made["n_layers"],
        "expand": made["expand"],
        "num_heads": d_inner // made["head_dim"],
        "head_dim": made["head_dim"],
        "state_size": made["state_dim"],
        "n_groups": made["n_groups"],
        "conv_kernel": made["conv_width"],
        "chunk_size": made["chunk_size"],
        "use_conv_bias": made["conv_bias"],
        "use_bias": False,
        "hidden_act": "silu",
        "layer_norm_epsilon": made["norm_eps"],
        "residual_in_fp32": True,
        "rescale_prenorm_residual": False,
        "initializer_range": 0.02,
        "time_step_rank": math.ceil(made["d_model"] / 16),
        "time_step_min": 0.001,
        "time_step_max": 0.1,
        "time_step_floor": 1e-4,
        "time_step_limit": [0.0, math.inf],
        "use_cache": True,
    }


def unfit(model: Mamba2LM) -> list[str]:
    """What of `model` their architecture cannot express."""
    del model
    return []
