"""Metrics that are exact, several sets, the best checkpoint, early stopping."""

import json
import math
import os
import pathlib
import socket
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
from roxxel.errors import ConfigError
from roxxel.models import head_loss
from roxxel.models.losses import next_token_loss
from roxxel.models.scores import next_token_scores
from roxxel.train.early_stopping import EarlyStopping
from roxxel.train.evaluation import Evaluation, evaluate, make_eval_step
from roxxel.train.trainer import Trainer
from tests.evaluation_parts import MODELS, held_out, numbers
from tests.quick import compile_quickly, jit  # noqa: F401
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once", "compile_quickly")

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    return held_out(tmp_path_factory.mktemp("data") / "heldout.rox")


# -- the numbers -----------------------------------------------------------------------


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


SLOW = pytest.param("mamba2", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["bigram", SLOW])
def test_the_numbers_do_not_depend_on_batches_or_devices(heldout, name):
    """On a mesh of eight devices none of these batch sizes but 32 divides."""
    evaluation = Evaluation(dataset=heldout, seq_len=24, batch_size=1)
    model = MODELS[name](rngs=nnx.Rngs(0))
    step = make_eval_step(model, next_token_loss)
    alone = evaluate(evaluation, step, jax.tree.leaves(nnx.state(model)))
    for batch_size in (7, 32):
        assert_close(numbers(heldout, name, batch_size), alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bigram", "mamba2"])
def test_two_processes_find_the_same_numbers(heldout, name):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    env |= {"ROXXEL_COORDINATOR": f"127.0.0.1:{port}", "ROXXEL_NUM_PROCESSES": "2"}
    args = [ROOT / "tests/evaluation_child.py", heldout.shards[0], name]
    children = [
        subprocess.Popen(
            [sys.executable, *args],
            env=env | {"ROXXEL_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outs = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0, 0], outs
    found = json.loads(outs[0][0].splitlines()[-1])  # gloo writes before
    assert_close(found, numbers(heldout, name, 7))


def test_accuracy_and_bits_by_hand(heldout, tmp_path):
    model = Bigram(rngs=nnx.Rngs(0))
    leaves = jax.tree.leaves(nnx.state(model))
    step = make_eval_step(model, next_token_loss)
    evaluation = Evaluation(dataset=heldout, seq_len=24, name="held")
    found = evaluate(evaluation, step, leaves)
    assert list(found) == evaluation.metric_names()
    ids = heldout.elements(0, heldout.num_elements)
    guesses = np.asarray(model.table.embedding[...]).argmax(-1)[ids[:-1]]
    assert found["held_accuracy"] == pytest.approx(np.mean(guesses == ids[1:]))
    bits = found["held_loss"] / math.log(2)
    assert found["held_bits_per_byte"] == pytest.approx(bits)
    assert found["held_perplexity"] == pytest.approx(math.exp(found["held_loss"]))


def test_bits_per_byte_of_tokens_where_the_data_tell_their_length(tmp_path):
    ids = np.arange(100, dtype=np.uint16) % 16
    told = Roxxel(tmp_path / "told.rox").write([ids], metadata={"bytes_per_token": 4})
    silent = Roxxel(tmp_path / "silent.rox").write([ids])
    model = Bigram(rngs=nnx.Rngs(0))
    leaves = jax.tree.leaves(nnx.state(model))
    step = make_eval_step(model, next_token_loss)
    found = evaluate(Evaluation(dataset=told, seq_len=9), step, leaves)
    bits = found["eval_loss"] / math.log(2) / 4
    assert found["eval_bits_per_byte"] == pytest.approx(bits)
    assert (
        "eval_bits_per_byte" not in Evaluation(dataset=silent, seq_len=9).metric_names()
    )
    given = Evaluation(dataset=silent, seq_len=9, bytes_per_token=4.0)
    assert_close(evaluate(given, step, leaves), found)


class Headed(Bigram):
    """A head beside the embedding, as language models have it."""

    vocab_size, compute_dtype = 16, jnp.float32

    def hidden(self, tokens):
        return self.table(tokens), None

    def logits(self, hidden):
        return hidden @ self.table.embedding[...]

    def __call__(self, tokens, **_):
        return self.logits(self.hidden(tokens)[0]), None


def test_scores_of_large_vocabularies_are_those_of_whole_logits(monkeypatch):
    model = Headed(rngs=nnx.Rngs(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 16, (3, 31)), jnp.int32)
    mask = jnp.ones(tokens.shape).at[1, 20:].set(0.0)
    whole = jit(lambda *given: next_token_scores(*given))(model, tokens, mask)
    loss = jit(next_token_loss)(model, tokens, mask)
    monkeypatch.setattr(head_loss, "piece_size", lambda *_: 7)
    pieces = jit(lambda *given: next_token_scores(*given))(model, tokens, mask)
    np.testing.assert_allclose(whole, pieces, rtol=1e-6)
    np.testing.assert_allclose(whole[:2], loss, rtol=1e-6)
    assert 0 < whole[2] < whole[1] == 79


def test_a_loss_of_ones_own_is_what_is_told(heldout):
    def doubled(model, tokens, mask=None):
        mean, weight = next_token_loss(model, tokens, mask)
        return 2 * mean, weight

    model = Bigram(rngs=nnx.Rngs(0))
    leaves = jax.tree.leaves(nnx.state(model))
    found = {}
    for accuracy in (True, False):
        evaluation = Evaluation(dataset=heldout, seq_len=24, accuracy=accuracy)
        step = make_eval_step(model, doubled, accuracy=accuracy)
        found[accuracy] = evaluate(evaluation, step, leaves)
        assert list(found[accuracy]) == evaluation.metric_names()
    assert found[True]["eval_loss"] == pytest.approx(found[False]["eval_loss"])
    plain = make_eval_step(model, next_token_loss)
    alone = evaluate(Evaluation(dataset=heldout, seq_len=24), plain, leaves)
    assert found[True]["eval_loss"] == pytest.approx(2 * alone["eval_loss"])
    assert found[True]["eval_accuracy"] == alone["eval_accuracy"]


# -- runs ------------------------------------------------------------------------------


def trainer(dataset, *, steps=20, lr=0.05, **options):
    schedule = optim.warmup_cosine(peak=lr, total_steps=steps)
    given = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "stream": dataset.stream(8, 8, seed=3, overlap=1),
        "total_steps": steps,
        "schedule": schedule,
        "save_every": 100,
    }
    return Trainer(**(given | options))


def a_set(dataset, **options):
    return Evaluation(**({"dataset": dataset, "seq_len": 24, "every": 2} | options))


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def rows_with(folder, name):
    lines = (folder / "roxxel_metrics.csv").read_text().splitlines()
    at = lines[0].split(",").index(name)
    return [int(line.split(",")[0]) for line in lines[1:] if line.split(",")[at]]


def test_several_sets_each_with_its_own_cadence(heldout, tmp_path):
    other = Roxxel(tmp_path / "other.rox").write([np.arange(40, dtype=np.uint8) % 16])
    sets = {"main": a_set(heldout, every=10), "side": a_set(other, every="30%")}
    run = trainer(heldout, evaluation=sets, best="max:side_accuracy")
    assert run.run(tmp_path / "run") == 0
    assert rows_with(tmp_path / "run", "main_loss") == [10, 20]
    assert rows_with(tmp_path / "run", "side_accuracy") == [6, 12, 18, 20]
    found = summary(tmp_path / "run")
    assert {"main_loss", "main_bits_per_byte", "side_perplexity"} <= set(found)
    assert found["best"]["metric"] == "side_accuracy"
    log = (tmp_path / "run/roxxel_system.log").read_text()
    assert "Evaluation every 6 steps and at the end on side: 39 elements" in log


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"best": "evalloss"},
            "best='evalloss': no evaluation .* Did you mean eval_loss",
        ),
        ({"best": "up:eval_loss"}, "expected a metric, or min: or max:"),
        ({"best": "eval_loss", "evaluation": None}, "none, for there is no evaluation"),
        ({"early_stopping": EarlyStopping(metric="x")}, "early_stopping.metric='x'"),
        ({"evaluation": {"a-b": None}}, "no set"),
    ],
)
def test_what_is_not_told_is_refused(heldout, options, words):
    with pytest.raises(ConfigError, match=words):
        trainer(heldout, **({"evaluation": a_set(heldout)} | options))


