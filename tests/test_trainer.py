"""The loop: order, resume, stop, divergence. Real data, logger and checkpoints."""

import csv
import functools
import json
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from roxxel import optim
from roxxel.checkpoint import Checkpointer
from roxxel.dataset import Roxxel
from roxxel.errors import EXIT_RESTART, ConfigError, DivergedError
from roxxel.models.losses import next_token_loss
from roxxel.models.ssm import Mamba2LM
from roxxel.train.evaluation import Evaluation
from roxxel.train.sample import Sample
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")

SEQ_LEN, BATCH_SIZE, STEPS = 8, 8, 20


@pytest.fixture
def dataset(tmp_path):
    rox = Roxxel(tmp_path / "train_*.rox")
    rng = np.random.default_rng(0)
    # 137 rows: 17 steps an epoch, so that 20 steps cross into the second one.
    rox.write([rng.integers(0, 16, 1100).astype(np.uint8)])
    return rox


def trainer(dataset, *, batch_size=BATCH_SIZE, stream=None, lr=0.05, steps=STEPS, **kw):
    stream = stream or dataset.stream(SEQ_LEN, batch_size, seed=3, overlap=1)
    total = optim.total_steps(stream, steps=steps)
    schedule = optim.warmup_cosine(peak=lr, total_steps=total)
    options = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "schedule": schedule,
        "stream": stream,
        "total_steps": total,
        "evaluation": Evaluation(
            dataset=dataset, seq_len=SEQ_LEN, batch_size=16, every=5
        ),
        "save_every": 5,
    }
    return Trainer(**(options | kw))


