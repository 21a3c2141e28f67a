"""Where the time of a run went: phases, attempts, lost work, and the numbers."""

import csv
import json
import os

import jax
import numpy as np
import pytest
from flax import nnx

from roxxel.data.steps import Span
from roxxel.dataset import Roxxel
from roxxel.train import goodput, numbers
from roxxel.train.evaluation import Evaluation
from roxxel.train.timing import PHASES, StepClock
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_phases_exclude_each_other_and_sum_to_the_time_that_passed():
    time = Time()
    clock = StepClock(3.0, clock=time)
    time.now += 1
    clock.switch("other")
    with clock.phase("step"):
        time.now += 2
        with clock.phase("save"):
            time.now += 4
        time.now += 8
    time.now += 16
    clock.move(1.5, "step", "data")
    expected = {"start": 4, "step": 8.5, "data": 1.5, "save": 4, "other": 16}
    assert clock.seconds == expected
    assert clock.total == 34
    assert set(clock.seconds) <= set(PHASES)


def test_rate_and_percentiles_leave_evaluations_out():
    time = Time()
    clock = StepClock(clock=time)
    clock.switch("other")
    for step in range(1, 102):
        with clock.phase("step"):
            time.now += 2.0 if step == 51 else 1.0
            clock.tick(10 * step)
        with clock.phase("evaluation"):
            time.now += 100
    assert clock.tokens_per_sec == pytest.approx(500 / 50, rel=0.03)
    assert clock.step_percentiles() == {"p50": 1.0, "p90": 1.0, "p99": 1.0}


def attempt(first, last, *, end="stopped", began=0.0, **seconds):
    return goodput.Attempt(
        began=began, seconds=seconds, first_step=first, last_step=last, end=end
    )


def test_steps_that_are_trained_again_are_lost():
    found = goodput.Goodput(
        attempts=(
            # 4 of 10 steps are trained again, with their wait for data.
            attempt(0, 10, start=5.0, step=100.0, data=10.0, end="killed"),
            attempt(6, 20, start=5.0, step=140.0),
        )
    )
    assert found.total == 260
    assert sum(found.seconds.values()) == pytest.approx(260)
    assert found.seconds["lost"] == pytest.approx(44)
    assert found.seconds["step"] == pytest.approx(200)
    assert found.seconds["start"] == 10
    assert found.share == pytest.approx(200 / 260)
    assert found.line().startswith(
        "Goodput 76.9 % of 260.0 s in 2 attempts: step 200.0, lost 44.0, start 10.0"
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",  # cut by a full disk or a kill
        '{"began": 1}\n',
        "null\n",
        '{"began": "x", "seconds": {}, "first_step": 0, "last_step": 1, "end": ""}\n',
    ],
)
def test_what_is_no_attempt_counts_for_nothing(tmp_path, content):
    (tmp_path / goodput.FILE_NAME).write_text(content)
    assert goodput.read(tmp_path).attempts == ()
    assert goodput.read(tmp_path).line().startswith("Goodput 0.0 % of 0.0 s")
    recorder = goodput.Recorder(tmp_path, StepClock(2.0), 0)
    recorder.finish(3, "done")
    assert [one.last_step for one in goodput.read(tmp_path).attempts] == [3]


def test_a_killed_attempt_counts_until_its_last_sign_of_life(tmp_path):
    time = Time()
    clock = StepClock(1.0, clock=time)
    recorder = goodput.Recorder(tmp_path, clock, 0)
    clock.switch("step")
    time.now += 7
    recorder.beat(5)
    # Then it wrote two more rows in three seconds, and was killed.
    table = tmp_path / goodput.METRICS_NAME
    table.write_text("step,loss,perplexity\n6,1,2\n7,1,2\n8,")
    (before,) = goodput.read(tmp_path).attempts
    assert (before.end, before.last_step) == ("running", 5)
    os.utime(table, (0, before.began + 8 + 3))
    following = goodput.Recorder(tmp_path, StepClock(2.0, clock=time), 6)
    assert following.elapsed_before == pytest.approx(11)
    following.finish(9, "done")
    found = goodput.read(tmp_path)
    assert [(one.end, one.last_step) for one in found.attempts] == [
        ("killed", 7),
        ("done", 9),
    ]
    assert found.seconds["lost"] == pytest.approx(10 / 7)
    assert not (tmp_path / goodput.BEAT_NAME).exists()


@pytest.mark.parametrize("text", ["", "step,loss", "step,loss\n", "step,loss\n1"])
def test_a_kill_before_the_first_row_is_no_obstacle(tmp_path, text):
    goodput.Recorder(tmp_path, StepClock(1.0), 0).beat(0)
    (tmp_path / goodput.METRICS_NAME).write_text(text)
    goodput.Recorder(tmp_path, StepClock(1.0), 0).finish(1, "done")
    ends = [(one.end, one.last_step) for one in goodput.read(tmp_path).attempts]
    assert ends == [("killed", 0), ("done", 1)]


