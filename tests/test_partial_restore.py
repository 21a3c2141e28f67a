"""What of another run's parameters a model takes: each case with its whole report."""

import functools
import json

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from roxxel import optim, sharding
from roxxel.checkpoint import Checkpointer
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.models.transformer import TransformerLM
from roxxel.train import initial
from roxxel.train.optimizer import RunOptimizer
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


class Toy(nnx.Module):
    """Tables and blocks by name: `{name: shape}`; values differ with the seed."""

    def __init__(self, shapes, *, seed=0, dtype="float32", rngs=None):
        del rngs
        random = np.random.default_rng(seed)
        for name, shape in shapes.items():
            value = random.normal(size=shape).astype(dtype)
            *parents, last = name.split(".")
            node = self
            for parent in parents:
                if not hasattr(node, parent):
                    setattr(node, parent, nnx.Module())
                node = getattr(node, parent)
            setattr(node, last, nnx.Param(jax.numpy.asarray(value)))


BASE = {
    "embedding": (6, 4),
    "blocks.mixer.proj": (4, 4),
    "blocks.mixer.norm.scale": (4,),
    "head": (6, 4),
}
PROJ, NORM = "model/blocks/mixer/proj", "model/blocks/mixer/norm/scale"
EMBEDDING, HEAD = "model/embedding", "model/head"
ALL = [NORM, PROJ, EMBEDDING, HEAD]


def values(model):
    return {
        "model/" + "/".join(map(str, path)): np.asarray(leaf[...], np.float32)
        for path, leaf in nnx.to_flat_state(nnx.state(model))
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("source") / "checkpoints"
    model = Toy(BASE, seed=1)
    trained = RunOptimizer(model, optax.sgd(0.1), ema_decay=0.9)
    mean = jax.tree.map(lambda value: np.full_like(value, 7.0), trained.ema)
    nnx.update(trained, {"ema": mean})
    with Checkpointer(root, model, trained) as checkpointer:
        checkpointer.save(3, {"loss": 1.0})
    return root


def spec(source, **options):
    given = dict.fromkeys(initial.OPTIONS) | {"init_from": source} | options
    return type("Spec", (), given)()


def report(**lists):
    names = ("not_in_checkpoint", "different", "not_used", "cast", "resized")
    return {name: [] for name in (*names, "left_out")} | lists


CHANGED = {name: shape for name, shape in BASE.items() if name != "head"}
LARGER = BASE | {"embedding": (9, 4), "head": (5, 4)}
WIDER = "(checkpoint float32[6,4], model float32[9,4])"
NARROWER = "(checkpoint float32[6,4], model float32[5,4])"
RENAMED = {
    "layers.ssm.proj": (4, 4),
    "layers.ssm.norm.scale": (4,),
    "embedding": (6, 4),
    "head": (6, 4),
}
SSM_PROJ, SSM_NORM = "model/layers/ssm/proj", "model/layers/ssm/norm/scale"


@pytest.mark.parametrize(
    ("shapes", "options", "restored", "expected"),
    [
        pytest.param(BASE, {}, ALL, report(), id="all"),
        pytest.param(
            BASE | {"extra": (2,)},
            {},
            ALL,
            report(not_in_checkpoint=["model/extra"]),
            id="missing there",
        ),
        pytest.param(CHANGED, {}, ALL[:3], report(not_used=[HEAD]), id="extra there"),
        pytest.param(
            BASE,
            {"init_rules": {"head": None, "*.norm.*": None}},
            [PROJ, EMBEDDING],
            report(not_in_checkpoint=[NORM, HEAD], left_out=[NORM, HEAD]),
            id="left out by rules",
        ),
        pytest.param(
            RENAMED,
            {"init_rules": {"blocks.mixer.*": "layers.ssm.*"}},
            [EMBEDDING, HEAD, SSM_NORM, SSM_PROJ],
            report(),
            id="renamed",
        ),
        pytest.param(
            RENAMED,
            {"init_rules": {"*s.mixer.*.scale": "layers.ssm.norm.scale", "b*": None}},
            [EMBEDDING, HEAD, SSM_NORM],
            report(not_in_checkpoint=[SSM_PROJ], left_out=[PROJ]),
            id="nested globs, the first that fits",
        ),
        pytest.param(
            LARGER,
            {},
            ALL[:2],
            report(different=[f"{EMBEDDING} {WIDER}", f"{HEAD} {NARROWER}"]),
            id="reshaped, not asked for",
        ),
        pytest.param(
            LARGER,
            {"init_resize": ["embedding", "h*d"]},
            ALL,
            report(resized=[f"{EMBEDDING} {WIDER}", f"{HEAD} {NARROWER}"]),
            id="reshaped",
        ),
        # Columns are no rows: what belongs to another width is never taken.
        pytest.param(
            BASE | {"embedding": (6, 5)},
            {"init_resize": ["embedding"]},
            [NORM, PROJ, HEAD],
            report(
                different=[f"{EMBEDDING} (checkpoint float32[6,4], model float32[6,5])"]
            ),
            id="another width",
        ),
        pytest.param(BASE, {"init_part": "ema"}, ALL, report(), id="ema"),
    ],
)
def test_what_is_taken(source, shapes, options, restored, expected):
    model = Toy(shapes, seed=2)
    before = values(model)
    lines, record = initial.restore(spec(source, **options), model)
    assert sorted(record.pop("restored")) == sorted(restored)
    assert (record.pop("path"), record.pop("step")) == (str(source), 3)
    assert record == expected
    assert lines[0] == f"Initialised {len(restored)} arrays from step 3 of {source}"
    told = "\n".join(lines[1:])
    assert all(name in told for names in expected.values() for name in names)
    check_values(model, before, restored, average="init_part" in options)


def check_values(model, before, restored, *, average):
    there = values(Toy(BASE, seed=1))
    if average:
        there = {name: np.full_like(value, 7.0) for name, value in there.items()}
    for name, value in values(model).items():
        old = name.replace("layers/ssm", "blocks/mixer")
        expected = np.array(before[name])
        if name in restored:
            rows = min(len(expected), len(there[old]))
            expected[:rows] = there[old][:rows]
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        ({"other": (3,)}, {}, r"does not fit: missing .*model/other; extra .*: model/"),
        (
            BASE,
            {"init_rules": {"*": None}},
            "does not fit: missing .*; left out by a r",
        ),
        (
            BASE,
            {"init_rules": {"gone.*": None}},
            r"'gone\.\*' fits no array of the checkpoint; it has ",
        ),
        (
            BASE,
            {"init_rules": {"head": "embedding"}},
            "model/embedding and model/head both become model/embedding",
        ),
        (
            BASE,
            {"init_rules": {"head": "one", "embedding": "one"}},
            "model/embedding and model/head both become model/one",
        ),
        (BASE, {"init_resize": ["wte"]}, "init_resize: 'wte' fits no array of the mod"),
        (BASE, {"init_part": "mean"}, "has no such part; it has model, optimizer"),
    ],
)
def test_what_cannot_be_meant_leaves_the_model_as_it_is(source, shapes, options, words):
    model = Toy(shapes, seed=2)
    before = values(model)
    with pytest.raises(ConfigError, match=words):
        initial.restore(spec(source, **options), model)
    with pytest.raises(ConfigError, match=words):  # and before anything is made
        initial.check_source(spec(source, **options), source.parent / "new", model)
    for name, value in values(model).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    ("there", "here", "cast", "taken"),
    [
        ("bfloat16", "float32", None, True),
        ("float32", "bfloat16", None, False),  # rounds: only when asked
        ("float32", "bfloat16", True, True),
        ("float16", "bfloat16", None, False),
        ("int32", "float32", True, False),
    ],
)
def test_types(tmp_path, there, here, cast, taken):
    old = Toy({"a": (4,)}, seed=1, dtype=there)
    old.b = nnx.Param(jax.numpy.ones(2))
    with Checkpointer(tmp_path / "checkpoints", old) as checkpointer:
        checkpointer.save(1)
    new = Toy({"a": (4,)}, seed=2, dtype=here)
    new.b = nnx.Param(jax.numpy.zeros(2))
    _, record = initial.restore(spec(tmp_path, init_cast=cast), new)
    text = [f"model/a (checkpoint {there}[4], model {here}[4])"]
    assert record["cast" if taken else "different"] == text
    assert record["restored"] == ["model/b", *(["model/a"] if taken else [])]
    assert new.a.dtype == here
    if taken:
        np.testing.assert_array_equal(new.a[...], old.a[...].astype(here))