def rows(workdir):
    if not (workdir / "roxxel_metrics.csv").exists():
        return []
    with open(workdir / "roxxel_metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def final_state(workdir, steps=STEPS):
    model = Bigram(rngs=nnx.Rngs(9))
    optimizer = nnx.Optimizer(
        model, optim.adamw(schedule=lambda count: 0.0), wrt=nnx.Param
    )
    with Checkpointer(workdir / "checkpoints", model, optimizer) as checkpointer:
        assert checkpointer.restore() == steps
    leaves = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
    return [np.asarray(leaf) for leaf in leaves]


def assert_same_run(one, other):
    for a, b in zip(final_state(one), final_state(other), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(rows(one), rows(other), strict=True):
        for column in ("step", "loss", "learning_rate", "grad_norm", "eval_loss"):
            assert a.get(column) == b.get(column), (a["step"], column)


@pytest.fixture
def undisturbed(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "undisturbed") == 0
    return tmp_path / "undisturbed"


def test_run_leaves_metrics_checkpoints_and_summary(undisturbed):
    table = rows(undisturbed)
    assert [int(row["step"]) for row in table] == list(range(1, STEPS + 1))
    assert list(table[0])[:3] == ["step", "loss", "perplexity"]
    evaluated = [int(row["step"]) for row in table if row["eval_loss"]]
    assert evaluated == [5, 10, 15, 20]
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert summary["eval_loss"] == pytest.approx(float(table[-1]["eval_loss"]))
    info = json.loads((undisturbed / "run.json").read_text())
    assert info["position"]["batch_size"] == BATCH_SIZE
    assert info["parameters"] == 16 * 16
    log = (undisturbed / "roxxel_system.log").read_text()
    assert "Done after step 20" in log


def test_finished_run_says_so_and_changes_nothing(undisturbed, dataset):
    before = (undisturbed / "roxxel_metrics.csv").read_bytes()
    assert trainer(dataset).run(undisturbed) == 0
    assert "Nothing left to train" in (undisturbed / "roxxel_system.log").read_text()
    assert (undisturbed / "roxxel_metrics.csv").read_bytes() == before


def test_killed_after_the_last_step_the_results_are_still_made(undisturbed, dataset):
    before = (undisturbed / "summary.json").read_text()
    (undisturbed / "summary.json").unlink()
    assert trainer(dataset).run(undisturbed) == 0
    summary = json.loads((undisturbed / "summary.json").read_text())
    for key in ("steps", "eval_loss"):
        assert summary[key] == json.loads(before)[key]
    assert len(rows(undisturbed)) == STEPS


def test_divergence_at_the_first_step_leaves_the_initial_state(dataset, tmp_path):
    def always_nan(model, tokens, mask=None):
        mean, weight = next_token_loss(model, tokens, mask)
        return mean * jnp.nan, weight

    with pytest.raises(DivergedError, match=r"step 1 \(batch 0\)"):
        trainer(dataset, loss=always_nan).run(tmp_path / "nan")
    with Checkpointer(tmp_path / "nan" / "checkpoints") as checkpointer:
        assert checkpointer.all_steps() == [0]


def test_stopping_early_three_times_changes_nothing(undisturbed, dataset, tmp_path):
    """Neither the schedule nor the data depend on where a run was cut."""
    for stop in (3, 11, 18, None):
        assert trainer(dataset, stop_after=stop).run(tmp_path / "cut") == 0
    assert_same_run(undisturbed, tmp_path / "cut")


class Disturbed:
    """A stream that does something before it hands out one batch."""

    def __init__(self, stream, at, action):
        self._stream, self._at, self._action = stream, at, action

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def place(self, *args, **kwargs):
        return Disturbed(self._stream.place(*args, **kwargs), self._at, self._action)

    def steps(self, start, stop):
        for step, batch in enumerate(self._stream.steps(start, stop), start):
            if step == self._at:
                self._action()
            yield batch


def disturbed(dataset, at, action):
    stream = dataset.stream(SEQ_LEN, BATCH_SIZE, seed=3, overlap=1)
    return trainer(dataset, stream=Disturbed(stream, at, action))


@pytest.mark.parametrize("at", [0, 7, 19])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_exits_42_and_resumes_exactly(
    undisturbed, dataset, tmp_path, at, number
):
    before = signal.getsignal(number)
    run = disturbed(dataset, at, lambda: os.kill(os.getpid(), number))
    code = run.run(tmp_path / "stopped")
    assert signal.getsignal(number) == before
    # The signal arrives while batch `at` is fetched, which is no longer waited for.
    assert [int(row["step"]) for row in rows(tmp_path / "stopped")] == [
        *range(1, at + 1)
    ]
    assert code == EXIT_RESTART
    assert trainer(dataset).run(tmp_path / "stopped") == 0
    assert_same_run(undisturbed, tmp_path / "stopped")


def test_exception_in_the_data_reaches_the_caller_and_resumes(
    undisturbed, dataset, tmp_path
):
    def fail():
        raise OSError("disk gone at batch 13")

    with pytest.raises(OSError, match="disk gone at batch 13"):
        disturbed(dataset, 13, fail).run(tmp_path / "failed")
    log = (tmp_path / "failed" / "roxxel_system.log").read_text()
    assert "disk gone at batch 13" in log
    assert trainer(dataset).run(tmp_path / "failed") == 0
    assert_same_run(undisturbed, tmp_path / "failed")


def nan_at_step_seven(model, tokens, mask=None):
    mean, weight = next_token_loss(model, tokens, mask)
    # Batch 6 of the stream below is the only one that holds this sum.
    return jnp.where(jnp.sum(tokens) == nan_at_step_seven.sum, jnp.nan, mean), weight


def test_nan_stops_naming_the_step_with_the_state_before_it_saved(dataset, tmp_path):
    stream = dataset.stream(SEQ_LEN, BATCH_SIZE, seed=3, overlap=1)
    sums = [int(np.sum(stream.batch(step))) for step in range(STEPS)]
    assert sums.count(sums[6]) == 1
    nan_at_step_seven.sum = sums[6]
    run = trainer(dataset, loss=nan_at_step_seven)
    with pytest.raises(DivergedError, match=r"step 7 \(batch 6\)") as caught:
        run.run(tmp_path / "nan")
    assert caught.value.exit_code == 3
    state = final_state(tmp_path / "nan", steps=6)
    assert all(np.isfinite(leaf).all() for leaf in state)
    assert trainer(dataset, stop_after=6).run(tmp_path / "good") == 0
    for a, b in zip(state, final_state(tmp_path / "good", steps=6), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 16}, "batch_size was 8 and is now 16"),
        ({"seq_len": 4}, "seq_len was 8 and is now 4"),
        ({"seed": 4}, "seed was 3 and is now 4"),
        ({"epoch": 2}, "epoch was 0 and is now 2"),
    ],
)
def test_resuming_at_another_position_is_refused(dataset, tmp_path, change, words):
    assert trainer(dataset, stop_after=5).run(tmp_path / "run") == 0
    options = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "seed": 3} | change
    stream = dataset.stream(**options, overlap=1)
    with pytest.raises(ConfigError, match=words):
        trainer(dataset, stream=stream).run(tmp_path / "run")
    # Nothing was lost by trying.
    assert trainer(dataset).run(tmp_path / "run") == 0