def test_a_kill_between_line_and_beat_counts_once(tmp_path):
    recorder = goodput.Recorder(tmp_path, StepClock(1.0), 0)
    recorder.beat(4)
    beat = (tmp_path / goodput.BEAT_NAME).read_bytes()
    recorder.finish(4, "done")
    (tmp_path / goodput.BEAT_NAME).write_bytes(beat)
    assert len(goodput.read(tmp_path).attempts) == 1
    goodput.Recorder(tmp_path, StepClock(1.0), 4).finish(5, "done")
    assert len(goodput.read(tmp_path).attempts) == 2


# -- a whole run ----------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    dataset = Roxxel(tmp_path / "train_*.rox")
    dataset.write([np.random.default_rng(0).integers(0, 16, 1100).astype(np.uint8)])

    def start(**options):
        trainer = Trainer(
            model=Bigram,
            optimizer=__import__("optax").sgd(0.1),
            stream=dataset.stream(8, 8, overlap=1),
            total_steps=12,
            save_every=4,
            evaluation=Evaluation(dataset=dataset, seq_len=8, batch_size=16, every=4),
            **options,
        )
        return trainer.run(tmp_path / "run")

    return start


def test_phases_of_all_attempts_sum_to_their_wall_time(run, tmp_path):
    import time

    walls = []
    for stop in (5, None):
        begin = time.perf_counter()
        assert run(stop_after=stop) == 0
        walls.append(time.perf_counter() - begin)
    found = goodput.read(tmp_path / "run")
    assert [(one.first_step, one.last_step) for one in found.attempts] == [
        (0, 5),
        (5, 12),
    ]
    assert found.seconds["lost"] == 0
    assert sum(found.seconds.values()) == pytest.approx(found.total, rel=1e-6)
    for one, wall in zip(found.attempts, walls, strict=True):
        # What is left is the opening and closing of log and lock.
        assert sum(one.seconds.values()) == pytest.approx(wall, rel=0.01, abs=0.3)
        assert {"start", "compile", "step", "evaluation", "save"} <= set(one.seconds)
    record = json.loads((tmp_path / "run" / "run.json").read_text())["goodput"]
    assert record == found.record()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["goodput"]["attempts"] == 2
    assert summary["mfu"] == "n/a"
    assert summary["compile_secs"] > 0
    assert set(summary["step_secs"]) == {"p50", "p90", "p99"}
    log = (tmp_path / "run" / "roxxel_system.log").read_text()
    assert log.count("Goodput ") == 2
    # A start that finds nothing to train is no attempt.
    assert run() == 0
    assert len(goodput.read(tmp_path / "run").attempts) == 2


def test_columns_that_every_run_has(run, tmp_path):
    assert run() == 0
    with open(tmp_path / "run" / "roxxel_metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    wanted = {
        *("step", "loss", "perplexity", "grad_norm", "weight_norm", "tokens"),
        *("elapsed", "tokens_per_sec", "memory_gib"),
    }
    assert wanted <= set(table[0])
    elapsed = [float(row["elapsed"]) for row in table]
    assert elapsed == sorted(elapsed)
    assert all(float(row["memory_gib"]) > 0 for row in table)
    # The norm is that of the weights before the update of the step.
    weights = nnx.state(Bigram(rngs=nnx.Rngs(0)), nnx.Param)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(weights)]
    norm = np.sqrt(sum((leaf**2).sum() for leaf in leaves))
    assert float(table[0]["weight_norm"]) == pytest.approx(norm, rel=1e-6)


def test_utilization_is_known_where_the_peak_is(monkeypatch):
    monkeypatch.setattr(numbers.hardware, "peak_flops", lambda kind: 1e6)
    time = Time()
    clock = StepClock(clock=time)
    clock.switch("step")
    for step in range(1, 4):
        time.now += 1
        clock.tick(step * 100)
    model = Bigram(rngs=nnx.Rngs(0))
    spans = (Span(start=0, stop=None, batch_size=8, seq_len=8),)
    found = numbers.Numbers(model, spans, clock, elapsed_before=10.0)
    # 100 tokens a second, 6 operations for each of 256 parameters.
    expected = 100 * 6 * 256 / (1e6 * jax.device_count())
    assert found.row(3)["mfu"] == pytest.approx(expected, abs=1e-4)
    assert found.row(3)["elapsed"] == 13
    assert "MFU 1.9 %" in found.line(3)
