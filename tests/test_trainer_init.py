"""A run that begins with another's parameters."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from roxxel import optim
from roxxel.checkpoint import Checkpointer, CheckpointError
from roxxel.checkpointing import renaming
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.train import ema
from roxxel.train.precision import Precision
from roxxel.train.trainer import Trainer
from tests.damage import zero_data
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


class Renamed(nnx.Module):
    """A bigram under another name, with something new beside it."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.lookup = Bigram(rngs=rngs)
        self.scale = nnx.Param(jax.numpy.ones(()))

    def __call__(self, tokens, *, segment_ids_BL=None, state=None):
        logits, state = self.lookup(tokens)
        return logits * self.scale, state


@pytest.fixture
def dataset(tmp_path):
    rox = Roxxel(tmp_path / "train_*.rox")
    rox.write([np.random.default_rng(0).integers(0, 16, 1100).astype(np.uint8)])
    return rox


def trainer(dataset, **kw):
    schedule = optim.warmup_cosine(peak=0.05, total_steps=6)
    options = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "schedule": schedule,
        "stream": dataset.stream(8, 8, seed=3, overlap=1),
        "total_steps": 6,
        "save_every": 2,
    }
    return Trainer(**(options | kw))


@pytest.fixture
def base(dataset, tmp_path):
    assert trainer(dataset).run(tmp_path / "base") == 0
    return tmp_path / "base"


def table(workdir, step, model=Bigram):
    restored = model(rngs=nnx.Rngs(9))
    with Checkpointer(workdir / "checkpoints", restored, read_only=True) as source:
        source.restore(step, partial=True)
    inner = restored if model is Bigram else restored.lookup
    return np.asarray(inner.table.embedding[...])


FROZEN = {"optimizer": optim.adamw(schedule=lambda count: 0.0), "schedule": None}


@pytest.mark.parametrize(("given", "step"), [(None, 6), (4, 4), ("best", 6)])
def test_parameters_come_from_the_step_asked_for(dataset, base, tmp_path, given, step):
    tuned = tmp_path / "tuned"
    checkpoints = base / "checkpoints" if given == 4 else base
    if given == "best":
        with pytest.raises(ConfigError, match="init_step='best' is not in"):
            trainer(dataset, init_from=base, init_step="best").run(tuned)
        assert not tuned.exists()
        return
    run = trainer(dataset, init_from=checkpoints, init_step=given, seed=7, **FROZEN)
    assert run.run(tuned) == 0
    np.testing.assert_array_equal(table(tuned, 6), table(base, step))
    with Checkpointer(tuned / "checkpoints", read_only=True) as checkpointer:
        assert checkpointer.all_steps() == [2, 4, 6]  # counted from 0
    record = json.loads((tuned / "run.json").read_text())["init"]
    assert (record["step"], record["restored"]) == (step, ["model/table/embedding"])


def test_weights_stored_in_bfloat16_begin_with_the_whole_ones(dataset, base, tmp_path):
    """The copy that the optimizer updates is the other's too, without a cast."""
    precision = Precision(params="bfloat16")
    run = trainer(dataset, init_from=base, seed=7, precision=precision, **FROZEN)
    assert run.run(tmp_path / "tuned") == 0
    model, optimizer = run.create()
    path = tmp_path / "tuned" / "checkpoints"
    with Checkpointer(path, model, optimizer, read_only=True) as checkpointer:
        assert checkpointer.restore() == 6
    kept = model.table.embedding[...]
    assert kept.dtype == jax.numpy.bfloat16
    whole = optimizer.master["table"]["embedding"][...]
    np.testing.assert_array_equal(whole, table(base, 6))
    np.testing.assert_array_equal(kept, whole.astype(kept.dtype))