@pytest.mark.parametrize(
    "options", [{"name": "a b"}, {"seq_len": None}, {"bytes_per_token": -1.0}]
)
def test_a_set_that_cannot_be_is_refused(heldout, options):
    with pytest.raises(ConfigError, match="evaluation: "):
        a_set(heldout, **options)


def nan_in_evaluations(model, tokens, mask=None):
    """The training loss, and NaN for a set: it alone has a mask."""
    mean, weight = next_token_loss(model, tokens, mask)
    return (mean if mask is None else jnp.nan), weight


def overfitting(heldout, tmp_path):
    """Trained on what has nothing to do with the held-out set: its loss only grows."""
    train = Roxxel(tmp_path / "train.rox")
    train.write([np.zeros(200, np.uint8)], mode="skip")
    return trainer(train, lr=0.3, evaluation=a_set(heldout))


def test_the_best_checkpoint_is_kept_and_found(heldout, tmp_path):
    spec = overfitting(heldout, tmp_path)
    spec.best, spec.save_every = "eval_loss", 2
    assert spec.run(tmp_path / "run") == 0
    best = summary(tmp_path / "run")["best"]
    with spec.open_checkpoints(tmp_path / "run") as found:
        assert found.best_step() == best["step"] == found.all_steps()[0] == 2
        assert found.all_steps() == [2, 16, 18, 20]


