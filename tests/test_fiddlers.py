"""Fiddlers and fragments: what they change, on every experiment."""

import fiddle as fdl
import numpy as np
import pytest

from configs import data, fiddlers, models, optimizers, runtime, synthetic, tags
from roxxel.config import discover, resolve, text
from roxxel.config.arguments import parse
from roxxel.errors import ConfigError

NAMES = [found.name for found in discover.in_package("experiments")]
# The others read no data set: their rows are generated.
OF_DATA = [name for name in NAMES if name != "in_context"]


def config_of(name: str, *flags: str):
    return resolve.experiment(parse([f"--fdl_config={name}", *flags])).config


def values(config) -> dict[str, str]:
    return {line.path: line.value for line in text.flat(config)}


@pytest.mark.parametrize("name", OF_DATA)
def test_debug_makes_any_experiment_small(name):
    config = config_of(name, "--fiddler=debug(steps=3)")
    assert config.stream is config.total_steps.stream
    assert config.save_every == 1
    assert config.model.d_model <= 64
    assert config.model.n_layers <= 2
    assert config.evaluation.batch_size * config.evaluation.seq_len <= 2048
    for path, value in values(config).items():
        field = path.rpartition(".")[2]
        if field == "batch_size" and "evaluation" not in path:
            assert int(value) <= 4
        if field == "seq_len" and "evaluation" not in path and value != "None":
            assert int(value) <= 64
    units = ("tokens", "epochs", "flops", "minutes", "tokens_per_param")
    assert all(config.total_steps.__arguments__.get(u) is None for u in units)
    if name == "mixture_curriculum":
        phases = config.stream.phases
        assert [phase.steps for phase in phases] == [1, 1, 1]
        assert [phase.seq_len for phase in phases] == [16, 32, 64], "they still grow"
    else:
        assert config.total_steps.steps == 3


def test_generated_tasks_stay_what_they_are():
    flags = ["--fiddler=debug(steps=3)", "--fiddler=synthetic_data"]
    config = config_of("in_context", *flags)
    assert config.stream.source.task is config.evaluation.dataset.task
    assert (config.total_steps.steps, config.stream.source.batch_size) == (3, 4)


def test_debug_never_makes_anything_larger():
    config = config_of("ssm_tiny(d_model=32, seq_len=16)", "--fiddler=debug")
    assert (config.model.d_model, config.stream.seq_len) == (32, 16)


@pytest.mark.parametrize("name", NAMES)
def test_bf16_and_fsdp_change_one_thing_each(name):
    before = values(config_of(name))
    after = values(config_of(name, "--fiddler=bf16"))
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed <= {"model.compute_dtype"}
    assert after["model.compute_dtype"] == "bfloat16"
    after = values(config_of(name, "--fiddler=fsdp(groups=2)"))
    assert after["mesh_axes"] == "{'data': 2, 'fsdp': -1}"
    assert {p for p in after if after[p] != before.get(p)} == {"mesh_axes"}


@pytest.mark.parametrize("name", OF_DATA)
def test_synthetic_data_replace_every_data_set(name):
    config = config_of(name, "--fiddler=synthetic_data")
    made = [value for value in values(config).values() if "synthetic" in value]
    assert made == ["<configs.synthetic.tokens>"] * (
        3 if name == "mixture_curriculum" else 2
    )
    assert config.evaluation.dataset.vocab_size == config.model.vocab_size
    assert "python_library_sources" not in text.render(config)
    assert "python_encodings" not in text.render(config)


def test_synthetic_tokens_are_of_the_vocabulary_and_the_same_every_time(tmp_path):
    kinds = {256: np.uint8, 257: np.uint16, 50_288: np.uint16, 128_256: np.uint32}
    for size, dtype in kinds.items():
        made = synthetic.tokens(size, num_elements=5000, seed=1, cache_dir=tmp_path)
        ids = made.open().elements(0, 5000)
        assert (len(ids), ids.dtype) == (5000, dtype)
        assert ids.max() < size
        assert size // 2 < ids.max(), "the whole vocabulary is there"
    again = synthetic.tokens(128_256, num_elements=5000, seed=1, cache_dir=tmp_path)
    np.testing.assert_array_equal(again.open().elements(0, 5000), ids)
    other = synthetic.tokens(128_256, num_elements=5000, seed=2, cache_dir=tmp_path)
    assert (other.open().elements(0, 5000) != ids).any()
    with pytest.raises(ConfigError, match="num_elements must be positive, got 0"):
        synthetic.tokens(256, num_elements=0, cache_dir=tmp_path)


