"""config.json and config.txt: what is stored, what is replayed, what is refused."""

import json
import math
import os
from pathlib import Path

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fiddle.experimental import serialization
from jax.sharding import PartitionSpec
from toy_experiments import awkward, basic, parts

from roxxel import main as main_lib
from roxxel.config import dump, load, stored, text
from roxxel.errors import ConfigError


def round_trip(config: fdl.Buildable, tmp_path: Path) -> fdl.Buildable:
    content, _ = dump.to_json(config, name="x", source="y.x")
    file = tmp_path / "config.json"
    file.write_text(content)
    loaded = load.load_file(str(file), trusted=["toy_experiments"])
    assert (loaded.name, loaded.source) == ("x", "y.x")
    return loaded.config


def test_graph_survives_json_and_back(tmp_path):
    config = basic.full()
    config.model.layers = [1, 2]
    config.model.activation = parts.square
    config.model.mode = parts.Mode.EVAL
    loaded = round_trip(config, tmp_path)
    assert loaded == config
    assert loaded.schedule is loaded.evaluation
    assert text.render(loaded) == text.render(config)  # tags too
    assert dump.to_json(loaded) == dump.to_json(config)


def test_awkward_values_survive(tmp_path):
    config = awkward.awkward()
    content, warning = dump.to_json(config)
    assert warning is None
    loaded = round_trip(config, tmp_path).model
    assert loaded.activation is jax.nn.gelu
    assert loaded.jitted is jax.nn.silu
    assert loaded.custom is jax.nn.relu
    assert loaded.ufunc is np.exp
    assert loaded.dtype is jnp.bfloat16
    assert loaded.param_dtype == jnp.dtype("bfloat16")
    assert isinstance(loaded.param_dtype, np.dtype)
    assert loaded.kind is np.float32
    assert loaded.builtin is float
    assert loaded.scalar == np.float32(3e-4)
    assert type(loaded.scalar) is float
    assert (loaded.integer, type(loaded.integer)) == (7, int)
    assert loaded.flag is True
    assert loaded.path == Path("some/where")
    assert loaded.partial.func is parts.linear
    assert loaded.partial.keywords == {"x": 2.0}
    np.testing.assert_array_equal(loaded.array, config.model.array, strict=True)
    assert loaded.spec == PartitionSpec("data", None, ("a", "b"))
    assert loaded.mode is parts.Mode.EVAL
    assert math.isnan(loaded.nan)
    assert loaded.inf == math.inf
    assert loaded.complex == 1 + 2j
    assert loaded.span == range(3)
    assert loaded.bytes == b"\x00\xff"
    assert loaded.choices == {1, 2}
    assert loaded.value_object == parts.Child(x=9)
    assert loaded.nested == [{"deep": (1, Path("x"))}]
    assert loaded.shared[0] is loaded.shared[1]
    assert dump.to_json(round_trip(config, tmp_path)) == (content, None)


def test_plain_fiddle_builds_the_file_too(tmp_path):
    content, _ = dump.to_json(awkward.awkward())
    built = fdl.build(serialization.load_json(content, dump._AnyPolicy()))
    assert built.model.values["param_dtype"] == jnp.dtype("bfloat16")
    assert built.model.values["others"]["path"] == Path("some/where")


def test_what_no_file_holds_is_named_in_one_warning(tmp_path):
    config = awkward.lossy()
    content, warning = dump.to_json(config)
    assert "\n" not in warning
    for path in ("model.activation", "model.lock", "model.big", "model.local"):
        assert path in warning
        assert path in json.loads(content)["roxxel"]["not_stored"]
    loaded = round_trip(config, tmp_path)
    with pytest.raises(ConfigError, match="set it by a flag"):
        fdl.build(loaded)
    assert "awkward.py" not in text.render(config)
    assert "<lambda>" in text.render(config)


