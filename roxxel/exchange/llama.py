"""Llama as transformers keeps it (`LlamaForCausalLM`), rotary halves as here."""

from typing import Any

import jax

from roxxel.exchange import names
from roxxel.exchange.fields import Fields
from roxxel.models.transformer import TransformerLM

MODEL = TransformerLM
MODEL_TYPE = "llama"
ARCHITECTURE = "LlamaForCausalLM"

_ATTENTION, _MLP = "model.layers.{}.self_attn.", "model.layers.{}.mlp."
_PROJECTIONS = {
    **{f"{_ATTENTION}{n}_proj": f"blocks.{{}}.attention.{n}_proj" for n in "qkvo"},
    **{f"{_MLP}{n}_proj": f"blocks.{{}}.mlp.{n}_proj" for n in ("gate", "up", "down")},
}
_TABLE: dict[str, tuple[str, names.Form]] = {
    "model.embed_tokens.weight": ("embedding", "rows"),
    "model.layers.{}.input_layernorm.weight": ("blocks.{}.norm1.scale", "same"),
    **{f"{t}.weight": (f"{o}.weight", "transposed") for t, o in _PROJECTIONS.items()},
    **{f"{t}.bias": (f"{o}.bias", "same") for t, o in _PROJECTIONS.items()},
    "model.layers.{}.post_attention_layernorm.weight": (
        "blocks.{}.norm2.scale",
        "same",
    ),
    "model.norm.weight": ("norm.scale", "same"),
    "lm_head.weight": ("head", "rows"),
}
_ACTIVATIONS = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "gelu_new": jax.nn.gelu,
    "relu": jax.nn.relu,
}


def settings(fields: Fields) -> dict[str, Any]:
    """Arguments of `TransformerLM`; `fields.problems` tells what it cannot express."""
    heads = fields.size("num_attention_heads")
    d_model = fields.size("hidden_size")
    activation = fields.values.get("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        fields.problems.append(f"hidden_act is {activation!r}, expected one of {known}")
    bias = fields.flag("attention_bias", False)
    if bias != fields.flag("mlp_bias", False):
        fields.problems.append(
            f"attention_bias is {bias} and mlp_bias is {not bias}; here all "
            "projections have a bias or none"
        )
    return {
        "vocab_size": fields.size("vocab_size"),
        "d_model": d_model,
        "n_layers": fields.size("num_hidden_layers"),
        "n_heads": heads,
        "n_kv_heads": fields.size("num_key_value_heads", heads),
        "head_dim": fields.size("head_dim", max(1, d_model // heads)),
        "d_ff": fields.size("intermediate_size"),
        "activation": _ACTIVATIONS.get(activation, jax.nn.silu),
        "rope_theta": _rope_theta(fields),
        "bias": bias,
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
    }


def _rope_theta(fields: Fields) -> float:
    """The base, in `rope_parameters` (transformers 5) or beside `rope_scaling` (4)."""
    rope = fields.values.get("rope_parameters") or fields.values.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    partial = rope.get("partial_rotary_factor", 1.0)
    if kind != "default" or partial != 1.0:
        fields.problems.append(
            f"rotary positions are {rope!r}, expected rope_type 'default' over the "
            "whole head: no scaling here"
        )
    inner = Fields(rope)
    if "rope_theta" not in rope:
        return fields.number("rope_theta", 10000.0)
    theta = inner.number("rope_theta", 10000.0)
    fields.problems.extend(inner.problems)
    return theta


def settings_of(model: TransformerLM) -> dict[str, Any]:
    """The arguments of `settings` that `model` was made with."""
    block = model.blocks[0]
    attention = block.attention
    return {
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "n_layers": len(model.blocks),
        "n_heads": attention.n_heads,
        "n_kv_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "d_ff": block.mlp.gate_proj.weight.shape[1],
        "activation": block.mlp.activation,
        "rope_theta": float(attention.rope_theta),
        "bias": attention.q_proj.bias is not None,
        "norm_eps": model.norm.eps,
        "tie_embeddings": model.head is None,
    }


def pairs(made: dict[str, Any]) -> list[names.Pair]:
    """The tensors of a model with these arguments."""
    without = [] if made["bias"] else ["_proj.bias"]
    without += ["lm_head.weight"] if made["tie_embeddings"] else []
    return names.expand(_TABLE, n_layers=made["n_layers"], without=without)


def config(made: dict[str, Any], *, max_length: int) -> dict[str, Any]:
    """The fields of `config.json` that belong to this architecture."""
    theta = made["rope_theta"]
    return {
        "hidden_size": made["d_model"],
        "intermediate_size": made["d_ff"],
        "num_hidden_layers": made["n_layers"],
        "num_attention_heads": made["n_heads"],
        "num_key_value_heads": made["n_kv_heads"],
        "head_dim": made["head_dim"],
        "hidden_act": _activation_name(made["activation"]),
        "max_position_embeddings": max_length,
        "rms_norm_eps": made["norm_eps"],
        "rope_theta": theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "attention_bias": made["bias"],
        "attention_dropout": 0.0,
        "mlp_bias": made["bias"],
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
    }


def _activation_name(activation: Any) -> str | None:
    return next((n for n, value in _ACTIVATIONS.items() if value is activation), None)


def unfit(model: TransformerLM) -> list[str]:
    """What of `model` their architecture cannot express."""
    block = model.blocks[0]
    problems = []
    if block.attention.q_norm is not None:
        problems.append("qk_norm=True")
    if block.attention.window is not None:
        problems.append(f"window={block.attention.window}")
    if _activation_name(block.mlp.activation) is None:
        problems.append(f"activation={block.mlp.activation!r}")
    return problems
