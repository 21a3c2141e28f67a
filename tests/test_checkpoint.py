"""Checkpointer in one process: fidelity, mismatches, retention, leftovers, places."""

import json
import logging
import os
import pathlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from roxxel.checkpoint import Checkpointer, CheckpointError
from roxxel.checkpointing import record
from roxxel.errors import ConfigError
from tests.damage import zero_data


class Tiny(nnx.Module):
    def __init__(self, rngs, width=8, extra=False):
        self.first = nnx.Linear(4, width, rngs=rngs)
        self.last = nnx.Linear(width, 4, param_dtype=jnp.bfloat16, rngs=rngs)
        if extra:
            self.extra = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


class Keys(nnx.Module):
    """Everything that has once been a problem for a checkpoint."""

    def __init__(self, rngs):
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.cell = nnx.LSTMCell(4, 4, rngs=rngs)
        self.other_impl = nnx.Variable(jax.random.key(1, impl="rbg"))
        self.legacy = nnx.Variable(jax.random.PRNGKey(3))
        self.host = nnx.Variable(np.arange(3))
        self.number = nnx.Variable({"a": jnp.ones(2), "b": 3})
        self.empty = nnx.Param(jnp.zeros((0, 3)))
        self.raw = jnp.ones(2)

    def __call__(self, x):
        return self.dropout(x)


def tiny(seed=0, **options):
    model = Tiny(nnx.Rngs(seed), **options)
    return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


def leaves(*objects):
    """Values of all arrays, random keys as their data."""
    found, _ = jax.tree_util.tree_flatten_with_path(nnx.state(list(objects)))
    return {jax.tree_util.keystr(path): plain(leaf) for path, leaf in found}


def plain(leaf):
    is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )
    return np.array(jax.random.key_data(leaf) if is_key else leaf)


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
        assert actual[name].dtype == value.dtype, name


