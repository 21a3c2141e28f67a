"""Hugging Face checkpoints: in, out, damaged, and as the beginning of a run."""

import functools
import json
import pathlib
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny_tokenizers
from flax import nnx
from test_ssm import assert_close

from roxxel import exchange, main, sharding
from roxxel.errors import ConfigError
from roxxel.exchange import safetensors_files
from roxxel.models.hybrid import HybridLM
from roxxel.models.ssm import Mamba2LM
from roxxel.models.transformer import TransformerLM
from roxxel.train import initial

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


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    ("there", "dtype", "here"),
    [
        ("bfloat16", "float32", "float32"),  # every value of the narrow type is kept
        ("bfloat16", None, "bfloat16"),
        ("float16", "float32", "float32"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_types_are_kept_or_cast_as_asked(tmp_path, kind, there, dtype, here):
    weights = {n: v.astype(there) for n, v in golden_weights(kind).items()}
    folder = tmp_path / "theirs"
    folder.mkdir()
    tensors = [
        safetensors_files.Tensor(n, v.dtype, v.shape, lambda v=v: v)
        for n, v in weights.items()
    ]
    safetensors_files.write_folder(folder, tensors, max_shard_bytes=10**9)
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    model = exchange.load_hf(folder, dtype=dtype)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(model))} == {here}
    written = exchange.export_hf(model, tmp_path / "ours", dtype=there)
    if here != there and there == "float32":
        weights = {n: v.astype(here).astype(there) for n, v in weights.items()}
    found = bytes_of(written)
    assert {n: f[2] for n, f in found.items()} == {
        n: v.tobytes() for n, v in weights.items()
    }
    config = json.loads((written / "config.json").read_text())
    assert config["dtype"] == there


def test_a_vocabulary_that_is_padded_here(tmp_path):
    folder = write_folder(tmp_path / "theirs", "llama")
    model = exchange.load_hf(folder, pad_vocab_to=48, scan_layers=True)
    assert model.embedding.shape == model.head.shape == (96, 32)
    assert not np.asarray(model.embedding[64:]).any()
    data = golden("llama")
    assert_close(logits(model, data["tokens"]), data["ref_logits"])
    assert bytes_of(exchange.export_hf(model, tmp_path / "ours")) == bytes_of(folder)


def test_parameters_are_born_on_the_mesh(tmp_path):
    random = np.random.default_rng(0)
    weights = golden_weights("llama") | {
        name: random.normal(size=(256, 32)).astype(np.float32)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    folder = write_folder(tmp_path / "theirs", "llama", weights, vocab_size=256)
    mesh = sharding.make_mesh({"data": 2, "fsdp": 4})
    model = exchange.load_hf(folder, mesh=mesh)
    table = model.embedding[...]
    assert table.sharding.is_equivalent_to(
        jax.sharding.NamedSharding(mesh, sharding.parameter_sharding(mesh, (256, 32))),
        2,
    )
    assert table.addressable_shards[0].data.size == table.size // 4
    assert bytes_of(exchange.export_hf(model, tmp_path / "ours")) == bytes_of(folder)


def test_tensors_that_no_model_needs_are_left_and_old_names_read(tmp_path):
    weights = golden_weights("mamba2")
    weights["lm_head.weight"] = weights["backbone.embeddings.weight"]
    limit = [0.0, {"__float__": "Infinity"}]  # as transformers 5 saves it
    folder = write_folder(tmp_path / "tied", "mamba2", weights, time_step_limit=limit)
    assert exchange.load_hf(folder).head is None
    # Without a word on tying, the files tell.
    config = {n: v for n, v in MAMBA2.items() if n != "tie_word_embeddings"}
    (folder / "config.json").write_text(json.dumps(config))
    assert exchange.load_hf(folder).head is not None
    weights = golden_weights("llama")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    rope = {"rope_theta": 10000.0, "rope_type": "default"}
    folder = write_folder(tmp_path / "llama", "llama", weights, rope_parameters=rope)
    data = golden("llama")
    assert_close(logits(exchange.load_hf(folder), data["tokens"]), data["ref_logits"])


def test_biases_of_all_projections(tmp_path):
    model = made(
        TransformerLM, vocab_size=20, d_model=8, n_layers=1, n_heads=2, d_ff=8,
        bias=True, activation=jax.nn.gelu, tie_embeddings=True,
    )  # fmt: skip
    folder = exchange.export_hf(model, tmp_path / "ours", max_length=77)
    config = json.loads((folder / "config.json").read_text())
    wanted = {
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 77,
    }
    assert {name: config[name] for name in wanted} == wanted
    again = exchange.load_hf(folder)
    assert again.blocks[0].mlp.activation is jax.nn.gelu
    assert "model.layers.0.mlp.up_proj.bias" in bytes_of(folder)


# -- what is wrong ---------------------------------------------------------------------


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def break_header(folder, change):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def drop(name):
    def change(folder):
        weights = golden_weights("llama")
        del weights[name]
        numpy_files.save_file(weights, folder / "model.safetensors")

    return change


def put(name, value):
    def change(folder):
        weights = golden_weights("llama") | {name: value}
        numpy_files.save_file(weights, folder / "model.safetensors")

    return change


def config_text(text):
    return lambda folder: (folder / "config.json").write_text(text)


def pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def index_of(places):
    def change(folder):
        (folder / "model.safetensors").rename(
            folder / "model-00001-of-00002.safetensors"
        )
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))

    return change


