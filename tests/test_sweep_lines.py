"""The command line of sweeps, without a run: what it means, what is refused."""

from pathlib import Path

import pytest

from configs import trial_check
from launch import functions, options, results, sweep, trials
from launch.folder import Folder
from launch.planners import Halving
from roxxel.config import arguments, resolve
from roxxel.errors import ConfigError

TOY = "--fdl_config=sweep_toy.toy"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1", ["1"]),
        ("1e-3, 3e-3", ["1e-3", "3e-3"]),
        ("(1,2),(3,4)", ["(1,2)", "(3,4)"]),
        ("a.b(x=1,y=[2,3]),a.c()", ["a.b(x=1,y=[2,3])", "a.c()"]),
        ("'a,b',\"c,d\"", ["'a,b'", '"c,d"']),
        ("1,,2", ["1", "", "2"]),
        ("it)s,odd", ["it)s", "odd"]),
    ],
)
def test_values_are_split_outside_of_brackets_and_quotes(text, parts):
    assert trials.split(text) == parts


def planned(*flags: str) -> list[dict[str, str]]:
    given = options.parse([TOY, *flags])
    return [dict(trial.overrides) for trial in sweep._planned(given)]


def test_grid_list_and_function():
    assert planned("--sweep.a=1,2", "--sweep.b=3,4") == [
        {"a": "1", "b": "3"},
        {"a": "1", "b": "4"},
        {"a": "2", "b": "3"},
        {"a": "2", "b": "4"},
    ]
    assert planned("--sweep.a=1,2", "--sweep_tag.Seed=3,4", "--zip") == [
        {"a": "1", "--fdl_tag.Seed": "3"},
        {"a": "2", "--fdl_tag.Seed": "4"},
    ]
    function = "--sweep_config=configs.sweeps.learning_rates(low=1e-3, high=1e-1, "
    assert planned(f"{function}count=3)", "--sweep.a=1") == [
        {"a": "1", "--fdl_tag.LearningRate": rate} for rate in ("0.001", "0.01", "0.1")
    ]


@pytest.mark.parametrize(
    "call", ["learning_rates", "seeds(count=4)", "batch_sizes", "widths(smallest=32)"]
)
def test_each_function_of_the_library_returns_overrides(call):
    found = functions.overrides(f"configs.sweeps.{call}")
    assert len(trials.unique(found)) == len(found) >= 3


def test_overrides_stand_where_they_were_typed():
    """Directives apply in their order, so a fiddler may come after a swept value."""
    words = [TOY, "--sweep.width=1,2", "--fiddler=debug", "--sweep_experiment=x,y"]
    given = options.parse(words)
    trial = trials.of({"--fdl_config": "x", "width": 1, "extra": True})
    assert trial.flags(given.words) == [
        TOY,
        "--fdl.width=1",
        "--fiddler=debug",
        "--fdl_config=x",
        "--fdl.extra=True",
    ]


def test_id_depends_on_the_overrides_only():
    one = trials.of({"a": 1, "b": "x"})
    assert one.id == trials.of({"b": "x", "a": "1"}).id == "47bf4b7b"  # names folders
    assert one.id != trials.of({"a": 1}).id


def test_every_value_is_checked_by_few_trials():
    grid = trials.unique(trials.combine({"a": "12345", "b": "123", "c": "12"}))
    chosen = trials.covering(grid)
    pairs = {pair for trial in grid for pair in trial.overrides}
    assert {pair for trial in chosen for pair in trial.overrides} == pairs
    assert len(chosen) <= len(pairs)


def test_halving_is_decided_at_the_rung_whatever_came_after(tmp_path):
    folder = Folder(tmp_path)
    for name, losses in {"a": [3, 9], "b": [2, 1], "c": ["nan", 0]}.items():
        folder.add(name, {}, [])
        workdir = folder.workdir(name)
        workdir.mkdir(parents=True)
        rows = "".join(f"{i},{v}\n" for i, v in enumerate(losses, 1))
        (workdir / results.METRICS).write_text(f"step,loss\n{rows}3,")  # torn
    rungs = {name: [1, 2, None] for name in "abc"}
    planner = Halving(folder, rungs, eta=2, metric="loss", goal="min")
    assert planner._best(["a", "b", "c"], 0) == ["b"]
    assert planner._best(["a", "b", "c"], 1) == ["b"]  # its mean of two
    planner.goal = "max"
    assert planner._best(["a", "b", "c"], 0) == ["a"]
    assert sweep._rung_steps(200, 3, 2) == [50, 100, None]
    assert sweep._rung_steps(3, 4, 2) == [1, 1, 2, None]


def test_threads_share_the_cores(monkeypatch):
    monkeypatch.setattr(
        "os.sched_getaffinity", lambda pid: set(range(8)), raising=False
    )
    words = [TOY, "--sweep.a=1", "--workers=3"]
    assert options.parse(words).threads == 2
    assert options.parse([*words, "--threads=5"]).threads == 5
    assert options.parse([*words[:2], "--workers=20"]).threads == 1