@nnx.jit
def train(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss


def filled(path, step=3, **save):
    """A directory with one checkpoint, and the model and optimizer saved there."""
    model, optimizer = tiny(seed=7)
    with Checkpointer(path, model, optimizer) as checkpointer:
        checkpointer.save(step, **save)
    return model, optimizer


def test_restores_values_dtypes_and_position_into_a_fresh_model(tmp_path):
    model, optimizer = tiny()
    x = jnp.ones((2, 4))
    for _ in range(3):
        train(model, optimizer, x)
    with Checkpointer(tmp_path / "ck", model, optimizer) as checkpointer:
        assert checkpointer.restore() == 0
        checkpointer.save(3, {"loss": jnp.float32(0.5)}, position={"elements": 96})
    expected_loss = train(model, optimizer, x)
    fresh, fresh_optimizer = tiny(seed=1)
    checkpointer = Checkpointer(str(tmp_path / "ck"), fresh, fresh_optimizer)
    assert checkpointer.restore() == 3
    assert len(checkpointer.restored.matching) == 4 + 2 * 4 + 2
    assert train(fresh, fresh_optimizer, x) == expected_loss  # bit for bit
    assert_same(leaves(fresh, fresh_optimizer), leaves(model, optimizer))
    assert Checkpointer(tmp_path / "ck").read_position() == {"elements": 96}


@pytest.mark.parametrize(
    "rngs", [lambda n: nnx.Rngs(n), lambda n: nnx.Rngs(params=n, dropout=n + 1)]
)
@pytest.mark.parametrize("release", [False, True])
def test_random_keys_counters_and_odd_leaves_come_back(tmp_path, rngs, release):
    model = Keys(rngs(0))
    model(jnp.ones(4))  # moves a counter
    model.raw = jnp.full(2, 5.0)
    with Checkpointer(tmp_path, model) as checkpointer:
        checkpointer.save(1)
    fresh = Keys(rngs(9))
    fresh.number.set_value({"a": jnp.zeros(2), "b": 0})
    assert Checkpointer(tmp_path, fresh).restore(release=release) == 1
    assert_same(leaves(fresh), leaves(model))
    assert fresh.dropout.rngs.key.dtype == model.dropout.rngs.key.dtype
    assert fresh.other_impl.get_value().dtype == jax.random.key(0, impl="rbg").dtype
    assert type(fresh.host.get_value()) is np.ndarray
    assert type(fresh.number.get_value()["b"]) is int
    np.testing.assert_array_equal(fresh(jnp.ones(64)), model(jnp.ones(64)))


def test_another_key_implementation_is_refused_by_name(tmp_path):
    with Checkpointer(tmp_path, nnx.Dropout(0.5, rngs=nnx.Rngs(0))) as checkpointer:
        checkpointer.save(1)
    rngs = nnx.Rngs(jax.random.key(0, impl="rbg"))
    model = nnx.Dropout(0.5, rngs=rngs)
    with pytest.raises(ConfigError, match=r"key<fry>\[\], model key<rbg>\[\]"):
        Checkpointer(tmp_path, model).restore()


@pytest.mark.parametrize(
    ("abstract", "release"), [(False, False), (True, False), (False, True)]
)
def test_arrays_come_to_lie_on_the_current_mesh(tmp_path, abstract, release):
    devices = np.array(jax.devices())
    assert len(devices) == 8

    def on(shape, axes, spec, value):
        mesh = Mesh(devices[: np.prod(shape)].reshape(shape), axes)
        sharding = NamedSharding(mesh, P(*spec))
        if abstract:
            return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
        return jax.device_put(value, sharding)

    class One(nnx.Module):
        def __init__(self, **where):
            values = jnp.arange(64.0).reshape(8, 8)
            self.w = nnx.Param(on(value=values, **where) if where else values)

    source = One()
    sharding = NamedSharding(Mesh(devices[:4], ("data",)), P("data"))
    source.w.set_value(jax.device_put(source.w.get_value() * 2, sharding))
    with Checkpointer(tmp_path, source) as checkpointer:
        checkpointer.save(1)
    for where in (
        {"shape": (1,), "axes": ("data",), "spec": ()},
        {"shape": (2,), "axes": ("data",), "spec": ("data",)},
        {"shape": (8,), "axes": ("data",), "spec": (None, "data")},
        {"shape": (8,), "axes": ("data",), "spec": ()},  # replicated
        {"shape": (2, 4), "axes": ("data", "model"), "spec": ("model", "data")},
    ):
        target = One(**where)
        sharding = target.w.get_value().sharding
        assert Checkpointer(tmp_path, target).restore(release=release) == 1
        restored = target.w.get_value()
        assert restored.sharding.is_equivalent_to(sharding, 2)
        np.testing.assert_array_equal(restored, source.w.get_value())


@pytest.mark.parametrize("release", [False, True])
def test_a_model_without_a_mesh_stays_free_to_move(tmp_path, release):
    filled(tmp_path)
    model, optimizer = tiny()
    Checkpointer(tmp_path, model, optimizer).restore(release=release)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    batch = jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("data")))
    # Arrays tied to device 0 would be refused next to a batch on all eight.
    assert np.isfinite(train(model, optimizer, batch))


def test_an_abstract_model_is_filled(tmp_path):
    model, _ = filled(tmp_path)
    abstract = nnx.eval_shape(lambda: Tiny(nnx.Rngs(0)))
    assert Checkpointer(tmp_path, abstract).restore() == 3
    assert_same(leaves(abstract), leaves(model))


def test_values_are_those_at_the_save_though_the_next_step_overwrites_them(tmp_path):
    step = jax.jit(lambda w: w + 1, donate_argnums=0)
    model = nnx.Dict(w=nnx.Param(jnp.zeros((4, 1024, 1024))), host=np.zeros(1000))
    checkpointer = Checkpointer(tmp_path, model, max_to_keep=None)
    for number in range(4):
        checkpointer.save(number)
        model.host += 1  # in place
        for _ in range(3):
            donated = model.w.get_value()
            model.w.set_value(step(donated))
            assert donated.is_deleted()
    checkpointer.close()
    for number in range(4):
        Checkpointer(tmp_path, model).restore(number)
        assert (model.w.get_value() == 3 * number).all()
        assert (model.host == number).all()