ONE = "model-00001-of-00002.safetensors"
NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: cut(f / "model.safetensors", 5), "5 bytes do not hold a header"),
        (lambda f: cut(f / "model.safetensors", 100), "100 bytes do not hold a header"),
        (lambda f: cut(f / "model.safetensors", 40_000), "its header tells of"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "0 bytes do not hold"),
        (lambda f: break_header(f, lambda h: h[NORM].pop("shape")), "not what the"),
        (lambda f: break_header(f, lambda h: h[NORM].update(dtype="F4")), "'F4' is"),
        (
            lambda f: break_header(f, lambda h: h[NORM].update(data_offsets=[-8, 120])),
            "not what the format",
        ),
        (
            lambda f: break_header(f, lambda h: h[NORM].update(shape=[33])),
            "not what the format",
        ),
        (drop(NORM), rf"1 tensors .* not in its files: {NORM}"),
        (put(NORM, np.full(32, np.nan, np.float32)), rf"1 tensors .*finite: {NORM}"),
        (put(NORM, np.ones(32, np.int32)), "unexpected model.norm.weight int32"),
        (put(NORM, np.ones(31, np.float32)), r"different \(1\): model/norm/scale \(ch"),
        (pickle_only, r"no model.safetensors .*; pytorch_model.bin could run code"),
        (lambda f: (f / "model.safetensors").unlink(), "Save it with transformers"),
        (lambda f: (f / "config.json").unlink(), "config.json: cannot be read"),
        (config_text("{"), "config.json: no JSON"),
        (config_text("[]"), "expected a JSON object"),
        (config_text('{"model_type": "gpt2"}'), "model_type is 'gpt2', expected 'mamb"),
        (config_text('{"d_model": 768}'), "model_type is None"),
        (config_text('{"model_type": "llama"}'), "hidden_size is None, expected"),
        (index_of({NORM: ONE, "a": "b.safetensors"}), "names b.safetensors: not there"),
        (index_of({NORM: ONE, "a": ONE}), "names tensors that its files lack: a"),
        (index_of({NORM: "../x.safetensors"}), "expected JSON with weight_map"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_told_in_one_line(tmp_path, damage, words):
    folder = write_folder(tmp_path / "theirs", "llama")
    damage(folder)
    with pytest.raises(ConfigError, match=words) as caught:
        exchange.load_hf(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["llama3"]),
        ("llama", {"attention_bias": True}, ["attention_bias is True and mlp_bias"]),
        (
            "llama",
            {"hidden_act": "gelu", "num_attention_heads": "4", "rms_norm_eps": True},
            ["hidden_act is 'gelu'", "num_attention_heads is '4'", "rms_norm_eps is"],
        ),
        (
            "mamba2",
            {"use_bias": True, "time_step_limit": [0.0, 0.1], "num_heads": 5},
            ["use_bias is True", "time_step_limit is [0.0, 0.1]", "not num_heads"],
        ),
    ],
)  # fmt: skip
def test_what_no_model_here_expresses_is_told_at_once(tmp_path, kind, changes, words):
    folder = write_folder(tmp_path / "theirs", kind, **changes)
    with pytest.raises(ConfigError) as caught:
        exchange.load_hf(folder)
    assert all(word in str(caught.value) for word in words), caught.value


