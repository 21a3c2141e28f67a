"""Lengths in units, runs made longer, and what a finished run still needs."""

import json

import numpy as np
import pytest

from roxxel import optim
from roxxel.checkpoint import Checkpointer
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.train.evaluation import Evaluation
from roxxel.train.trainer import Trainer
from tests.test_trainer import assert_same_run, rows
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture
def dataset(tmp_path):
    rox = Roxxel(tmp_path / "train_*.rox")
    rox.write([np.random.default_rng(0).integers(0, 16, 2700).astype(np.uint8)])
    return rox  # 42 steps of 8 rows of 8


def trainer(dataset, *, steps=20, warmup=4, decay=0.3, make=None, **kw):
    stream = dataset.stream(8, 8, seed=3, overlap=1)
    make = make or optim.warmup_stable_decay
    options = {"decay": decay} if make is optim.warmup_stable_decay else {}
    schedule = make(peak=0.05, total_steps=steps, warmup=warmup, **options)
    options = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "schedule": schedule,
        "stream": stream,
        "total_steps": steps,
        "save_every": 3,
    }
    return Trainer(**(options | kw))


def saved_steps(workdir):
    with Checkpointer(workdir / "checkpoints", read_only=True) as checkpointer:
        return checkpointer.all_steps()


def log_of(workdir):
    return (workdir / "roxxel_system.log").read_text()


def test_lengths_in_any_unit_are_told_and_recorded(dataset, tmp_path):
    evaluation = Evaluation(dataset=dataset, seq_len=8, every="25%", max_batches=2)
    run = trainer(dataset, save_every="384 tokens", evaluation=evaluation)
    assert run.run(tmp_path / "run") == 0
    plan = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert plan["save_every"] == 6
    assert plan["evaluate_every"] == {"eval": 5}
    assert (plan["warmup_steps"], plan["decay_start"]) == (4, 14)
    assert plan["tokens"] == 20 * 64
    assert "Plan 20 steps of 8 x 8 tokens, 1,280 tokens in all" in log_of(
        tmp_path / "run"
    )
    assert "warm-up of 4 steps, decay from step 14" in log_of(tmp_path / "run")
    evaluated = [int(r["step"]) for r in rows(tmp_path / "run") if r["eval_loss"]]
    assert evaluated == [5, 10, 15, 20]
    evaluated_on = "every 5 steps and at the end on eval: 128 of 2,699 elements"
    assert evaluated_on in log_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"save_every": "5 parsecs"}, "save_every='5 parsecs'"),
        ({"save_every": 0}, "save_every must be positive, got 0"),
        ({"save_every": "0 tokens"}, "save_every must be positive"),
    ],
)
def test_lengths_that_are_none_are_refused_when_built(dataset, change, words):
    with pytest.raises(ConfigError, match=words):
        trainer(dataset, **change)


def test_the_step_before_the_decay_is_kept(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "run") == 0
    assert saved_steps(tmp_path / "run") == [14, 15, 18, 20]


def test_a_lengthened_run_is_the_long_one_from_the_start(dataset, tmp_path):
    """Only the decay is planned anew: nothing before it may differ by a bit."""
    long = {"steps": 30, "decay": 9}
    assert trainer(dataset, **long).run(tmp_path / "long") == 0
    assert trainer(dataset).run(tmp_path / "run") == 0
    assert trainer(dataset, **long, stop_after=16).run(tmp_path / "run") == 0
    assert len(rows(tmp_path / "run")) == 16  # rows of the old decay are gone
    log = log_of(tmp_path / "run")
    assert "Continuing from step 14, before the decay: steps 15 to 20" in log
    assert trainer(dataset, **long).run(tmp_path / "run") == 0
    assert_same_run_of(30, tmp_path / "long", tmp_path / "run")
    assert {14, 21, 30} <= set(saved_steps(tmp_path / "run"))


def assert_same_run_of(steps, one, other):
    for a, b in zip(rows(one), rows(other), strict=True):
        for column in ("step", "loss", "learning_rate", "grad_norm"):
            assert a[column] == b[column], (a["step"], column)
    assert len(rows(one)) == steps


def test_a_lengthened_run_killed_before_it_saved_is_lengthened_again(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "run") == 0

    class Killed(Checkpointer):
        def save(self, *args, **kwargs):
            raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        trainer(dataset, steps=30, checkpointer=Killed).run(tmp_path / "run")
    assert trainer(dataset, steps=30).run(tmp_path / "run") == 0
    assert log_of(tmp_path / "run").count("Continuing from step 14") == 2


def test_a_lengthened_run_before_its_decay_goes_on_where_it_is(dataset, tmp_path):
    assert trainer(dataset, stop_after=10).run(tmp_path / "run") == 0
    assert trainer(dataset, steps=30, stop_after=12).run(tmp_path / "run") == 0
    log = log_of(tmp_path / "run")
    assert "Resuming after step 10 of 30" in log
    assert "it is now planned for 30 with a decay from step 21" in log


def test_another_warm_up_stays_as_it_was(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "run") == 0
    assert trainer(dataset, steps=30, warmup=6).run(tmp_path / "run") == 0
    assert "The warm-up was 4 steps and stays so" in log_of(tmp_path / "run")


def test_a_plan_with_other_rates_before_the_decay_is_refused(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "run") == 0
    with pytest.raises(ConfigError, match=r"learning rate at step 14 was 0\.05 and is"):
        trainer(dataset, steps=30, warmup=29).run(tmp_path / "run")
    assert "Nothing left" not in log_of(tmp_path / "run")
    assert trainer(dataset).run(tmp_path / "run") == 0
    assert "Nothing left" in log_of(tmp_path / "run")


def test_fewer_steps_than_are_done_are_refused(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "run") == 0
    with pytest.raises(ConfigError, match="20 completed steps, total_steps is now 10"):
        trainer(dataset, steps=10).run(tmp_path / "run")


def test_a_lengthened_cosine_says_that_its_rates_change(dataset, tmp_path):
    cosine = {"make": optim.warmup_cosine}
    assert trainer(dataset, **cosine).run(tmp_path / "run") == 0
    assert trainer(dataset, **cosine, steps=25).run(tmp_path / "run") == 0
    log = log_of(tmp_path / "run")
    assert "The run was planned for 20 steps" in log
    assert "learning rate at step 20 was" in log
    assert len(rows(tmp_path / "run")) == 25


def test_stopping_early_changes_no_rate(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "whole") == 0
    for stop in (2, 15, None):
        assert trainer(dataset, stop_after=stop).run(tmp_path / "cut") == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_whether_anything_is_left_needs_no_run(dataset, tmp_path):
    run = tmp_path / "run"
    assert not trainer(dataset).nothing_left(run)
    assert not run.exists()
    assert trainer(dataset, stop_after=5).run(run) == 0
    assert trainer(dataset, stop_after=5).nothing_left(run)
    assert not trainer(dataset).nothing_left(run)
    assert trainer(dataset).run(run) == 0
    assert trainer(dataset).nothing_left(run)
    assert not trainer(dataset, steps=30).nothing_left(run)
    (run / "summary.json").unlink()
    assert not trainer(dataset).nothing_left(run)