def test_a_donated_model_is_refused_by_name(tmp_path):
    model = nnx.Dict(w=nnx.Param(jnp.zeros(3)))
    jax.jit(lambda w: w + 1, donate_argnums=0)(model.w.get_value())
    with pytest.raises(ConfigError, match="model/w"):
        Checkpointer(tmp_path, model).save(1)


MISMATCHES = {
    "another size": (
        {"width": 6},
        [
            "different (9)",
            "model/first/kernel (checkpoint float32[4,8], model float32[4,6])",
            "model/last/kernel (checkpoint bfloat16[8,4], model bfloat16[6,4])",
            "optimizer/opt_state/0/mu/first/bias",
        ],
    ),
    "a layer more": (
        {"extra": True},
        [
            "missing in the checkpoint (6)",
            "model/extra/kernel",
            "model/extra/bias",
            "optimizer/opt_state/0/nu/extra/bias",
        ],
    ),
}


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("case", MISMATCHES)
def test_a_mismatch_lists_all_paths_and_touches_nothing(tmp_path, case, release):
    options, expected = MISMATCHES[case]
    filled(tmp_path)
    model, optimizer = tiny(**options)
    before = leaves(model, optimizer)
    with pytest.raises(ConfigError) as caught:
        Checkpointer(tmp_path, model, optimizer).restore(release=release)
    for text in [*expected, str(tmp_path), "step 3", "partial=True"]:
        assert text in str(caught.value)
    assert_same(leaves(model, optimizer), before)


def test_another_optimizer_is_a_mismatch_and_model_only_is_on_request(tmp_path):
    saved, _ = filled(tmp_path)
    model = Tiny(nnx.Rngs(0))
    sgd = nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)
    with pytest.raises(ConfigError, match=r"missing .*trace.*extra .*opt_state/0/nu"):
        Checkpointer(tmp_path, model, sgd).restore()
    assert Checkpointer(tmp_path, model, sgd).restore(model_only=True) == 3
    assert_same(leaves(model), leaves(saved))
    other = Tiny(nnx.Rngs(0))
    assert Checkpointer(tmp_path, other).restore() == 3  # no optimizer given
    assert_same(leaves(other), leaves(saved))


def test_an_optimizer_that_holds_its_model_is_stored_once(tmp_path):
    model = Tiny(nnx.Rngs(0))
    both = nnx.ModelAndOptimizer(model, optax.sgd(1e-2), wrt=nnx.Param)
    with Checkpointer(tmp_path, model, both) as checkpointer:
        checkpointer.save(1)
    names = json.loads((tmp_path / "1" / "roxxel.json").read_text())["arrays"]
    assert [name for name in names if "kernel" in name] == [
        "model/first/kernel",
        "model/last/kernel",
    ]
    fresh = Tiny(nnx.Rngs(1))
    optimizer = nnx.ModelAndOptimizer(fresh, optax.sgd(1e-2), wrt=nnx.Param)
    assert Checkpointer(tmp_path, fresh, optimizer).restore() == 1
    assert_same(leaves(fresh), leaves(model))
    assert optimizer.model.first.kernel is fresh.first.kernel


def test_saved_without_an_optimizer_it_is_missing(tmp_path):
    model, optimizer = tiny()
    with Checkpointer(tmp_path, model) as checkpointer:
        checkpointer.save(1)
    with pytest.raises(ConfigError, match=r"missing .*optimizer/step"):
        Checkpointer(tmp_path, model, optimizer).restore()
    assert Checkpointer(tmp_path, model, optimizer).restore(partial=True) == 1


def test_partial_restores_what_matches_and_reports(tmp_path, caplog):
    saved, _ = filled(tmp_path)
    model, optimizer = tiny(extra=True)
    kept = np.array(model.extra.kernel)
    checkpointer = Checkpointer(tmp_path, model, optimizer)
    with caplog.at_level(logging.INFO, logger="absl"):
        assert checkpointer.restore(partial=True) == 3
    np.testing.assert_array_equal(model.first.kernel, saved.first.kernel)
    np.testing.assert_array_equal(model.extra.kernel, kept)
    assert "model/extra/kernel" in checkpointer.restored.missing
    assert "restored 14 arrays of step 3" in caplog.text
    assert "missing in the checkpoint (6): model/extra/bias" in caplog.text