def test_a_graph_without_any_json_does_not_stop_the_dump():
    class Odd(dict):
        def __reduce__(self):
            raise RuntimeError("no")

    config = fdl.Config(parts.Job, model={Odd: object})
    content, warning = dump.to_json(config)
    assert "roxxel" in json.loads(content)
    assert warning is None or "\n" not in warning


def test_run_can_be_replayed_from_its_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = ["--fdl_config=toy_experiments.basic.full", "--fdl.model.name=a b"]
    assert main_lib.main([*first, "--workdir=one"]) == 0
    replay = [
        "--fdl_config_file=one/config.json",
        "--trust_module=toy_experiments",
        "--workdir=two",
    ]
    assert main_lib.main([*replay, "--fdl.model.dim=9"]) == 0
    one, two = (Path(name, "config.txt").read_text() for name in ("one", "two"))
    assert text.difference(one, two) == ["model.dim: 8 -> 9"]
    assert main_lib.main(replay) == 0
    assert "model.dim: 9 -> 8" in capsys.readouterr().err
    assert Path("two/config.json").read_text() == Path("one/config.json").read_text()


def _call(module: str, name: str, **arguments: str) -> str:
    """The file of `fdl.Config(module.name, **arguments)`, made without importing it."""
    content = serialization.dump_json(fdl.Config(parts.Free, **arguments))
    old = '"module": "toy_experiments.parts", "name": "Free"'
    assert old in content
    return content.replace(old, f'"module": "{module}", "name": "{name}"')


HOSTILE = [
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "Popen"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "__import__"),
    ("builtins", "open"),
    ("builtins", "getattr"),
    ("importlib", "import_module"),
    ("pickle", "loads"),
    ("shutil", "rmtree"),
    ("numpy", "load"),
    ("numpy", "fromfile"),
    ("numpy.ctypeslib", "load_library"),
    ("jax.numpy", "load"),
    ("jax", "pure_callback"),
    ("jax.experimental", "io_callback"),
    ("roxxel.main", "main"),
    ("roxxel.main", "sys.exit"),
    ("roxxel.config.run_info", "subprocess.run"),
    ("roxxel.config.imports", "importlib.import_module"),
    ("roxxel.config.imports", "symbol"),
    ("experiments", "discover.imports.symbol"),
    ("fiddle._src.config", "copy.copy"),
    ("fiddle._src.building", "build"),
    ("toy_experiments.parts", "touches_disk"),
    ("roxxel", "__loader__.load_module"),
    ("flax.nnx", "__builtins__"),
    # own names that are no part of a graph
    ("roxxel.building.worker", "_unpickled"),
    ("roxxel.checkpointing.files", "_remove"),
    ("roxxel.checkpointing.files", "prune"),
    ("roxxel.checkpointing.files", "clean"),
    ("roxxel.data.publish", "_remove"),
    ("roxxel.rox", "main"),
    ("roxxel.rox_build", "main"),
    ("roxxel.runs.serve", "main"),
    ("roxxel.dataset", "Roxxel.write"),
    ("roxxel", "Roxxel.write"),
    ("roxxel.logger", "Logger.close"),
    ("roxxel.sinks.textlog", "write_all"),
    ("roxxel.sinks.csv", "os.remove"),
    ("roxxel.tokenizers.loading", "_load"),
    ("roxxel.building.engine", "build"),
    ("roxxel.train.trainer", "pathlib.Path.unlink"),
    ("configs.synthetic", "cache.find_or_build"),
    ("configs.data", "sysconfig.os.system"),
    ("configs.trial_check", "main"),
    ("configs.search", "main"),
    ("configs.fiddlers", "_set"),
    # types and functions of other packages that read, write or run
    ("numpy", "memmap"),
    ("numpy", "save"),
    ("numpy", "vectorize"),
    ("numpy.lib.npyio", "NpzFile"),
    ("numpy.f2py.crackfortran", "sys.exit"),
    ("jax.numpy", "save"),
    ("jax.numpy", "fromfile"),
    ("jax.profiler", "start_trace"),
    ("jax.export", "deserialize"),
    ("jax._src.lru_cache", "LRUCache"),
    ("jax._src.path", "Path"),
    ("jax._src.nn.functions", "np.load"),
    ("flax.nnx", "display"),
    ("flax.nnx.graphlib", "jax.pure_callback"),
    ("flax.serialization", "msgpack_restore"),
    ("flax.training.checkpoints", "save_checkpoint"),
    ("orbax.checkpoint", "CheckpointManager"),
    ("fiddle._src.config", "get_callable"),
    ("fiddle.experimental.serialization", "load_json"),
    ("collections", "namedtuple"),
]


