"""The Transformer against its golden: values, gradients, documents, caches."""

import functools
import json
import pathlib

import numpy as np
import pytest
import quick
from flax import nnx
from test_ssm import assert_close, assert_leaves_close, jit_value_and_grad, load

from roxxel.models import losses
from roxxel.models.transformer import TransformerLM

GOLDENS = pathlib.Path(__file__).parent / "goldens"
SEPARATOR = 31


@functools.cache
def golden():
    with np.load(GOLDENS / "llama_lm.npz") as file:
        return {key: file[key] for key in file.files}


def golden_leaves(weights, prefix):
    """The golden's tensors as `{path in our model: array in our layout}`."""
    leaves = {
        ("embedding",): weights[f"{prefix}model.embed_tokens.weight"],
        ("norm", "scale"): weights[f"{prefix}model.norm.weight"],
        ("head",): weights[f"{prefix}lm_head.weight"],
    }
    for layer in range(2):
        former, path = f"{prefix}model.layers.{layer}.", ("blocks", layer)
        norms = (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm"))
        for ours, theirs in norms:
            leaves[(*path, ours, "scale")] = weights[f"{former}{theirs}.weight"]
        for part, theirs, names in (
            ("attention", "self_attn", "qkvo"),
            ("mlp", "mlp", ("gate", "up", "down")),
        ):
            for name in names:
                weight = weights[f"{former}{theirs}.{name}_proj.weight"]
                leaves[(*path, part, f"{name}_proj", "weight")] = weight.T
    return leaves


def golden_lm(**options):
    config = json.loads(str(golden()["config_json"]))
    model = TransformerLM(
        vocab_size=config["vocab"],
        d_model=config["d_model"],
        n_layers=config["layers"],
        n_heads=config["heads"],
        n_kv_heads=config["kv_heads"],
        d_ff=config["ff"],
        rope_theta=config["rope_theta"],
        norm_eps=config["eps"],
        **options,
        rngs=nnx.Rngs(0),
    )
    return load(model, golden_leaves(golden(), "w."))


@quick.jit
def forward(model, tokens, segment_ids=None, state=None):
    return model(tokens, segment_ids_BL=segment_ids, state=state)


@pytest.mark.parametrize(
    "options", [{}, {"remat": "full"}, {"remat": "dots", "scan_layers": True}]
)
def test_language_model_matches_the_golden(options):
    data, model = golden(), golden_lm(**options)
    assert_close(forward(model, data["tokens"])[0], data["ref_logits"])
    loss, grads = jit_value_and_grad(
        model, lambda m: losses.next_token_loss(m, data["tokens"])[0]
    )
    assert_close(loss, data["ref_loss"])
    assert_leaves_close(grads, golden_leaves(data, "ref_grad."))


def test_packed_documents_and_loss_mask_match_the_golden():
    data, model = golden(), golden_lm()
    logits, _ = forward(model, data["tokens"], data["packed_segment_ids"])
    assert_close(logits, data["ref_packed_logits"])
    loss_fn = quick.jit(losses.next_token_loss)
    mean, _ = loss_fn(model, data["tokens"], data["loss_mask"])
    assert_close(mean, data["ref_loss_masked"])
