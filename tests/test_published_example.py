"""The published example: the corrected script as a user runs it, and each old trap."""

import csv
import pathlib
import re
import signal

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from roxxel import Logger, Roxxel
from roxxel.checkpoint import Checkpointer

SCRIPT = pathlib.Path(__file__).parent.parent / "docs" / "published_example.py"
SHORT = {
    "BATCH_SIZE = 32": "BATCH_SIZE = 8",
    "SEQ_LEN = 1024": "SEQ_LEN = 512",
    "SAVE_EVERY = 100": "SAVE_EVERY = 10",
    "VOCAB, WIDTH = 10000, 256": "VOCAB, WIDTH = 128, 16",
}
TOTAL = 3 * (1000 * 128 // (8 * 512))


def short_script(**more: str) -> str:
    """The example with smaller sizes, and `more` of its lines replaced."""
    text = SCRIPT.read_text()
    for old, new in (SHORT | more).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


BATCH, LENGTH, STEPS = 4, 8, 7


def rows(folder):
    with open(folder / "run_delta" / "roxxel_metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_example_runs_and_goes_on_after_a_kill(tmp_path, run_python):
    script = tmp_path / "published_example.py"
    undisturbed = tmp_path / "undisturbed"
    killed = tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()

    script.write_text(short_script())
    first = run_python(script, cwd=undisturbed)
    assert first.returncode == 0, first.stderr
    assert [int(row["step"]) for row in rows(undisturbed)] == [*range(1, TOTAL + 1)]

    loop = "            for step, batch in enumerate(stream, start=start_step + 1):\n"
    death = (
        "                if step == 37:\n"
        "                    checkpointer.wait()\n"
        "                    import os, signal\n"
        "                    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    script.write_text(short_script(**{loop: loop + death}))
    assert run_python(script, cwd=killed).returncode == -signal.SIGKILL
    data = sorted(killed.glob("*.rox"))
    written = [path.stat().st_mtime_ns for path in data]
    script.write_text(short_script())
    again = run_python(script, cwd=killed)
    assert again.returncode == 0, again.stderr
    assert f"Starting at step 30 of {TOTAL}" in again.stdout + again.stderr
    assert [path.stat().st_mtime_ns for path in data] == written  # not written again
    assert rows(killed) == rows(undisturbed)  # each step once, to the last digit

    third = run_python(script, cwd=killed)
    assert third.returncode == 0, third.stderr
    assert re.search(r"\b0 steps remaining", third.stdout + third.stderr)
    assert rows(killed) == rows(undisturbed)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def documents():
    """Every row of the data starts with a number of its own."""
    for start in range(0, STEPS * BATCH * LENGTH, 16):
        yield jnp.arange(start, start + 16, dtype=jnp.int32)


def write(**options):
    return Roxxel("./wiki_*.rox").write(
        documents(), block_size=4096, max_shard_bytes=1024**3, separator=None, **options
    )


def test_jax_arrays_are_written_where_the_glob_matches_nothing_yet(here):
    write()
    with Roxxel(filepath="./wiki_*.rox") as dataset:
        assert dataset.dtype == np.int32
        assert dataset.estimate_steps(seq_len=LENGTH, batch_size=BATCH) == STEPS
        expected = np.arange(STEPS * BATCH * LENGTH)
        np.testing.assert_array_equal(dataset.elements(0, len(expected)), expected)


def test_writing_again_is_refused_or_skipped_never_doubled(here):
    write()
    before = {path: path.read_bytes() for path in here.glob("*.rox")}
    with pytest.raises(ValueError, match="mode"):
        write()
    write(mode="skip")
    assert {path: path.read_bytes() for path in here.glob("*.rox")} == before


def counting_model():
    model = nnx.Dict(w=nnx.Param(jnp.zeros(())))
    return model, nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)


def test_a_relative_path_and_a_metric_on_the_device(here, monkeypatch):
    checkpointer = Checkpointer("./checkpoints", *counting_model())
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    checkpointer.save(0, metrics_dict={"loss": jnp.float32(2.5)})
    checkpointer.close()
    assert (here / "checkpoints" / "0").is_dir()
    assert checkpointer.best_step() == 0


def test_perplexity_above_what_a_float_holds(here):
    loss = jnp.float32(100.0)
    with Logger(log_dir="run_delta") as logger:
        ppl = float(jnp.exp(loss))
        logger.log_metrics_summary(step=1, loss=float(loss), ppl=ppl)
        logger.log_metrics_summary(step=2, loss=loss, ppl=jnp.exp(loss))
    assert [row["perplexity"] for row in rows(here)] == ["inf", "inf"]


def test_the_same_seed_in_every_epoch_still_gives_each_its_own_order(here):
    write()
    with Roxxel("./wiki_*.rox") as dataset:
        orders = [firsts(dataset.stream(LENGTH, BATCH, 42, epoch=e)) for e in range(3)]
        together = firsts(dataset.stream(LENGTH, BATCH, 42, epochs=3))
    assert together == [first for order in orders for first in order]
    assert len({tuple(order) for order in orders}) == 3
    assert len({tuple(sorted(order)) for order in orders}) == 1


def firsts(stream):
    """First element of every row, in the order in which they are read."""
    return [int(first) for batch in stream for first in np.asarray(batch)[:, 0]]


class Killed(BaseException):
    pass


def published_loop(trained, *, save_every, kill=None, epochs=3):
    """Loop and labels of the published text; corrected: `epoch=`, `update(model, ..)`.

    Adds the first elements of the rows to `trained`, those after the last checkpoint
    of a killed run left out. `kill` is (epoch, step of the epoch).
    """
    model, optimizer = counting_model()
    checkpointer = Checkpointer("./checkpoints", model=model, optimizer=optimizer)
    start_step = checkpointer.restore()
    unsaved = []
    for epoch in range(epochs):
        with Roxxel(filepath="./wiki_*.rox") as dataset:
            loader_stream = dataset.stream(
                seq_len=LENGTH,
                batch_size=BATCH,
                seed=42,
                start_step=start_step if epoch == 0 else 0,
                epoch=epoch,
            )
            for step_idx, batch in enumerate(loader_stream):
                curr_step = start_step + step_idx if epoch == 0 else step_idx
                if (epoch, curr_step) == kill:
                    checkpointer.wait()
                    raise Killed
                optimizer.update(model, nnx.grad(lambda m: m.w[...])(model))
                unsaved += firsts([batch])
                if curr_step % save_every == 0:
                    loss = model.w[...]
                    checkpointer.save(curr_step, metrics_dict={"loss": loss})
                    trained += unsaved
                    unsaved = []
        start_step = 0
    checkpointer.close()
    trained += unsaved


@pytest.mark.parametrize("save_every", [1, 3, 5])
@pytest.mark.parametrize("kills", [[], [(0, 2)], [(0, 1), (0, 4), (0, 6)]])
def test_the_published_loop_trains_every_batch_once(here, kills, save_every):
    write()
    trained = []
    for kill in kills:
        with pytest.raises(Killed):
            published_loop(trained, save_every=save_every, kill=kill)
    published_loop(trained, save_every=save_every)
    with Roxxel("./wiki_*.rox") as dataset:
        assert trained == firsts(dataset.stream(LENGTH, BATCH, 42, epochs=3))


def test_the_published_loop_cannot_go_on_in_a_later_epoch_and_says_so(here):
    """Its `range(EPOCHS)` always starts in epoch 0: `epochs=EPOCHS` is the way."""
    write()
    with pytest.raises(Killed):
        published_loop([], save_every=3, kill=(1, 5))
    with pytest.raises(ValueError, match=f"{STEPS + 4}.*{STEPS}"):
        published_loop([], save_every=3)
    with Roxxel("./wiki_*.rox") as dataset:
        start = Checkpointer("./checkpoints", *counting_model()).restore()
        stream = dataset.stream(LENGTH, BATCH, 42, start_step=start, epochs=3)
        assert len(stream) == 3 * STEPS - (STEPS + 4)
