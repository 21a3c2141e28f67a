"""In-context tasks: their definitions, that rows follow from the seed, and training."""

import csv
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from roxxel import optim, tasks
from roxxel.errors import ConfigError
from roxxel.models.losses import next_token_loss
from roxxel.train.evaluation import Evaluation, evaluate, make_eval_step
from roxxel.train.inputs import Input
from roxxel.train.trainer import Trainer
from tests.quick import compile_quickly  # noqa: F401
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once", "compile_quickly")

SUITE = {
    "induction": tasks.Induction(vocab_size=16, length=24),
    "copying": tasks.Copying(vocab_size=16, length=10),
    "selective_copying": tasks.SelectiveCopying(vocab_size=16, length=24),
    "associative_recall": tasks.AssociativeRecall(
        vocab_size=16, num_pairs=5, length=32
    ),
}


def rows(task, count=50, seed=0):
    return task.rows(np.random.default_rng(seed), count)


def solved(name, task, row):
    """Answers that follow from a row's context alone, by the definition of the task."""
    if name == "induction":
        places = np.flatnonzero(row[:-1] == task.vocab_size - 1)
        assert len(places) == 2
        assert places[1] == task.length
        return [row[places[0] + 1]]
    if name == "copying":
        return row[: task.length]
    if name == "selective_copying":
        context = row[: task.length]
        return context[context != 0]
    pairs = dict(zip(row[0:10:2], row[1:10:2], strict=True))
    assert max(pairs) < 8 <= min(pairs.values())
    return pairs


@pytest.mark.parametrize("name", SUITE)
def test_answers_follow_from_the_context(name):
    task = SUITE[name]
    tokens, mask = rows(task)
    assert tokens.dtype == np.int32
    assert tokens.shape == mask.shape == (50, task.seq_len + 1)
    assert tokens.min() >= 0
    assert tokens.max() < task.vocab_size
    assert (mask.sum(axis=1) == task.num_answers).all()
    assert not mask[:, 0].any()  # nothing comes before the first token
    for row, counted in zip(tokens, mask, strict=True):
        answers = solved(name, task, row)
        if isinstance(answers, dict):  # each key is asked for once, its value follows
            asked = row[np.flatnonzero(counted) - 1]
            assert sorted(asked) == sorted(answers)
            answers = [answers[key] for key in asked]
        np.testing.assert_array_equal(row[counted], answers)


def test_recall_asks_near_and_far_by_the_power_law():
    task = tasks.AssociativeRecall(vocab_size=64, num_pairs=4, length=264, power=0.01)
    even = tasks.AssociativeRecall(vocab_size=64, num_pairs=4, length=264, power=1.0)
    means = [np.nonzero(rows(one, 400)[1])[1].mean() for one in (task, even)]
    assert means[0] < 0.5 * means[1]
    assert means[1] == pytest.approx(8 + 128, rel=0.05)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 200), st.integers(0, 100), st.sampled_from(sorted(SUITE)))
def test_rows_of_a_set_do_not_depend_on_how_they_are_read(start, count, name):
    rows_of = tasks.TaskSet(SUITE[name], num_rows=300, seed=4)
    whole = rows_of.read(0, 300)
    for part, all_rows in zip(rows_of.read(start, start + count), whole, strict=True):
        np.testing.assert_array_equal(part, all_rows[start : start + count])