def test_synthetic_data_need_a_vocabulary():
    with pytest.raises(ConfigError, match="no node has a vocab_size"):
        fiddlers.synthetic_data(fdl.Config(dict, a=1))


def test_optimizers_are_replaced_on_the_schedule_that_is_there():
    for name in ("adamw", "muon"):
        config = config_of("ssm_tiny", f"--fiddler={name}(weight_decay=0.3)")
        assert config.optimizer.schedule is config.schedule
        assert config.optimizer.weight_decay == 0.3
        assert fdl.get_callable(config.optimizer).__name__ == name


def test_profile_stops_early_and_keeps_the_schedule():
    config = config_of("ssm_tiny", "--fiddler=profile(steps=5)")
    assert (config.stop_after, config.total_steps.steps) == (5, 200)
    assert config.profile == "2:5"


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("models.transformer(d_model=256)", {"d_model": 256, "n_layers": 2}),
        ("models.transformer(size='7b', vocab_size=32000)", {"d_ff": 11008}),
        ("models.mamba2(size='1b', remat='full')", {"d_model": 2048, "remat": "full"}),
        ("models.hybrid(pattern='MA')", {"pattern": "MA", "ssm_head_dim": 32}),
        ("models.hybrid(d_model=256,n_layers=3)", {"n_heads": 4}),
    ],
)
def test_a_model_is_replaced_by_a_call(fragment, expected):
    config = config_of("ssm_tiny", f"--fdl.model=configs.{fragment}")
    assert isinstance(config.model, fdl.Partial)
    found = config.model.__arguments__
    assert expected.items() <= found.items()
    assert tags.ComputeDtype in config.model.__argument_tags__["compute_dtype"]


def test_an_unknown_size_is_named():
    with pytest.raises(ConfigError, match=r"size is '9b', expected 'tiny', 'small'"):
        config_of("ssm_tiny", "--fdl.model=configs.models.mamba2(size='9b')")


def test_data_evaluation_and_logger_are_replaced_by_calls():
    config = config_of(
        "ssm_tiny",
        "--fdl.stream.dataset=configs.data.synthetic(vocab_size=256, seed=3)",
        "--fdl.evaluation=configs.runtime.evaluation("
        "dataset=configs.data.rox(path='x_*.rox'))",
        "--fdl.logger=configs.runtime.logger(console_every=1)",
        "--fdl.checkpointer=configs.runtime.checkpointer(max_to_keep=1)",
        "--fdl.sample=configs.runtime.sample(prompt='x')",
    )
    assert config.stream.dataset.seed == 3
    assert config.evaluation.dataset.filepath == "x_*.rox"
    assert config.logger.console_every == 1
    assert config.checkpointer.max_to_keep == 1
    assert config.sample.prompt == "x"


def test_fragments_make_a_run_of_ones_own():
    """The pieces fit together without a template."""
    stream = data.stream(data.synthetic(256), seq_len=32, batch_size=4)
    schedule = optimizers.warmup_stable_decay(10, peak=1e-2)
    for optimizer in (optimizers.adamw, optimizers.muon):
        config = fdl.Config(
            runtime.Trainer,
            model=models.mamba2(d_model=32, n_layers=1),
            optimizer=optimizer(schedule),
            stream=stream,
            total_steps=10,
            schedule=schedule,
        )
        trainer = fdl.build(config)
        assert trainer.total_steps == 10
        assert float(trainer.schedule(5)) == pytest.approx(1e-2)
    assert float(fdl.build(optimizers.warmup_cosine(10))(0)) > 0


def test_encodings_do_not_overlap_the_library(tmp_path, monkeypatch):
    monkeypatch.setenv("ROXXEL_CACHE", str(tmp_path))
    train, heldout = data.python_encodings("train"), data.python_encodings("heldout")
    sizes = train.num_elements, heldout.num_elements
    assert 500_000 < sum(sizes) < 5_000_000
    assert sizes[1] > 10_000