def test_an_evaluation_that_gives_the_best_value_is_followed_by_a_save(
    heldout, tmp_path
):
    spec = trainer(heldout, evaluation=a_set(heldout), best="eval_loss", lr=0.01)
    assert spec.run(tmp_path / "run") == 0
    with spec.open_checkpoints(tmp_path / "run") as found:
        assert len(found.all_steps()) == 3  # save_every is beyond the run
        assert found.best_step() == summary(tmp_path / "run")["best"]["step"]


def test_nan_is_never_best(heldout, tmp_path):
    evaluation = a_set(heldout, accuracy=False)
    spec = trainer(heldout, evaluation=evaluation, loss=nan_in_evaluations, steps=6)
    spec.best = "eval_loss"
    assert spec.run(tmp_path / "run") == 0
    assert "best" not in summary(tmp_path / "run")
    with spec.open_checkpoints(tmp_path / "run") as found:
        assert found.best_step() is None


def test_a_run_that_no_longer_improves_ends_well_and_stays_ended(heldout, tmp_path):
    spec = overfitting(heldout, tmp_path)
    spec.early_stopping = EarlyStopping(patience=3)
    assert spec.run(tmp_path / "whole") == 0
    found = summary(tmp_path / "whole")
    assert found["steps"] == 8  # best at 2, then three evaluations
    assert "eval_loss has not improved for 3 evaluations" in found["stopped_early"]
    assert found["best"]["step"] == 2
    with spec.open_checkpoints(tmp_path / "whole") as kept:
        assert kept.all_steps() == [2, 8]
    log = (tmp_path / "whole/roxxel_system.log").read_text()
    assert "Stopped early after step 8" in log
    assert spec.nothing_left(tmp_path / "whole")
    assert spec.run(tmp_path / "whole") == 0  # nothing more is trained
    assert rows_with(tmp_path / "whole", "loss") == list(range(1, 9))
    # Cut in the middle of its patience, and killed before its results: the same.
    cut = overfitting(heldout, tmp_path)
    cut.early_stopping, cut.stop_after = EarlyStopping(patience=3), 5
    assert cut.run(tmp_path / "cut") == 0
    cut.stop_after = None
    assert cut.run(tmp_path / "cut") == 0
    assert summary(tmp_path / "cut")["stopped_early"] == found["stopped_early"]
    (tmp_path / "cut/summary.json").unlink()
    assert not cut.nothing_left(tmp_path / "cut")
    assert cut.run(tmp_path / "cut") == 0
    again = summary(tmp_path / "cut")
    assert (again["steps"], again["best"]) == (8, found["best"])
    # With more patience it goes on.
    spec.early_stopping = EarlyStopping(patience=4)
    assert not spec.nothing_left(tmp_path / "whole")
    assert spec.run(tmp_path / "whole") == 0
    assert summary(tmp_path / "whole")["steps"] == 10


def test_small_improvements_count_as_none(heldout, tmp_path):
    spec = trainer(heldout, evaluation=a_set(heldout), lr=1e-4)
    spec.early_stopping = EarlyStopping(patience=2, min_delta=0.5)
    assert spec.run(tmp_path / "run") == 0
    assert summary(tmp_path / "run")["steps"] == 6
    with pytest.raises(ConfigError, match="patience is 0"):
        EarlyStopping(patience=0)


def test_checkpoints_without_ranking_keep_their_own(heldout, tmp_path):
    """What configurations of before said goes on to hold."""
    spec = trainer(heldout, evaluation=a_set(heldout), steps=4)
    with spec.open_checkpoints(tmp_path) as found:
        assert isinstance(found, Checkpointer)
        assert found._keep.metric == "loss"
