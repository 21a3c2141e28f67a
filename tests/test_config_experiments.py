"""Every experiment that the repository registers, as the command line sees it."""

import fiddle as fdl
import pytest

from roxxel import main as main_lib
from roxxel.config import discover, dump, fields, load, resolve, text
from roxxel.config.arguments import parse
from roxxel.errors import ConfigError

NAMES = [found.name for found in discover.in_package("experiments")]


def experiment(name: str, *flags: str) -> resolve.Experiment:
    return resolve.experiment(parse([f"--fdl_config={name}", *flags]))


def test_the_main_job_is_registered():
    assert {"ssm_small", "ssm_tiny"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_three_names_of_one_experiment(name):
    found = experiment(name)
    assert found.name == name
    assert experiment(f"experiments.{name}").config == found.config
    dotted = experiment(f"{found.source}()")
    assert text.render(dotted.config) == text.render(found.config)


@pytest.mark.parametrize("name", NAMES)
def test_graph_survives_json_without_trust(name, tmp_path):
    found = experiment(name)
    content, warning = dump.to_json(found.config, name=name, source=found.source)
    assert warning is None
    file = tmp_path / "config.json"
    file.write_text(content)
    loaded = load.load_file(str(file))
    assert loaded.config == found.config
    assert text.render(loaded.config) == text.render(found.config)
    assert (loaded.name, loaded.source) == (name, found.source)


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_exists_and_every_value_is_set_by_its_own_text(name):
    """What `--fdl_help` shows for a plain value is what a flag takes."""
    found = experiment(name)
    fields.check_names(found.config)
    flags = [
        f"--fdl.{line.path}={line.value}"
        for line in text.flat(found.config)
        if not line.value.startswith("<") and "default" not in line.marks
    ]
    assert experiment(name, *flags).config == found.config


def test_misspelled_field_of_a_model_is_refused():
    """NNX modules hide their signature from fiddle; misspellings must not pass."""
    with pytest.raises(ConfigError, match=r"no field 'd_modl'.*d_model"):
        experiment("ssm_small", "--fdl.model.d_modl=3")
    with pytest.raises(ConfigError, match=r"no argument 'd_modl'.*d_model"):
        experiment("ssm_small", "--fdl.model=roxxel.models.ssm.Mamba2LM(d_modl=3)")
    from roxxel.models.ssm import Mamba2LM

    with pytest.raises(ConfigError, match=r"model \(Mamba2LM\) has no field 'd_modl'"):
        fields.check_names(
            fdl.Config(dict, model=fdl.Partial(Mamba2LM, d_modl=3)),
        )


def test_one_override_moves_stream_plan_and_schedule():
    config = experiment("ssm_small", "--fdl_tag.BatchSize=1e1").config
    assert config.stream.batch_size == 10
    assert config.total_steps.stream is config.stream
    assert config.schedule.total_steps is config.total_steps
    assert config.optimizer.schedule is config.schedule


@pytest.mark.parametrize(
    ("flags", "mentions"),
    [
        (["--fdl_tag.BatchSize=0"], ["stream", "batch_size", "0"]),
        (["--fdl.total_steps.steps=0"], ["total_steps", "0"]),
        (["--fdl.total_steps=0"], ["total_steps", "0"]),
        (["--fdl.schedule.warmup=-1"], ["schedule", "warmup", "-1"]),
        (["--fdl.stream.overlap=0"], ["overlap", "0"]),
        (["--fdl.stream.dataset.split=trian"], ["stream.dataset", "trian"]),
        (
            ["--fdl.model.compute_dtype=bfloat17"],
            ["model.compute_dtype", "bfloat17", "bfloat16"],
        ),
        (["--fdl.optimizer.clip_norm=-1"], ["optimizer", "clip_norm", "-1"]),
    ],
)
def test_wrong_values_end_before_a_device_is_used(
    flags, mentions, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main_lib.main(["--fdl_config=ssm_tiny", *flags]) == 2
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    for words in mentions:
        assert words in last, last
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_the_graph_may_name_the_work_directory():
    from roxxel.config import arguments, resolve, start

    flags = ["--fdl_config=ssm_tiny", "--fdl_tag.WorkDir=runs/of mine"]
    found = resolve.experiment(arguments.parse(flags))
    assert start.configured_workdir(found) == "runs/of mine"
    plain = resolve.experiment(arguments.parse(flags[:1]))
    assert start.configured_workdir(plain) is None


FIDDLERS = ("debug", "bf16", "fsdp", "profile", "synthetic_data", "adamw", "muon")


@pytest.mark.parametrize("name", NAMES)
def test_graph_after_any_fiddler_survives_json_without_trust(name, tmp_path):
    file = tmp_path / "config.json"
    for fiddler in FIDDLERS:
        found = experiment(name, f"--fiddler={fiddler}")
        file.write_text(dump.to_json(found.config)[0])
        assert load.load_file(str(file)).config == found.config