def test_released_arrays_are_given_up_before_the_files_are_read(tmp_path):
    filled(tmp_path)
    model, optimizer = tiny(extra=True)
    old, kept = model.first.kernel.get_value(), model.extra.kernel.get_value()
    checkpointer = Checkpointer(tmp_path, model, optimizer)
    assert checkpointer.restore(partial=True, release=True) == 3
    assert old.is_deleted()
    assert model.extra.kernel.get_value() is kept
    assert not kept.is_deleted()
    old = model.first.kernel.get_value()
    zero_data(tmp_path / "3")
    for release in (False, True):
        with pytest.raises(CheckpointError, match="step 3"):
            checkpointer.restore(3, partial=True, release=release)
        assert old.is_deleted() == release


def test_a_restore_that_matches_nothing_is_an_error(tmp_path):
    filled(tmp_path)
    model = nnx.Dict(unknown=nnx.Param(jnp.ones(2)))
    with pytest.raises(ConfigError, match=r"does not fit.*model/unknown"):
        Checkpointer(tmp_path, model).restore(partial=True)


def losses(checkpointer, values):
    for step, value in values.items():
        checkpointer.save(step, {} if value is None else {"loss": value})


@pytest.mark.parametrize(
    ("values", "mode", "kept", "best"),
    [
        ({0: 1.0, 100: 2.0, 200: 3.0, 300: 4.0, 400: 5.0}, "min", [0, 300, 400], 0),
        ({0: 1.0, 100: 2.0, 200: 3.0, 300: 1.5, 400: 0.5}, "max", [200, 300, 400], 200),
        # NaN, infinity and no metric are never best
        ({0: float("nan"), 1: 2.0, 2: None, 3: 9.0, 4: 9.0}, "min", [1, 3, 4], 1),
        ({0: float("inf"), 1: 2.0, 2: None, 3: 1.0, 4: None}, "max", [1, 3, 4], 1),
        ({0: None, 1: None, 2: None}, "min", [1, 2], None),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, values, mode, kept, best):
    model, _ = tiny()
    with Checkpointer(tmp_path, model, max_to_keep=2, best_mode=mode) as checkpointer:
        losses(checkpointer, values)
        checkpointer.wait()
        assert checkpointer.all_steps() == kept
        assert checkpointer.best_step() == best
        assert checkpointer.restore() == kept[-1]
        if best is not None:
            assert checkpointer.restore("best") == best
    assert sorted(os.listdir(tmp_path)) == sorted(map(str, kept))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (jnp.float32(1.5), 1.5),
        (jnp.bfloat16(1.5), 1.5),
        (np.float32(1.5), 1.5),
        (np.float16(1.5), 1.5),
        (np.array(2.5), 2.5),
        (np.int64(7), 7),
        (jnp.uint8(7), 7),
        (3, 3),
        (True, 1),
        (float("nan"), "nan"),
        (-np.inf, "-inf"),
    ],
)
def test_metrics_of_any_scalar_kind_are_numbers(value, stored):
    result = record.plain_metrics({"loss": value})["loss"]
    assert result == stored
    assert type(result) is type(stored)


def test_a_metric_replicated_on_a_mesh_is_a_number(tmp_path):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    loss = jax.device_put(jnp.float32(0.25), NamedSharding(mesh, P()))
    model, _ = tiny()
    with Checkpointer(tmp_path, model) as checkpointer:
        checkpointer.save(1, metrics_dict={"loss": loss})
    written = json.loads((tmp_path / "1" / "roxxel.json").read_text())
    assert written["metrics"] == {"loss": 0.25}


@pytest.mark.parametrize(
    "value",
    [
        np.ones(1),
        jnp.ones(1),
        "1.5",
        None,
        [1.0],
        1j,
        np.complex64(1),
        jax.random.key(0),
    ],
)
def test_other_metrics_are_refused_at_the_call(tmp_path, value):
    model, _ = tiny()
    checkpointer = Checkpointer(tmp_path / "ck", model)
    with pytest.raises(ConfigError, match=r"metrics_dict\['ppl'\]"):
        checkpointer.save(1, {"loss": 1.0, "ppl": value})
    checkpointer.close()
    assert not (tmp_path / "ck").exists()