WRONG = [
    ([], ["no experiment", "--fdl_config"]),
    ([TOY], ["nothing varies"]),
    ([TOY, "--sweep.a="], ["--sweep.a=", "expected values"]),
    ([TOY, "--sweep.a=1,,2"], ["expected values"]),
    ([TOY, "--sweep.a=1,1"], ["twice"]),
    ([TOY, "--sweep.a=1", "--sweep.a=2"], ["twice"]),
    ([TOY, "--sweep.=1"], ["--sweep.=1", "sweep.PATH"]),
    ([TOY, "--sweep.a=1,2", "--sweep.b=1", "--zip"], ["--zip", "a: 2", "b: 1"]),
    ([TOY, "sweep.a=1"], ["stray", "sweep.a=1"]),
    ([TOY, "--sweep.a=1", "--worker=2"], ["--worker=2", "Did you mean workers"]),
    ([TOY, "--sweep.a=1", "--workers"], ["a value is missing"]),
    ([TOY, "--sweep.a=1", "--workers=two"], ["--workers=two", "whole number"]),
    ([TOY, "--sweep.a=1", "--workers=0"], ["at least 1"]),
    ([TOY, "--sweep.a=1", "--workers=-1"], ["whole number"]),
    ([TOY, "--sweep.a=1", "--workdir=x"], ["--sweep_dir"]),
    ([TOY, "--sweep.a=1", "--gpus=a"], ["--gpus=a", "numbers", "'a'"]),
    ([TOY, "--sweep.a=1", "--gpus=0,,1"], ["--gpus=0,,1"]),
    ([TOY, "--sweep.a=1", "--gpus=-1"], ["--gpus=-1"]),
    ([TOY, "--sweep.a=1", "--workers=99999999999"], ["--workers", "at most"]),
    ([TOY, "--sweep.a=1", "--goal=best"], ["--goal=best", "min or max"]),
    ([TOY, "--sweep.a=1", "--emit=pbs"], ["--emit=pbs", "slurm"]),
    ([TOY, "--sweep.a=1", "--emit=slurm", "--halving"], ["exclude each other"]),
    ([TOY, "--sweep.a=1", "--eta=1"], ["--eta=1", "at least 2"]),
    ([TOY, "--search=optuna", "--trials=2"], ["nothing varies", "--range.PATH"]),
    ([TOY, "--search=optuna", "--trials=2", "--sweep.a=1"], ["belong together"]),
    ([TOY, "--range.a=log:1:2", "--trials=2"], ["belong together"]),
    ([TOY, "--search=optuna", "--range.a=log:1:2"], ["--trials=N"]),
    (
        [TOY, "--search=optuna", "--range.a=log:1:2", "--trials=2", "--halving"],
        ["halving", "exclude"],
    ),
    ([TOY, "--sweep_config=seeds"], ["dotted name"]),
    ([TOY, "--sweep_config=configs.sweeps.sedes"], ["sedes", "Did you mean seeds"]),
    ([TOY, "--sweep_config=configs.sweps.seeds"], ["configs.sweps"]),
    ([TOY, "--sweep_config=configs.sweeps.seeds(n=1)"], ["seeds", "'n'"]),
    ([TOY, "--sweep_config=configs.sweeps.seeds(count="], ["argument=value"]),
    ([TOY, "--sweep_config=configs.sweeps.seeds(0)"], ["list of dicts"]),
    ([TOY, "--report"], ["holds no sweep"]),
]


@pytest.mark.parametrize(("flags", "mentions"), WRONG)
def test_a_wrong_line_is_refused(flags, mentions, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sweep.main(flags) == 2
    err = capsys.readouterr().err
    assert err.startswith("sweep: error: ")
    assert err.count("\n") <= 20
    for words in mentions:
        assert words in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["log:0:1", "log:2:1", "int:0.5:2", "log:1", "a:1:2"])
def test_a_wrong_range_is_refused(text, tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    flags = [TOY, "--search=optuna", f"--range.a={text}", "--trials=2"]
    assert sweep.main(flags) == 2
    err = capsys.readouterr().err
    assert f"--range.a={text}: " in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "mentions"),
    [
        (["--sweep.widht=1,2"], ["--fdl.widht=1", "width"]),
        (["--sweep.width=1,2,x"], ["--fdl.width=x", "int"]),  # the last of the values
        (["--sweep_experiment=sweep_toy.tyo"], ["tyo", "toy"]),
        (
            ["--sweep_experiment=ssm_tiny", "--metric=evalloss"],
            ["--metric=evalloss", "eval_loss"],
        ),
    ],
)
def test_a_wrong_value_ends_before_any_trial(
    flags, mentions, tmp_path, monkeypatch, capsys
):
    tests = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{tests.parent}:{tests}")
    monkeypatch.chdir(tmp_path)
    fixed = [] if "experiment" in flags[0] else [TOY]
    assert sweep.main([*fixed, *flags]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for words in mentions:
        assert words in err
    assert list(tmp_path.iterdir()) == []


def test_metrics_that_a_run_tells_are_known_before():
    flags = ["--fdl_config=ssm_tiny", "--fdl.evaluation.name=held"]
    config = resolve.experiment(arguments.parse(flags)).config
    for name in ("loss", "held_loss", "held_bits_per_byte", "tokens_per_sec", None):
        trial_check.check_metric(config, name)
    with pytest.raises(ConfigError, match="held_loss"):
        trial_check.check_metric(config, "heldloss")
    config.evaluation = None
    with pytest.raises(ConfigError, match="Did you mean loss"):
        trial_check.check_metric(config, "held_loss")