SIZES = {"vocab_size": 16, "d_model": 8, "n_layers": 1}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: made(TransformerLM, n_heads=2, window=4, qk_norm=True, **SIZES),
         "TransformerLM with qk_norm=True, window=4 is no LlamaForCausalLM"),
        (lambda: made(HybridLM, n_heads=2, pattern="A", **SIZES),
         "a HybridLM cannot be exported; expected a Mamba2LM or a TransformerLM"),
    ],
)  # fmt: skip
def test_what_transformers_does_not_express_is_not_written(tmp_path, make, words):
    with pytest.raises(ConfigError, match=words):
        exchange.export_hf(make(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    model = made(Mamba2LM, head_dim=8, **SIZES)
    (tmp_path / "note").write_text("mine")
    with pytest.raises(ConfigError, match="is there and not empty"):
        exchange.export_hf(model, tmp_path)
    with pytest.raises(ConfigError, match="dtype is 'int8', expected one of float32"):
        exchange.export_hf(model, tmp_path / "out", dtype="int8")
    with pytest.raises(ConfigError, match="no tokenizer files"):
        exchange.export_hf(model, tmp_path / "out", tokenizer=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


# -- as the beginning of a run ---------------------------------------------------------


def shape_of(kind, **sizes):
    return nnx.eval_shape(lambda: kind(**sizes, rngs=nnx.Rngs(3)))


def made(kind, **sizes):
    """A model with random values, without the time that compiling `kind` takes."""
    random = np.random.default_rng(0)
    graph, state = nnx.split(shape_of(kind, **sizes))
    draw = lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype)  # noqa: E731
    return nnx.merge(graph, jax.tree.map(draw, state))


def llama_like(make=made, **changes):
    sizes = {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48}
    sizes |= {"n_kv_heads": 2, "scan_layers": True}
    return make(TransformerLM, **(sizes | changes))


def spec(folder, **options):
    given = dict.fromkeys(initial.OPTIONS) | {"init_from": folder} | options
    return type("Spec", (), given)()


def test_a_model_begins_with_a_folder_by_the_rules_of_checkpoints(tmp_path):
    weights = golden_weights("llama")
    weights["model.layers.1.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    folder = write_folder(tmp_path / "theirs", "llama", weights)
    model = llama_like(vocab_size=70, pad_vocab_to=16)
    fresh = np.asarray(model.embedding[...])
    options = {"init_rules": {"head": None}, "init_resize": ["embedding"]}
    lines, record = initial.restore(spec(folder, **options), model)
    table = np.asarray(model.embedding[...])
    np.testing.assert_array_equal(table[:64], weights["model.embed_tokens.weight"])
    np.testing.assert_array_equal(table[64:], fresh[64:])
    assert len(record.pop("restored")) == 20
    assert record == {
        "path": str(folder),
        "architecture": "LlamaForCausalLM",
        "cast": [],
        "resized": [
            "model/embedding (checkpoint float32[64,32], model float32[80,32])"
        ],
        "not_in_checkpoint": ["model/head"],
        "different": [],
        "not_used": [],
        "left_out": ["model/head"],
        "settings": [],
        "tensors_not_used": ["model.layers.1.self_attn.rotary_emb.inv_freq"],
    }
    assert lines[0] == f"Initialised 20 arrays from {folder} (LlamaForCausalLM)"
    assert "tensors not used (1): model.layers.1.self_attn.rotary_emb" in lines[-1]


def test_settings_that_no_shape_shows_are_compared(tmp_path):
    folder = write_folder(tmp_path / "theirs", "llama", rms_norm_eps=1e-6)
    # 2 heads of 16 and 4 of 8 have the same shapes.
    model = llama_like(shape_of, n_heads=2, n_kv_heads=1, rope_theta=5e5, d_ff=64)
    words = (
        r"other settings .*: n_heads \(4 there, 2 here\), n_kv_heads "
        r"\(2 there, 1 here\), head_dim \(8 there, 16 here\), rope_theta "
        r"\(10000.0 there, 500000.0 here\), "
        r"norm_eps \(1e-06 there, 1e-05 here\); arrays that differ: model/blocks/0"
    )
    with pytest.raises(ConfigError, match=words):
        initial.check_source(spec(folder), tmp_path / "run", model)
    with pytest.raises(
        ConfigError, match="init_step and init_part belong to the check"
    ):
        initial.check_source(spec(folder, init_step=3), tmp_path / "run", model)
    model = llama_like(shape_of, rope_theta=5e5)
    given = spec(folder, init_settings=["rope_theta", "norm_eps"])
    lines, record = initial.restore(given, model)
    told = ["rope_theta (10000.0 there, 500000.0 here)", "norm_eps (1e-06 there, 1e-0"]
    pairs = zip(record["settings"], told, strict=True)
    assert all(text.startswith(begin) for text, begin in pairs)
    assert f"settings that differ (2): {told[0]}" in lines[-1]
    other = shape_of(Mamba2LM, vocab_size=16, d_model=8, n_layers=1, head_dim=8)
    with pytest.raises(ConfigError, match="does not fit: missing in the checkpoint"):
        initial.check_source(spec(folder), tmp_path / "run", other)


def commands_of_the_page():
    text = (pathlib.Path(__file__).parent.parent / "docs" / "exchange.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("python -m")]
    return [shlex.split(line)[3:] for line in lines]


def test_fine_tuned_by_command_and_exported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROXXEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number}.txt").write_text("a quick brown fox. " * 9)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tiny_tokenizers.hugging_face_json())
    model = llama_like(vocab_size=400, n_layers=1, d_ff=32, tie_embeddings=True)
    exchange.export_hf(model, "theirs", tokenizer=tokenizer, dtype="bfloat16")
    tune, export = commands_of_the_page()
    tune += [
        "--fdl.total_steps=1",
        "--fdl.stream.seq_len=8",
        "--fdl.stream.batch_size=8",
        "--fdl.evaluation=None",
        "--fdl.optimizer=optax.sgd(learning_rate=1e-9)",
        "--fdl.schedule=None",
    ]
    assert main.main([*tune, "--mode=check"]) == 0
    assert main.main(tune) == 0
    log = (tmp_path / "runs" / "tuned" / "roxxel_system.log").read_text()
    assert f"Initialised 11 arrays from {tmp_path}/theirs (LlamaForCausalLM)" in log
    assert main.main(export) == 0
    assert "step 1 of" in capsys.readouterr().out
    assert bytes_of(tmp_path / "tuned") == bytes_of(tmp_path / "theirs")
    copied = tmp_path / "tuned" / "tokenizer.json"
    assert copied.read_text() == tokenizer.read_text()
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert config["max_position_embeddings"] == 8
    new = ["--mode=export", "--run=runs/tuned", "--output=new"]
    for wrong, words in (
        (export, "is there and not empty"),
        ([*new, "--dtype=int4"], "'int4'"),
        ([*new, "--checkpoint=7"], "no such"),
        (new[:2], "give --output=FOLDER"),
    ):
        assert main.main(wrong) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