@pytest.mark.parametrize("step", [-1, True, 1.0, "3", None, np.float32(2)])
def test_a_step_is_a_count(tmp_path, step):
    with pytest.raises(ConfigError, match="completed steps"):
        Checkpointer(tmp_path, tiny()[0]).save(step)


@pytest.mark.parametrize("position", [[1], {"rows": np.int64(3)}, {"x": {1, 2}}])
def test_a_position_is_a_dict_of_json_values(tmp_path, position):
    with pytest.raises(ConfigError, match="position must be a dict of JSON values"):
        Checkpointer(tmp_path, tiny()[0]).save(1, position=position)


def test_a_milestone_is_kept_whatever_comes_after_it(tmp_path):
    with Checkpointer(tmp_path, tiny()[0], max_to_keep=1) as checkpointer:
        for step in range(1, 6):
            loss = {"loss": 5.0 - step}
            checkpointer.save(step, loss, milestone=step in (2, 3))
        assert checkpointer.all_steps() == [2, 3, 5]


def test_saving_a_step_again_replaces_it(tmp_path):
    model, _ = tiny()
    with Checkpointer(tmp_path, model) as checkpointer:
        checkpointer.save(np.int64(5), {"loss": 1.0}, position={"n": "A"})
        model.first.bias[...] = jnp.full(8, 2.0)
        checkpointer.save(5, {"loss": 9.0}, position={"n": "B"})
        checkpointer.save(5, {"loss": 9.0}, position={"n": "B"})
        assert checkpointer.all_steps() == [5]
        model.first.bias[...] = jnp.zeros(8)
        assert checkpointer.restore() == 5
        assert (model.first.bias[...] == 2).all()
        assert checkpointer.read_position() == {"n": "B"}
    assert os.listdir(tmp_path) == ["5"]


@pytest.mark.parametrize("killed_at", ["before the swap", "in the swap"])
def test_a_replacement_killed_half_way_counts_as_done(tmp_path, killed_at):
    filled(tmp_path / "ck", step=5, position={"n": "A"})
    filled(tmp_path / "new", step=5, position={"n": "A"})
    model, optimizer = filled(tmp_path / "new", step=5, position={"n": "B"})
    root = tmp_path / "ck"
    if killed_at == "in the swap":
        os.rename(root / "5", root / "5.old")
    replacement = json.loads((tmp_path / "new" / "5" / "roxxel.json").read_text())
    assert replacement["serial"] == 2
    os.rename(tmp_path / "new" / "5", root / "5.new")
    with Checkpointer(root, model, optimizer) as checkpointer:
        assert checkpointer.all_steps() == [5]
        assert checkpointer.restore() == 5
        assert checkpointer.read_position() == {"n": "B"}
        checkpointer.save(6)
        checkpointer.wait()
        assert checkpointer.read_position(5) == {"n": "B"}
    assert sorted(os.listdir(root)) == ["5", "6"]