def transformer(vocab_size, *, scan_layers, seed):
    def make():
        model = TransformerLM(
            vocab_size=vocab_size,
            d_model=8,
            n_layers=2,
            n_heads=2,
            d_ff=8,
            pad_vocab_to=16,
            scan_layers=scan_layers,
            rngs=nnx.Rngs(seed),
        )
        return (model,)

    return sharding.create_on(None, make)[0]


@pytest.mark.parametrize("scanned", [False, True])
def test_layers_in_a_loop_or_not_and_more_words(tmp_path, scanned):
    old = transformer(30, scan_layers=scanned, seed=1)
    with Checkpointer(tmp_path, old) as checkpointer:
        checkpointer.save(1)
    new = transformer(40, scan_layers=not scanned, seed=2)
    given = spec(tmp_path, init_resize=["embedding", "head"])
    _, record = initial.restore(given, new)
    shapes = "(checkpoint float32[32,8], model float32[48,8])"
    tables = [f"model/{name} {shapes}" for name in ("embedding", "head")]
    assert record["resized"] == tables
    assert len(record["restored"]) == len(values(new))
    for name, value in values(old).items():
        np.testing.assert_array_equal(value, values(new)[name][: len(value)])


def test_the_report_of_a_run(tmp_path):
    rox = Roxxel(tmp_path / "train_*.rox")
    rox.write([np.random.default_rng(0).integers(0, 16, 300).astype(np.uint8)])
    base, tuned = Bigram(rngs=nnx.Rngs(1)), tmp_path / "tuned"
    with Checkpointer(tmp_path / "base" / "checkpoints", base) as checkpointer:
        checkpointer.save(4)
    options = {
        "model": functools.partial(Bigram, 20),
        "optimizer": optim.adamw(schedule=lambda count: 0.0),
        "stream": rox.stream(8, 8, seed=3, overlap=1),
        "total_steps": 1,
        "init_from": tmp_path / "base",
    }
    with pytest.raises(ConfigError, match="does not fit: different"):
        Trainer(**options).run(tuned)
    assert not tuned.exists()
    # [16, 16] into [20, 20]: other columns too, so never.
    with pytest.raises(ConfigError, match="does not fit: different"):
        Trainer(**options, init_resize=["table.*"]).run(tuned)
    options["model"] = Bigram
    assert Trainer(**options).run(tuned) == 0
    record = json.loads((tuned / "run.json").read_text())["init"]
    assert record.pop("path") == str(tmp_path / "base" / "checkpoints")
    assert (record.pop("step"), record.pop("restored")) == (
        4,
        ["model/table/embedding"],
    )
    assert record == report()
    assert "Initialised 1 arrays" in (tuned / "roxxel_system.log").read_text()
