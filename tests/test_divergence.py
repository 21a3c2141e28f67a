"""Steps that are refused: stop, skip, rewind, and what is left of them."""

import csv
import functools
import json
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from roxxel import optim
from roxxel.checkpoint import Checkpointer
from roxxel.data.mixture_stream import MixtureStream
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError, DivergedError
from roxxel.models.losses import next_token_loss
from roxxel.train import divergence, offenders
from roxxel.train.divergence import Divergence
from roxxel.train.ledger import Ledger
from roxxel.train.optimizer import RunOptimizer
from roxxel.train.step import make_train_step
from tests.poisoned import (
    BAD_ROW,
    BATCH_SIZE,
    POISON,
    SEQ_LEN,
    bad_step,
    poisoned,
    trainer,
    write,
)
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture
def dataset(tmp_path):
    return write(tmp_path)


def rows_of(workdir):
    with open(workdir / "roxxel_metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def final_state(workdir, step=12):
    model = Bigram(rngs=nnx.Rngs(9))
    with Checkpointer(workdir / "checkpoints", model) as checkpointer:
        assert checkpointer.restore(step) == step
    return np.asarray(model.table.embedding[...])


def ledger(workdir):
    return [json.loads(line) for line in open(workdir / "ledger.jsonl")]


def test_skip_leaves_the_update_out_and_tells_the_row(dataset, tmp_path):
    step, position = bad_step(dataset)
    rule = Divergence(policy="skip")
    assert trainer(dataset, divergence=rule).run(tmp_path / "run") == 0
    table = rows_of(tmp_path / "run")
    assert [int(row["step"]) for row in table] == list(range(1, 13))
    refused = [int(row["step"]) for row in table if row["loss"] == "nan"]
    assert refused == [step]
    (entry,) = ledger(tmp_path / "run")
    assert (entry["step"], entry["batch"], entry["left_out"]) == (step, step - 1, "all")
    assert [row["position"] for row in entry["rows"]] == [position]
    dump = json.loads((tmp_path / f"run/divergence/step_{step}.json").read_text())
    (row,) = dump["rows"]
    assert row["row"] == BAD_ROW
    assert row["element"] == BAD_ROW * SEQ_LEN
    shard = np.fromfile(row["shard"], np.uint8)
    assert shard[row["offset"]] == POISON
    stored = dataset.elements(row["element"], row["element"] + SEQ_LEN + 1)
    assert row["ids"] == stored.tolist()
    assert row["text"] == stored.tobytes().decode()
    # Killed behind it and started again: the same end, and nothing noted twice.
    cut = trainer(dataset, divergence=rule, stop_after=step // 3 * 3)
    assert cut.run(tmp_path / "cut") == 0
    (tmp_path / "cut/ledger.jsonl").write_text(json.dumps(entry) + '\n{"cut off')
    assert trainer(dataset, divergence=rule).run(tmp_path / "cut") == 0
    np.testing.assert_array_equal(
        final_state(tmp_path / "run"), final_state(tmp_path / "cut")
    )
    columns = ("step", "loss", "learning_rate", "grad_norm")
    for one, other in zip(table, rows_of(tmp_path / "cut"), strict=True):
        assert [one[c] for c in columns] == [other[c] for c in columns]
    assert len((tmp_path / "cut/ledger.jsonl").read_text().splitlines()) == 2


def test_rewind_takes_the_steps_again_without_the_row(dataset, tmp_path):
    step, position = bad_step(dataset)
    rule = Divergence(policy="rewind")
    assert trainer(dataset, divergence=rule).run(tmp_path / "run") == 0
    table = rows_of(tmp_path / "run")
    assert [int(row["step"]) for row in table] == list(range(1, 13))
    assert all(np.isfinite(float(row["loss"])) for row in table)
    (entry,) = ledger(tmp_path / "run")
    assert entry["left_out"] == [position]
    by_step = {int(row["step"]): row for row in table}
    assert float(by_step[step]["tokens"]) == (BATCH_SIZE - 1) * SEQ_LEN
    log = (tmp_path / "run/roxxel_system.log").read_text()
    assert f"Went back to step {(step - 1) // 3 * 3}." in log
    # The ledger is held to by a run that would else stop, and gives the same weights.
    (tmp_path / "again").mkdir()
    (tmp_path / "again/ledger.jsonl").write_text(json.dumps(entry) + "\n")
    assert trainer(dataset).run(tmp_path / "again") == 0
    np.testing.assert_array_equal(
        final_state(tmp_path / "run"), final_state(tmp_path / "again")
    )


def test_rows_left_out_are_a_smaller_batch():
    """Loss, gradients and weights are those of the other rows alone."""
    ends = []
    tokens = np.random.default_rng(0).integers(0, 14, (8, 9)).astype(np.int32)
    tokens[[0, 5], 0] = POISON
    for batch, left_out in ((tokens, (0, 5)), (np.delete(tokens, [0, 5], 0), None)):
        model, optimizer = modules()
        step = make_train_step(model, optimizer, poisoned)
        run = step.function_without(left_out)
        leaves, metrics = run(step.leaves(model, optimizer), jnp.asarray(batch))
        assert metrics["tokens"] == 6 * 8
        ends.append([*leaves, metrics["loss"], metrics["grad_norm"]])
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_whole_run_that_cannot_be_saved_stops_after_some_rewinds(dataset, tmp_path):
    """lr = 1e30: no single row is to blame, batch after batch is left out."""
    schedule = optim.constant(peak=1e30, total_steps=12)
    tx = optim.adamw(schedule=schedule, clip_norm=None)
    rule = Divergence(policy="rewind", most_rewinds=2)
    run = trainer(
        dataset,
        divergence=rule,
        optimizer=tx,
        schedule=schedule,
        loss=lambda m, t, k=None: (next_token_loss(m, t, k)[0] * 1e30, jnp.float32(1)),
    )
    with pytest.raises(DivergedError, match=r"not finite.* after 2 rewinds"):
        run.run(tmp_path / "run")
    assert all(entry["left_out"] == "all" for entry in ledger(tmp_path / "run"))
    with Checkpointer(tmp_path / "run/checkpoints") as checkpointer:
        newest = checkpointer.latest_step()
    assert np.isfinite(final_state(tmp_path / "run", newest)).all()


def test_a_broken_loss_stops_a_skipping_run_after_some_steps(dataset, tmp_path):
    def always_nan(model, tokens, mask=None):
        mean, weight = next_token_loss(model, tokens, mask)
        return jnp.where(weight > 0, jnp.nan, mean), weight

    rule = Divergence(policy="skip", most_skips=2)
    run = trainer(dataset, divergence=rule, loss=always_nan)
    with pytest.raises(DivergedError, match="after 2 refused steps in a row"):
        run.run(tmp_path / "run")
    np.testing.assert_array_equal(
        final_state(tmp_path / "run", 2), Bigram(rngs=nnx.Rngs(0)).table.embedding[...]
    )


@pytest.mark.slow
def test_two_processes_skip_and_rewind_alike(dataset, tmp_path, repo_root):
    """The bad row lies on one of them only; cut off behind it, they go on the same."""
    step, position = bad_step(dataset)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(repo_root),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    child = repo_root / "tests" / "poisoned.py"
    processes = [
        subprocess.Popen(
            [sys.executable, child, tmp_path, str(index), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert "cut off" in out
    for name, left_out in (("skip", "all"), ("rewind", [position])):
        (entry,) = ledger(tmp_path / name)
        assert (entry["step"], entry["left_out"]) == (step, left_out)
        assert [row["row"] for row in entry["rows"]] == [BAD_ROW]
        steps = [int(row["step"]) for row in rows_of(tmp_path / name)]
        assert steps == list(range(1, 13))
        rule = Divergence(policy=name)
        alone = trainer(dataset, divergence=rule)
        assert alone.run(tmp_path / f"alone_{name}") == 0
        np.testing.assert_allclose(
            final_state(tmp_path / name),
            final_state(tmp_path / f"alone_{name}"),
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.parametrize("kind", ["data", "rate"])
def test_the_newest_checkpoint_is_finite_and_healthy_after_step_57(
    dataset, tmp_path, kind
):
    """A bad batch, or a rate that ruins the weights with numbers that are finite."""

    def schedule(count):
        return jnp.where((count == 56) & (kind == "rate"), 1e9, 1e-3)

    stream = dataset.stream(SEQ_LEN, 4, seed=3, overlap=1)
    bad = jnp.asarray(stream.batch(56), jnp.int32)

    def loss(model, tokens, mask=None):
        mean, weight = next_token_loss(model, tokens, mask)
        is_bad = (kind == "data") & jnp.all(tokens == bad)
        return jnp.where(is_bad, jnp.nan, mean), weight

    run = trainer(
        dataset,
        stream=stream,
        mesh_axes={"data": 4, "tensor": 2},
        optimizer=optim.adamw(schedule=schedule),
        schedule=schedule,
        total_steps=70,
        save_every=10,
        checkpointer=functools.partial(Checkpointer, max_to_keep=2),
        divergence=Divergence(spike=10.0),
        loss=loss,
    )
    words = (
        r"step 57 \(batch 56\) is " + {"data": "not finite", "rate": "a spike"}[kind]
    )
    with pytest.raises(DivergedError, match=words):
        run.run(tmp_path / "run")
    with Checkpointer(tmp_path / "run/checkpoints") as checkpointer:
        assert checkpointer.all_steps() == [50, 56]
    assert np.abs(final_state(tmp_path / "run", 56)).max() < 10


@pytest.mark.slow
def test_debugging_switches_of_jax_work(dataset, tmp_path):
    def loss(model, tokens, mask=None):
        mean, weight = next_token_loss(model, tokens, mask)
        return mean + 0 * jnp.log(1 - 2 * jnp.any(tokens[:, 0] == POISON)), weight

    healthy = functools.partial(
        trainer, dataset, loss=next_token_loss, divergence=Divergence(spike=8.0)
    )
    with jax.debug_nans(True):
        assert healthy(total_steps=5).run(tmp_path / "nans") == 0
        with pytest.raises(FloatingPointError, match=r"nan.* log"):
            trainer(dataset, loss=loss).run(tmp_path / "poisoned")
    with jax.disable_jit():
        assert healthy(total_steps=5).run(tmp_path / "no_jit") == 0
    ends = [final_state(tmp_path / name, 5) for name in ("nans", "no_jit")]
    np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-6)


# -- the decision in the step ----------------------------------------------------------


def modules(rule=None, schedule=None, **options):
    model = Bigram(rngs=nnx.Rngs(0))
    tx = optim.adamw(schedule=schedule or optax.constant_schedule(1e-2))
    return model, RunOptimizer(model, tx, divergence=rule, **options)


def scaled(model, batch):
    mean, weight = next_token_loss(model, batch["tokens"], batch.get("mask"))
    return mean * batch["scale"][0], weight


def scaled_batch(number, scale=1.0, mask=1.0):
    rng = np.random.default_rng(number)
    return {
        "tokens": jnp.asarray(rng.integers(0, 16, (8, 9)), jnp.int32),
        "scale": jnp.full(8, scale, jnp.float32),
        "mask": jnp.full((8, 9), mask, jnp.float32),
    }


def named(optimizer):
    flat, _ = jax.tree_util.tree_flatten_with_path(nnx.state(optimizer))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.array(leaf)
        for path, leaf in flat
    }


def test_a_refused_update_leaves_all_but_the_counts_of_data():
    rates = []

    def schedule(count):
        return 1e-2 / (1 + count)

    rule = Divergence(policy="skip", most_skips=3)
    model, optimizer = modules(rule, schedule, ema_decay=0.9)
    step = make_train_step(model, optimizer, scaled, schedule=schedule, divergence=rule)
    leaves = step.leaves(model, optimizer)
    for number in range(3):
        leaves, _ = step.run(leaves, scaled_batch(number))
    step.write_back(leaves, model, optimizer)
    before = named(optimizer) | {"weights": np.array(model.table.embedding[...])}
    for number, scale in ((3, np.nan), (4, np.inf)):
        leaves, metrics = step.run(leaves, scaled_batch(number, scale))
        assert not metrics["finite"]
        assert metrics["alive"]
        rates.append(float(metrics["learning_rate"]))
    step.write_back(leaves, model, optimizer)
    after = named(optimizer) | {"weights": np.array(model.table.embedding[...])}
    moved = {name for name in after if not np.array_equal(before[name], after[name])}
    assert rates == pytest.approx([1e-2 / 4, 1e-2 / 5])
    assert {name.removesuffix("/value").split("/")[-1] for name in moved} == {
        *("step", "count", "refused")
    }
    counts = [after[n] for n in moved if "refused" not in n]
    assert counts == [5, 5]  # of the schedule, of the optimizer; not Adam's
    leaves, metrics = step.run(leaves, scaled_batch(5))
    assert metrics["finite"]


def test_a_batch_in_which_nothing_counts_moves_nothing_but_counts():
    model, optimizer = modules()
    step = make_train_step(model, optimizer, scaled)
    leaves, _ = step.run(step.leaves(model, optimizer), scaled_batch(0))
    step.write_back(leaves, model, optimizer)
    before = np.array(model.table.embedding[...])
    leaves, metrics = step.run(leaves, scaled_batch(1, mask=0.0))
    assert (metrics["loss"], metrics["tokens"], metrics["grad_norm"]) == (0, 0, 0)
    assert metrics["finite"]
    step.write_back(leaves, model, optimizer)
    np.testing.assert_array_equal(model.table.embedding[...], before)
    assert optimizer.step[...] == 2


@pytest.mark.parametrize(("policy", "alive"), [("skip", True), ("stop", False)])
def test_a_spike_is_refused_after_the_warmup_only(policy, alive):
    rule = Divergence(policy=policy, spike=8.0, window=16, warmup=8)
    model, optimizer = modules(rule)
    step = make_train_step(model, optimizer, scaled, divergence=rule)
    leaves = step.leaves(model, optimizer)
    for number in range(12):
        scale = 50.0 if number == 4 else 1.0  # within the warm-up
        leaves, metrics = step.run(leaves, scaled_batch(number, scale))
        assert metrics["finite"]
    leaves, metrics = step.run(leaves, scaled_batch(12, 50.0))
    assert not metrics["finite"]
    assert bool(metrics["alive"]) == alive
    leaves, metrics = step.run(leaves, scaled_batch(13))
    assert bool(metrics["finite"]) == alive


def test_median_of_the_numbers_that_are_there():
    values = jnp.array([[5.0, 1.0, 3.0, 0.0], [2.0, 2.0, 8.0, 0.0]])
    there = jnp.array([True, True, True, False])
    np.testing.assert_array_equal(divergence._median(values, there, 3), [3.0, 2.0])
    none = jnp.zeros(4, bool)
    np.testing.assert_array_equal(divergence._median(values, none, 0), [0.0, 0.0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "ignore"}, "policy must be stop, skip or rewind, got 'ignore'"),
        ({"spike": 0.0}, "spike must be positive or None"),
        ({"most_skips": 0}, "most_skips must be an int of at least 1, got 0"),
        ({"window": 2.5}, "window must be an int of at least 1, got 2.5"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(ConfigError, match=words):
        Divergence(**options)


# -- rows and their places -------------------------------------------------------------


@pytest.mark.parametrize("bad", [(), (3,), (0, 7), tuple(range(8))])
def test_rows_to_blame_are_found_one_by_one(bad):
    tokens = np.random.default_rng(0).integers(0, 14, (8, 9)).astype(np.int32)
    tokens[list(bad), 0] = POISON
    model = Bigram(rngs=nnx.Rngs(0))
    found = offenders.find(model, poisoned, jnp.asarray(tokens), count=2)
    assert found == (bad or None)


def test_origins_are_the_rows_of_the_batch(dataset, tmp_path):
    other = Roxxel(tmp_path / "other.rox")
    other.write([np.arange(900) % 7], separator=[7, 8])
    mixture = MixtureStream(
        {"a": dataset, "b": other}, seq_len=SEQ_LEN, batch_size=6, overlap=1
    )
    plain = dataset.stream(SEQ_LEN, BATCH_SIZE, overlap=1)
    for stream, steps in ((plain, (0, 11, 13)), (mixture, (0, 5, 40))):
        for number in steps:
            batch = stream.batch(number)
            found = offenders.origin_of(stream, number)
            assert [origin.position for origin in found] == list(range(len(batch)))
            for origin, row in zip(found, batch, strict=True):
                start = origin.element
                stored = origin.dataset.elements(start, start + SEQ_LEN + 1)
                np.testing.assert_array_equal(stored, row)


def test_documents_begin_behind_the_last_separator(tmp_path):
    rox = Roxxel(tmp_path / "documents.rox")
    rox.write([np.arange(20, dtype=np.int32)] * 3, separator=[99, 98])
    stream = rox.stream(4, 4, overlap=1)
    described = offenders.described(stream, 0, None)
    for row in described:
        assert row["document"] == row["element"] // 22 * 22 or row["element"] % 22 > 19
        assert row["offset"] == 4 * row["element"]


def test_the_last_line_of_a_batch_counts(tmp_path):
    one = Ledger(tmp_path)
    assert one.left_out(4) is None
    for left_out in ([1, 2], "all"):
        one.append({"step": 5, "batch": 4, "left_out": left_out, "policy": "rewind"})
    assert Ledger(tmp_path).left_out(4) == "all"
    assert Ledger(tmp_path).count("rewind", 4) == 2
    assert Ledger(tmp_path).count("rewind", 5) == 0
