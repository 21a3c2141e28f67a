"""What may go wrong under a run: nothing good is lost, and the run says what it was."""

import os
import resource
import signal
import time

import numpy as np
import pytest

from roxxel.checkpoint import Checkpointer, CheckpointError
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.train import goodput
from tests import run_child
from tests.run_child import Disturbance
from tests.test_preemption import check_same
from tests.tiny import compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(0)
    Roxxel(tmp_path / "train_*.rox").write([rng.integers(0, 16, 1100).astype(np.uint8)])
    return tmp_path


def train(workdir, action=None):
    at = "none" if action is None else "data"
    return run_child.train(workdir, Disturbance(at=at, action=action))


def test_a_shard_that_is_deleted_while_it_is_read(place):
    """An open file stays readable; the next start names what is missing."""
    (shard,) = place.glob("*.rox")
    assert train(place / "undisturbed") == 0
    assert train(place / "run", lambda: shard.rename(place / "away")) == 0
    check_same(place / "run", place / "undisturbed")
    with pytest.raises((ConfigError, FileNotFoundError), match=r"train_.*rox"):
        train(place / "another")
    assert not (place / "another").exists()


def test_a_full_disk_fails_the_save_and_keeps_the_one_before(place):
    assert train(place / "undisturbed") == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        until = time.monotonic() + 60
        while not (place / "run/checkpoints/5").exists() and time.monotonic() < until:
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    try:
        # Step 5 was saved; the save of step 10 cannot be.
        with pytest.raises((CheckpointError, OSError)) as caught:
            train(place / "run", fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "checkpoint of step 10 was not written" in str(caught.value)
    assert train(place / "run") == 0
    check_same(place / "run", place / "undisturbed")


def test_a_checkpoint_that_was_cut_costs_its_steps_only(place):
    assert train(place / "undisturbed") == 0
    assert run_child.train(place / "run", Disturbance(at="none"), stop_after=10) == 0
    cut = max(
        (path for path in (place / "run/checkpoints/10").rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
    os.truncate(cut, cut.stat().st_size // 2)
    assert train(place / "run") == 0
    log = (place / "run" / "roxxel_system.log").read_text()
    assert "Resuming after step 5 of 12" in log
    check_same(place / "run", place / "undisturbed")


def test_a_stop_while_a_checkpoint_is_being_restored(place, monkeypatch):
    assert train(place / "undisturbed") == 0
    assert run_child.train(place / "run", Disturbance(at="none"), stop_after=7) == 0
    real = Checkpointer.restore

    def restore(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **kwargs)

    monkeypatch.setattr(Checkpointer, "restore", restore)
    assert train(place / "run") == 42
    monkeypatch.undo()
    assert (
        "Stopped by SIGTERM after step 7"
        in (place / "run" / "roxxel_system.log").read_text()
    )
    assert train(place / "run") == 0
    check_same(place / "run", place / "undisturbed")


@pytest.mark.parametrize("jump_secs", [-7200, 900])
def test_a_clock_that_jumps_changes_nothing(place, monkeypatch, jump_secs):
    real = time.time

    def jump():
        monkeypatch.setattr(time, "time", lambda: real() + jump_secs)

    if not (place / "undisturbed").exists():
        assert train(place / "undisturbed") == 0
    begin = time.monotonic()
    assert train(place / "run", jump) == 0
    check_same(place / "run", place / "undisturbed")
    assert 0 < goodput.read(place / "run").total <= time.monotonic() - begin