@pytest.mark.parametrize("name", SUITE)
def test_streams_follow_from_seed_and_step_and_share_no_rows_with_sets(name):
    one, same = (tasks.TaskStream(SUITE[name], 64, seed=3) for _ in range(2))
    other = tasks.TaskStream(SUITE[name], 64, seed=4)
    for step in (0, 5, 10**9):
        found = [each.batch(step)["tokens"] for each in (one, same, other)]
        np.testing.assert_array_equal(found[0], found[1])
        assert (found[0] != found[2]).any()
    held_out = tasks.TaskSet(SUITE[name], 64, seed=3).read(0, 64)[0]
    trained = {bytes(row) for step in range(20) for row in one.batch(step)["tokens"]}
    assert not trained & {bytes(row) for row in held_out}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tasks.Induction(vocab_size=2), "vocab_size >= 3"),
        (lambda: tasks.Copying(length=0), "copying: length"),
        (lambda: tasks.Copying(vocab_size=3), "two symbols"),
        (lambda: tasks.SelectiveCopying(length=4), "have no place"),
        (lambda: tasks.AssociativeRecall(num_pairs=20), "take 80 tokens, length is 64"),
        (lambda: tasks.AssociativeRecall(vocab_size=8), "different keys"),
        (lambda: tasks.AssociativeRecall(power=0.0), "power"),
        (lambda: tasks.TaskStream(SUITE["copying"], 0), "batch_size"),
        (lambda: tasks.TaskSet(SUITE["copying"], 0), "num_rows"),
        (
            lambda: Evaluation(dataset=tasks.TaskSet(SUITE["copying"]), seq_len=9),
            "seq_len is 9, the rows of the set have 20",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_the_tasks_need_numpy_only():
    code = "import sys, roxxel.tasks; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- as sets and as input --------------------------------------------------------------


def test_accuracy_is_over_answers_whatever_the_batch(tmp_path):
    task = SUITE["associative_recall"]
    model = Bigram(rngs=nnx.Rngs(0))
    leaves, found = jax.tree.leaves(nnx.state(model)), []
    for batch_size in (1, 7, 32):
        rows_of = tasks.TaskSet(task, num_rows=100)
        one = Evaluation(dataset=rows_of, batch_size=batch_size, name="recall")
        step = make_eval_step(model, next_token_loss)
        found.append(evaluate(one, step, leaves))
    assert list(found[0]) == ["recall_loss", "recall_perplexity", "recall_accuracy"]
    for other in found[1:]:
        assert other["recall_loss"] == pytest.approx(found[0]["recall_loss"], rel=1e-6)
        assert other["recall_accuracy"] == found[0]["recall_accuracy"]
    tokens, mask = tasks.TaskSet(task, num_rows=100).read(0, 100)
    best = np.asarray(model.table.embedding[...]).argmax(-1)
    at = np.nonzero(mask)
    right = best[tokens[at[0], at[1] - 1]] == tokens[at]
    assert found[0]["recall_accuracy"] == pytest.approx(right.mean())


class Fixed:
    """Rows in which one id always follows another, half of them not to be learned."""

    def __init__(self, mask=True):
        self.mask = mask

    def batch(self, step):
        tokens = np.tile(np.array([1, 2, 3, 4] * 2 + [1]), (8, 1))
        mask = np.zeros(tokens.shape, int)
        mask[:, 1::4] = 1  # 2 after 1, nothing else
        return (
            {"tokens": tokens, "loss_mask": mask} if self.mask else {"tokens": tokens}
        )


def trainer(stream, steps=8, **options):
    schedule = optim.warmup_cosine(peak=0.1, total_steps=steps)
    given = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule, weight_decay=0.0),
        "stream": stream,
        "total_steps": steps,
        "schedule": schedule,
        "save_every": 100,
    }
    return Trainer(**(given | options))


def table(folder):
    with open(folder / "roxxel_metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_only_what_a_mask_counts_is_trained(tmp_path):
    """Of eight rows of eight predictions; a mask of ones is none at all."""
    spec = trainer(Fixed())
    assert spec.run(tmp_path / "masked") == 0
    assert {row["tokens"] for row in table(tmp_path / "masked")} == {"16.0"}
    model, optimizer = spec.create()
    before = np.asarray(model.table.embedding[...])
    with spec.open_checkpoints(tmp_path / "masked", model, optimizer) as found:
        found.restore()
    after = np.asarray(model.table.embedding[...])
    moved = np.abs(after - before).max(axis=1)  # made by another program: rounded
    assert (moved > 1e-6).nonzero()[0].tolist() == [1]
    ones = Fixed()
    ones.batch = lambda step: Fixed.batch(ones, step) | {"loss_mask": np.ones((8, 9))}
    for name, stream in (("ones", ones), ("none", Fixed(mask=False))):
        assert trainer(stream).run(tmp_path / name) == 0
    for one, none in zip(
        table(tmp_path / "ones"), table(tmp_path / "none"), strict=True
    ):
        assert (one["loss"], one["tokens"]) == (none["loss"], "64.0")


def test_masked_input_resumes_and_reads_rows_of_an_iterable(tmp_path):
    task, steps = SUITE["copying"], 6
    held_out = Evaluation(dataset=tasks.TaskSet(task, 64), name="copying")
    options = {"steps": steps, "evaluation": held_out, "best": "copying_accuracy"}
    stream = tasks.TaskStream(task, 8)
    assert trainer(stream, **options).run(tmp_path / "whole") == 0
    for stop in (4, None):
        spec = trainer(tasks.TaskStream(task, 8), stop_after=stop, **options)
        assert spec.run(tmp_path / "cut") == 0
    singles = [
        {"tokens": tokens, "loss_mask": mask}
        for step in range(steps)
        for tokens, mask in zip(*stream.batch(step).values(), strict=True)
    ]
    spec = trainer(Input(singles, batch_size=8), **options)
    assert spec.run(tmp_path / "rows") == 0
    for other in ("cut", "rows"):
        for one, two in zip(
            table(tmp_path / "whole"), table(tmp_path / other), strict=True
        ):
            assert one["loss"] == two["loss"]
    summary = json.loads((tmp_path / "whole/summary.json").read_text())
    assert summary["best"]["metric"] == "copying_accuracy"
    with pytest.raises(ConfigError, match="were others"):
        trainer(tasks.TaskStream(task, 8, seed=1), **options).run(tmp_path / "cut")


@pytest.mark.parametrize("mask", [np.ones((8, 3)), np.full((8, 9), 0.5)])
def test_a_mask_of_another_shape_or_kind_is_refused(mask, tmp_path):
    stream = Fixed()
    stream.batch = lambda step: Fixed.batch(stream, step) | {"loss_mask": mask}
    with pytest.raises(ConfigError, match=r"loss_mask is .* expected 0 or 1"):
        trainer(stream).run(tmp_path / "run")