def test_names_change_by_rules_and_the_rest_is_fresh(dataset, base, tmp_path):
    rules = {"table.*": "lookup.table.*"}
    run = trainer(
        dataset, model=Renamed, init_from=base, init_rules=rules, seed=7, **FROZEN
    )
    assert run.run(tmp_path / "tuned") == 0
    np.testing.assert_array_equal(table(tmp_path / "tuned", 6, Renamed), table(base, 6))
    log = (tmp_path / "tuned" / "roxxel_system.log").read_text()
    assert "Initialised 1 arrays from step 6" in log
    assert "fresh, not in the checkpoint (1): model/scale" in log


def test_its_own_checkpoints_win(dataset, base, tmp_path):
    tuned = tmp_path / "tuned"
    assert trainer(dataset, init_from=base, stop_after=3).run(tuned) == 0
    assert trainer(dataset, init_from=tmp_path / "gone").run(tuned) == 0
    whole = tmp_path / "whole"
    assert trainer(dataset, init_from=base).run(whole) == 0
    np.testing.assert_array_equal(table(tuned, 6), table(whole, 6))


def test_checkpoints_none_of_which_can_be_read_are_named(dataset, tmp_path):
    base = tmp_path / "base"
    assert trainer(dataset, ema_decay=0.9).run(base) == 0
    zero_data(base / "checkpoints")
    with pytest.raises(ConfigError, match=r"no checkpoint in .*: step 6 .*; step 4 "):
        trainer(dataset, ema_decay=0.9).run(base)
    model = Bigram(rngs=nnx.Rngs(0))
    kept = np.asarray(model.table.embedding[...])
    with pytest.raises(CheckpointError, match=r"step 6 .* cannot be read"):
        ema.restore(base / "checkpoints", 6, model)
    np.testing.assert_array_equal(model.table.embedding[...], kept)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"init_from": "nowhere"}, "init_from='nowhere' holds no checkpoint"),
        ({"init_step": 3}, r"init_step=3 is not in .*; there are 2, 4, 6"),
        ({"init_step": "last"}, "init_step='last' is not in"),
    ],
)
def test_a_wrong_source_is_told_before_anything_is_made(
    dataset, base, tmp_path, change, words
):
    run = trainer(dataset, **({"init_from": base} | change))
    with pytest.raises(ConfigError, match=words):
        run.run(tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"init_from": None, "init_step": 3}, "init_step needs init_from"),
        ({"init_rules": ["a"]}, "must be a dict of patterns"),
        ({"init_rules": {"a": 3}}, "must map a pattern"),
        ({"init_rules": {"a": "b.*"}}, r"'b\.\*' has more \* than 'a'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_when_built(dataset, change, words):
    with pytest.raises(ConfigError, match=words):
        trainer(dataset, **({"init_from": "base"} | change))


def test_nothing_in_common_is_an_error(dataset, base, tmp_path):
    run = trainer(dataset, init_from=base, init_rules={"table.*": None})
    with pytest.raises(ConfigError, match="does not fit: missing in the checkpoint"):
        run.run(tmp_path / "tuned")


NAMES = ["model/a/0/w", "model/a/1/w", "model/b/w"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (None, {name: name for name in NAMES}),
        ({"b.*": None}, {"model/a/0/w": NAMES[0], "model/a/1/w": NAMES[1]}),
        (
            {"a.*.w": "new.*.kernel"},
            {
                "model/new/0/kernel": NAMES[0],
                "model/new/1/kernel": NAMES[1],
                "model/b/w": NAMES[2],
            },
        ),
        # The first rule that fits is used; a pattern without * is a whole name.
        (
            {"a.0.w": "a.5.w", "a.*": None},
            {"model/a/5/w": NAMES[0], "model/b/w": NAMES[2]},
        ),
    ],
)
def test_rules(rules, expected):
    assert renaming.origins(NAMES, rules) == expected


def test_rules_that_fit_nothing_or_collide_are_refused():
    with pytest.raises(ConfigError, match=r"'c\.\*' fits no array"):
        renaming.origins(NAMES, {"c.*": None})
    with pytest.raises(ConfigError, match="both become model/b/w"):
        renaming.origins(NAMES, {"a.0.w": "b.w"})