def test_leftovers_of_a_crash_are_passed_over_by_name(tmp_path, caplog):
    saved, _ = filled(tmp_path)
    filled(tmp_path, step=5)
    (tmp_path / "7").mkdir()
    (tmp_path / "9.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (tmp_path / "11").write_text("mine")
    (tmp_path / "foo").mkdir()
    largest = max((tmp_path / "5").rglob("*"), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 1)
    model, optimizer = tiny()
    with Checkpointer(tmp_path, model, optimizer, trust_labels=True) as checkpointer:
        assert checkpointer.latest_step() == 3
        assert checkpointer.restore() == 3
        assert_same(leaves(model), leaves(saved))
        assert f"skipped in {tmp_path}: 11 (a file, not a folder)" in caplog.text
        for text in (
            "7 (no readable",
            "9.orbax-checkpoint-tmp",
            "5 (state",
            "expected",
        ):
            assert text in caplog.text
        assert "foo" not in caplog.text
        with pytest.raises(CheckpointError, match=r"step 5.*expected.*complete: 3"):
            checkpointer.restore(5)
        for step in (5, 7, 9, 11):  # none of them blocks a later save
            checkpointer.save(step)
        assert checkpointer.all_steps() == [7, 9, 11]
    assert (tmp_path / "11.not-a-checkpoint").read_text() == "mine"
    assert not (tmp_path / "9.orbax-checkpoint-tmp").exists()


@pytest.mark.parametrize("release", [False, True])
def test_damage_of_the_same_size_falls_back_too(tmp_path, caplog, release):
    older, _ = filled(tmp_path, step=3)
    values = leaves(older)
    model, optimizer = filled(tmp_path, step=5)
    zero_data(tmp_path / "5")
    checkpointer = Checkpointer(tmp_path, model, optimizer)
    assert checkpointer.restore(release=release) == 3
    assert_same(leaves(model), values)
    assert "step 5" in caplog.text
    with pytest.raises(CheckpointError, match="step 5"):
        checkpointer.restore(5)


@pytest.mark.parametrize("release", [False, True])
def test_damage_on_a_mesh_falls_back_too(tmp_path, caplog, release):
    """Orbax tells it otherwise of arrays that lie on several devices."""
    where = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    model = nnx.Dict(w=nnx.Param(jax.device_put(jnp.arange(64.0), where)))
    with Checkpointer(tmp_path, model) as checkpointer:
        checkpointer.save(3)
        model.w.set_value(model.w.get_value() + 1)
        checkpointer.save(5)
        checkpointer.wait()
        zero_data(tmp_path / "5")
        with pytest.raises(CheckpointError, match=r"step 5 .* cannot be read"):
            checkpointer.restore(5)
        assert checkpointer.restore(release=release) == 3
    assert "step 5" in caplog.text
    np.testing.assert_array_equal(model.w.get_value(), np.arange(64.0))


def test_what_an_older_step_may_lack_is_not_released(tmp_path):
    model = nnx.Dict(w=nnx.Param(jnp.arange(4.0)))
    more = nnx.Dict(w=nnx.Param(jnp.zeros(4)), guard=nnx.Param(jnp.ones(2)))
    with Checkpointer(tmp_path, model) as checkpointer:
        checkpointer.save(3)
    with Checkpointer(tmp_path, more) as checkpointer:
        checkpointer.save(5)
        checkpointer.wait()
        zero_data(tmp_path / "5")
        assert checkpointer.restore(optional=["model/guard"], release=True) == 3
    np.testing.assert_array_equal(more.w.get_value(), np.arange(4.0))
    np.testing.assert_array_equal(more.guard.get_value(), np.ones(2))


def test_leftovers_alone_are_a_start_and_damage_alone_is_not(tmp_path):
    model, optimizer = tiny()
    checkpointer = Checkpointer(tmp_path, model, optimizer)
    (tmp_path / "7").mkdir()
    assert checkpointer.restore() == 0
    filled(tmp_path)
    os.remove(tmp_path / "3" / "state" / "_METADATA")
    with pytest.raises(CheckpointError, match=r"3 \(state/_METADATA is missing\)"):
        checkpointer.restore()


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path):
    model, optimizer = filled(tmp_path)
    path = tmp_path / "3" / "roxxel.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(ConfigError, match=r"format 99.*Upgrade roxxel"):
        Checkpointer(tmp_path, model, optimizer).restore()


@pytest.mark.parametrize("wrong", [True, 3.0, -3, "latest"])
def test_what_is_no_step_is_not_taken_for_one(tmp_path, wrong):
    model, optimizer = filled(tmp_path)
    with pytest.raises(ConfigError, match="completed steps"):
        Checkpointer(tmp_path, model, optimizer).restore(wrong)


@pytest.mark.parametrize("missing", [4, "best"])
def test_a_step_that_is_not_there_is_named(tmp_path, missing):
    model, optimizer = filled(tmp_path)
    with pytest.raises(CheckpointError, match=f"step {missing} in .*complete: 3"):
        Checkpointer(tmp_path, model, optimizer).restore(missing)


def test_going_back_to_an_older_step_makes_the_next_save_the_newest(tmp_path):
    model, _ = tiny()
    with Checkpointer(tmp_path, model, max_to_keep=2) as checkpointer:
        losses(checkpointer, {10: None, 20: None})
        assert checkpointer.restore(10) == 10
        checkpointer.save(15)
        assert checkpointer.all_steps() == [15, 20]
        assert checkpointer.restore() == 15


