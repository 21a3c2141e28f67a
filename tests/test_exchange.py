"""Hugging Face checkpoints: in, out, damaged, and as the beginning of a run."""

import functools
import json
import pathlib

import numpy as np
import pytest
import quick
from test_ssm import assert_close

from roxxel import exchange

numpy_files = pytest.importorskip("safetensors.numpy", reason="an independent writer")

GOLDENS = pathlib.Path(__file__).parent / "goldens"
MAMBA2 = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 16,
    "state_size": 16,
    "n_groups": 1,
    "conv_kernel": 4,
    "chunk_size": 16,
    "expand": 2,
    "layer_norm_epsilon": 1e-5,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "time_step_limit": [0.0, float("inf")],
    "tie_word_embeddings": True,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
CONFIGS = {"mamba2": MAMBA2, "llama": LLAMA}


@functools.cache
def golden(kind):
    with np.load(GOLDENS / f"{kind}_lm.npz") as file:
        return {key: file[key] for key in file.files}


def golden_weights(kind):
    data = golden(kind)
    return {key[2:]: data[key] for key in data if key.startswith("w.")}


def write_folder(folder, kind, weights=None, **changes):
    folder.mkdir()
    weights = golden_weights(kind) if weights is None else weights
    numpy_files.save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind] | changes))
    return folder


def bytes_of(folder):
    """`{name: (dtype, shape, bytes)}` as the format's own package reads them."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, spec in safetensors_deserialize(path.read_bytes()):
            found[name] = (spec["dtype"], tuple(spec["shape"]), bytes(spec["data"]))
    return found


def safetensors_deserialize(data):
    import safetensors

    return safetensors.deserialize(data)


@quick.jit
def logits(model, tokens):
    return model(tokens)[0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_round_trip_of_the_golden(tmp_path, kind):
    folder = write_folder(tmp_path / "theirs", kind)
    model = exchange.load_hf(folder)
    data = golden(kind)
    assert_close(logits(model, data["tokens"]), data["ref_logits"])
    assert_close(logits(model, data["tokens"]), data["hf_logits"])
    out = exchange.export_hf(model, tmp_path / "ours", max_shard_bytes=30_000)
    assert bytes_of(out) == bytes_of(folder)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert files == {path.name for path in out.glob("*.safetensors")}
    assert min(files).startswith("model-00001-of-0000")
    again = exchange.load_hf(out)
    assert_close(logits(again, data["tokens"]), data["ref_logits"])
    written = json.loads((out / "config.json").read_text())
    assert {name: written[name] for name in CONFIGS[kind]} == CONFIGS[kind]
    assert (written["dtype"], written["torch_dtype"]) == ("float32", "float32")
    assert [path.name for path in tmp_path.iterdir()].count("ours") == 1
    assert len(list(tmp_path.iterdir())) == 2  # nothing left beside
