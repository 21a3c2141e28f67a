"""The Mamba-2 model against its goldens: values, gradients, states, decoding."""

import functools
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx

from roxxel.models import losses, mixer, ssd, ssm

GOLDENS = pathlib.Path(__file__).parent / "goldens"


@functools.cache
def golden(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def sizes(data):
    """Keyword arguments of the mixer that a golden's config describes."""
    config = json.loads(str(data["config_json"]))
    return {
        "d_model": config["d_model"],
        "head_dim": config["headdim"],
        "state_dim": config["state"],
        "n_groups": config["groups"],
        "conv_width": config["conv"],
        "norm_eps": config["eps"],
    }


def mixer_leaves(weights, prefix, path=()):
    """The golden's tensors as `{path in our mixer: array in our layout}`."""
    return {
        (*path, "in_proj"): weights[f"{prefix}in_proj.weight"].T,
        (*path, "out_proj"): weights[f"{prefix}out_proj.weight"].T,
        (*path, "conv_weight"): weights[f"{prefix}conv1d.weight"][:, 0].T,
        (*path, "conv_bias"): weights[f"{prefix}conv1d.bias"],
        (*path, "A_log"): weights[f"{prefix}A_log"],
        (*path, "D"): weights[f"{prefix}D"],
        (*path, "dt_bias"): weights[f"{prefix}dt_bias"],
        (*path, "norm", "scale"): weights[f"{prefix}norm.weight"],
    }


def model_leaves(weights, prefix, n_layers=2):
    """The golden's language model as `{path in our model: array}`."""
    leaves = {
        ("embedding",): weights[f"{prefix}backbone.embeddings.weight"],
        ("norm", "scale"): weights[f"{prefix}backbone.norm_f.weight"],
    }
    for layer in range(n_layers):
        former, path = f"{prefix}backbone.layers.{layer}.", ("blocks", layer)
        leaves[(*path, "norm", "scale")] = weights[f"{former}norm.weight"]
        leaves |= mixer_leaves(weights, f"{former}mixer.", (*path, "mixer"))
    return leaves


def flat_params(module):
    state = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    return nnx.traversals.flatten_mapping(state)


def load(module, leaves):
    """`module` with `leaves` as its parameters; every parameter must be named."""
    graph, state = nnx.split(module)
    flat = flat_params(module)
    assert flat.keys() == leaves.keys()
    assert all(flat[path].shape == leaves[path].shape for path in flat)
    pure = nnx.traversals.unflatten_mapping(
        {path: jnp.asarray(value) for path, value in leaves.items()}
    )
    nnx.replace_by_pure_dict(state, pure)
    return nnx.merge(graph, state)


def golden_lm(**options):
    data = golden("mamba2_lm")
    options = {"chunk_size": 16, "rngs": nnx.Rngs(0)} | options
    model = ssm.Mamba2LM(vocab_size=64, n_layers=2, **sizes(data), **options)
    return load(model, model_leaves(data, "w."))


def ssm_state(state, layer):
    return ssd.head_state(state.layers[layer].ssm, 4)


def jit_value_and_grad(model, loss):
    """Value of `loss(model)` and gradients by path, compiled."""
    value, grads = quick.jit(nnx.value_and_grad(loss))(model)
    return value, nnx.traversals.flatten_mapping(nnx.to_pure_dict(grads))


@quick.jit
def forward(model, tokens, segment_ids=None):
    return model(tokens, segment_ids_BL=segment_ids)


def assert_close(got, want, tolerance=1e-5):
    """Largest error over the largest wanted value, as the goldens define it."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    error = np.max(np.abs(got - want)) / max(1.0, np.max(np.abs(want)))
    assert error < tolerance, error


def assert_leaves_close(got, want):
    assert got.keys() == want.keys()
    for path, value in want.items():
        assert_close(got[path], value)


@pytest.mark.parametrize(
    ("name", "chunk_size", "form"),
    [
        ("mamba2_block_g1", 16, "scan"),
        ("mamba2_block_g2", 16, "parallel"),
        ("mamba2_block_g2", 64, "scan"),  # longer than the row
    ],
)
def test_mixer_matches_the_golden(name, chunk_size, form):
    data = golden(name)
    module = mixer.Mamba2Mixer(
        **sizes(data), chunk_size=chunk_size, form=form, rngs=nnx.Rngs(0)
    )
    module = load(module, mixer_leaves(data, "w."))

    @functools.partial(nnx.grad, argnums=(0, 1), has_aux=True)
    def objective(module, u):
        outputs = module(u)
        return jnp.sum(outputs[0] * data["cot_y"]), outputs

    (grads, grad_u), (y, after) = quick.jit(objective)(module, data["u"])
    assert_close(y, data["ref_y"])
    assert_close(ssd.head_state(after.ssm, 4), data["ref_ssm_state"])
    assert_close(after.conv, data["ref_conv_state"])
    assert_close(grad_u, data["ref_grad_u"])
    grads = nnx.traversals.flatten_mapping(nnx.to_pure_dict(grads))
    assert_leaves_close(grads, mixer_leaves(data, "ref_grad."))


@pytest.mark.parametrize(
    "remat",
    [
        "none",
        pytest.param("full", marks=pytest.mark.slow),
        pytest.param("dots", marks=pytest.mark.slow),
    ],
)
def test_language_model_matches_the_golden(remat):
    data = golden("mamba2_lm")
    model = golden_lm(remat=remat, form="scan" if remat == "none" else "parallel")
    assert_close(forward(model, data["tokens"])[0], data["ref_logits"])
    loss, grads = jit_value_and_grad(
        model, lambda m: losses.next_token_loss(m, data["tokens"])[0]
    )
    assert_close(loss, data["ref_loss"])
    assert_leaves_close(grads, model_leaves(data, "ref_grad."))


def test_loss_mask_belongs_to_the_target():
    data = golden("mamba2_lm")
    loss_fn = quick.jit(losses.next_token_loss)
    mean, weight = loss_fn(golden_lm(), data["tokens"], data["loss_mask"])
    assert_close(mean, data["ref_loss_masked"])
    assert weight == data["loss_mask"][:, 1:].sum()


def test_steps_equal_the_parallel_form():
    data = golden("mamba2_decode")
    model, tokens = golden_lm(), data["tokens"]
    prefill = int(data["prefill"])
    logits, state = forward(model, tokens[:, :prefill])
    assert_close(logits, data["ref_prefill_logits"])
    step = quick.jit(lambda model, *args: model.step(*args))
    for layer in range(2):
        assert_close(ssm_state(state, layer), data[f"ref_ssm_state_prefill.{layer}"])
        assert_close(state.layers[layer].conv, data[f"ref_conv_state_prefill.{layer}"])
    for index in range(data["ref_step_logits"].shape[1]):
        logits, state = step(model, tokens[:, prefill + index], state)
        assert_close(logits, data["ref_step_logits"][:, index])
    for layer in range(2):
        assert_close(ssm_state(state, layer), data[f"ref_ssm_state_end.{layer}"])
        assert_close(state.layers[layer].conv, data[f"ref_conv_state_end.{layer}"])


@pytest.mark.parametrize(("chunk_size", "form"), [(16, "scan"), (8, "parallel")])
def test_packed_documents_match_the_golden(chunk_size, form):
    data = golden("mamba2_packed")
    model = golden_lm(chunk_size=chunk_size, form=form)
    logits, state = forward(model, data["tokens"], data["segment_ids"])
    assert_close(logits, data["ref_logits"])
    for layer in range(2):
        assert_close(ssm_state(state, layer), data[f"ref_ssm_state_end.{layer}"])