@pytest.mark.parametrize("path", ["./checkpoints", "checkpoints/", "a/b/checkpoints"])
def test_relative_paths_stay_where_they_were_given(tmp_path, monkeypatch, path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model, _ = tiny()
    with Checkpointer(path, model) as checkpointer:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert not (tmp_path / path).exists()  # nothing before the first save
        checkpointer.save(1)
    assert (tmp_path / path / "1").is_dir()


def test_home_and_path_objects(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Checkpointer("~/ck").path == tmp_path / "ck"
    assert Checkpointer(pathlib.Path("~/ck")).path == tmp_path / "ck"


@pytest.mark.parametrize("path", ["file", "file/below", "gs://bucket/ck", "", 3, b"x"])
def test_a_place_that_cannot_be_is_refused_at_construction(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="checkpoint_path"):
        Checkpointer(path)


@pytest.mark.parametrize(
    "options", [{"max_to_keep": 0}, {"max_to_keep": -1}, {"best_mode": "lowest"}]
)
def test_options_are_checked(tmp_path, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Checkpointer(tmp_path, **options)


def test_without_a_model_there_are_positions_only(tmp_path):
    assert Checkpointer(tmp_path / "none").read_position() is None
    filled(tmp_path, position={"a": [1, None]})
    checkpointer = Checkpointer(tmp_path, read_only=True)
    assert checkpointer.read_position(3) == {"a": [1, None]}
    assert checkpointer.latest_step() == 3
    for call in (checkpointer.restore, lambda: Checkpointer(tmp_path).save(1)):
        with pytest.raises(ConfigError, match="has no model"):
            call()
    with pytest.raises(ConfigError, match="read_only"):
        checkpointer.save(1)


def test_closed_is_closed(tmp_path):
    checkpointer = Checkpointer(tmp_path, tiny()[0])
    checkpointer.close()
    checkpointer.close()
    with pytest.raises(CheckpointError, match="closed"):
        checkpointer.save(1)


def test_plain_orbax_reads_a_step(tmp_path):
    model, _ = filled(tmp_path)
    tree = ocp.PyTreeCheckpointer().restore(tmp_path / "3" / "state")
    np.testing.assert_array_equal(tree["model"]["first"]["bias"], model.first.bias)


def test_a_second_checkpointer_here_waits_for_the_first(tmp_path):
    model, _ = tiny()
    first = Checkpointer(tmp_path, model)
    first.save(1)
    second = Checkpointer(tmp_path, model)
    assert second.restore() == 1
    first.save(2)
    second.save(3)  # does not mistake the write in progress for a leftover
    first.close()
    second.close()
    assert second.all_steps() == [1, 2, 3]


def test_a_save_waits_for_the_copy_alone_and_reports_what_came_later(
    tmp_path, monkeypatch
):
    """Orbax's own preparation is not the training thread's, its error comes back."""
    model, optimizer = tiny()
    x = jnp.ones((2, 4))
    real, may_begin = ocp.AsyncCheckpointer.save, threading.Event()

    def slow(self, *args, **kwargs):
        assert threading.current_thread() is not threading.main_thread()
        assert may_begin.wait(60)
        return real(self, *args, **kwargs)

    with Checkpointer(tmp_path, model, optimizer) as checkpointer:
        checkpointer.save(1)
        checkpointer.wait()
        monkeypatch.setattr(ocp.AsyncCheckpointer, "save", slow)
        expected = leaves(model, optimizer)
        checkpointer.save(2)  # is back before Orbax began
        train(model, optimizer, x)
        may_begin.set()
        assert checkpointer.restore() == 2
        assert_same(leaves(model, optimizer), expected)
        monkeypatch.setattr(ocp.AsyncCheckpointer, "save", lambda *a, **k: 1 / 0)
        checkpointer.save(3)
        with pytest.raises(CheckpointError, match=r"step 3 was not .* ZeroDivision"):
            checkpointer.save(4)
        monkeypatch.setattr(ocp.AsyncCheckpointer, "save", real)
        checkpointer.save(4)
        assert checkpointer.all_steps() == [1, 2, 4]