@pytest.mark.parametrize(("module", "name"), HOSTILE)
def test_config_file_imports_only_what_is_allowed(
    module, name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(_call(module, name, command="touch hacked"))
    assert main_lib.main(["--fdl_config_file=config.json"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "may not import" in last, last
    assert module in last
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *[("optax", "adamw"), ("optax._src.transform", "ScaleByAdamState")],
        *[("roxxel.logger", "Logger"), ("roxxel", "Logger"), ("roxxel", "Phase")],
        *[("roxxel", name) for name in ("Roxxel", "Input", "AlignedStream")],
        *[("roxxel.builders", name) for name in ("text_files", "parquet", "arrays")],
        *[("roxxel.tokenizers", "load"), ("roxxel.tokenizers.bytes", "Bytes")],
        *[("roxxel.sinks.csv", "CsvSink"), ("roxxel.models.losses", "next_token_loss")],
        *[("roxxel.optim", "total_steps"), ("roxxel.sharding", "make_mesh")],
        *[("jax.nn.initializers", "zeros"), ("jax._src.nn.functions", "gelu")],
        *[("jax.nn", "silu"), ("jax.numpy", "tanh"), ("jax.numpy", "bfloat16")],
        *[("numpy", "float32"), ("numpy", "dtype"), ("numpy", "exp")],
        *[("ml_dtypes", "bfloat16"), ("jax.lax", "Precision"), ("jax.lax", "rsqrt")],
        *[("flax.nnx", "Linear"), ("flax.nnx.nn.linear", "Linear")],
        *[("jax.sharding", "PartitionSpec"), ("collections", "OrderedDict")],
        *[("configs.synthetic", "tokens"), ("configs.data", "python_encodings")],
        *[
            ("experiments.ssm_tiny", "ssm_tiny"),
        ],
    ],
)
def test_config_file_imports_what_experiments_are_made_of(module, name, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(_call(module, name))
    assert load.load_file(str(file)).config is not None


def test_trusted_packages(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(_call("toy_experiments.parts", "Job"))
    with pytest.raises(ConfigError, match="--trust_module=toy_experiments"):
        load.load_file(str(file))
    assert load.load_file(str(file), trusted=["toy_experiments"]).name == tmp_path.name
    assert load.load_file(str(file), trust_all=True)
    file.write_text(_call("toy_experiments.parts", "Gone"))
    with pytest.raises(ConfigError, match=r"Gone.*the code has changed"):
        load.load_file(str(file), trusted=["toy_experiments"])
    file.write_text(_call("toy_experiments.gone", "Job"))
    with pytest.raises(ConfigError, match=r"toy_experiments\.gone"):
        load.load_file(str(file), trusted=["toy_experiments"])


def test_a_stored_instance_calls_dataclasses_only(tmp_path):
    """Stored values are made when the file is read, so also by --mode=check."""
    content = serialization.dump_json(
        fdl.Config(stored.instance, cls=dict, fields={"path": "made"}),
        dump._AnyPolicy(),
    )
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="no dataclass"):
        load.load_file(str(file))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_read(kind, tmp_path):
    file = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="no regular file"):
        load.load_file(str(file))