def test_other_data_is_refused_on_resume(dataset, tmp_path):
    assert trainer(dataset, stop_after=5).run(tmp_path / "run") == 0
    other = Roxxel(tmp_path / "other.rox")
    other.write([np.zeros(1100, np.uint8)])
    with pytest.raises(ConfigError, match="fingerprint"):
        trainer(other).run(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"save_every": 0}, "save_every must be positive, got 0"),
        ({"stop_after": -1}, "stop_after must be positive, got -1"),
        ({"seed": 2**40}, "seed must be in"),
        ({"stream": "here"}, "'here', not a stream"),
    ],
)
def test_bad_options_are_refused_when_built(dataset, change, words):
    with pytest.raises(ConfigError, match=words):
        trainer(dataset, **change)


def test_start_step_belongs_to_the_checkpoint(dataset):
    stream = dataset.stream(SEQ_LEN, BATCH_SIZE, overlap=1, start_step=2)
    with pytest.raises(ConfigError, match="start_step must be 0"):
        trainer(dataset, stream=stream)


def test_ids_that_the_model_does_not_have_are_named(dataset, tmp_path):
    model = functools.partial(
        Mamba2LM, vocab_size=10, d_model=8, n_layers=1, head_dim=8, state_dim=4
    )
    with pytest.raises(ConfigError, match="to 15, the model has vocab_size 10"):
        trainer(dataset, model=model, evaluation=None).run(tmp_path / "run")


def test_results_of_a_shorter_run_are_not_those_of_the_longer_one(dataset, tmp_path):
    assert trainer(dataset, steps=5).run(tmp_path / "run") == 0
    stale = (tmp_path / "run" / "summary.json").read_text()
    assert trainer(dataset, steps=10).run(tmp_path / "run") == 0
    (tmp_path / "run" / "summary.json").write_text(stale)
    assert trainer(dataset, steps=10).run(tmp_path / "run") == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 10


def test_a_second_process_in_the_work_directory_is_refused(dataset, tmp_path):
    (tmp_path / "run").mkdir()
    holder = (
        "import pathlib, sys\n"
        "from roxxel.train import lock\n"
        "with lock.hold(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {process.pid} runs there"):
        trainer(dataset).run(tmp_path / "run")
    process.communicate("")
    assert trainer(dataset, steps=2).run(tmp_path / "run") == 0


def test_rows_are_written_before_the_checkpoint_that_follows_them(dataset, tmp_path):
    seen = []

    class Watched(Checkpointer):
        def save(self, step, *args, **kwargs):
            seen.append((step, len(rows(tmp_path / "run"))))
            return super().save(step, *args, **kwargs)

    assert trainer(dataset, checkpointer=Watched).run(tmp_path / "run") == 0
    assert seen == [(5, 5), (10, 10), (15, 15), (20, 20)]


@pytest.mark.parametrize(
    "change", [{"prompt": ""}, {"num_tokens": 0}, {"temperature": -1.0}]
)
def test_bad_sample_options_are_refused_when_built(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        Sample(**({"prompt": "a"} | change))


def test_stream_without_targets_is_refused(dataset):
    stream = dataset.stream(SEQ_LEN, BATCH_SIZE)
    with pytest.raises(ConfigError, match="overlap=1"):
        trainer(dataset, stream=stream)
