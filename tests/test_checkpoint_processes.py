"""Checkpointer in real processes: every way to end one, full disks, two processes."""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import jax
import numpy as np
import pytest

from roxxel.checkpoint import Checkpointer
from tests import checkpoint_child

CHILD = pathlib.Path(__file__).with_name("checkpoint_child.py")


@pytest.fixture(scope="module")
def big():
    model = checkpoint_child.Big()
    return model, [np.array(param) for param in model.w]


@pytest.mark.parametrize(
    ("case", "code", "steps"),
    [
        ("four_saves_then_fall_off_the_end", 0, [0, 1, 2, 3]),
        ("sys_exit", 0, [1]),
        ("exception", 1, [1]),
        ("exception_in_a_logger_block", 1, [1]),
        ("thread_that_outlives_main", 0, [1, 2]),
        ("pool_worker", 0, [1]),
        ("pool_worker_born_at_exit", 0, [1]),
        ("pool_worker_listed_late", 0, [1]),
    ],
)
def test_no_save_is_lost_at_exit(tmp_path, run_python, big, case, code, steps):
    result = run_python(CHILD, case, tmp_path)
    assert result.returncode == code, result.stderr
    if code == 0:
        assert result.stderr == result.stdout == ""  # and not a word about it
    model, values = big
    for param in model.w:
        param.set_value(jax.numpy.zeros((1000, 1000)))
    checkpointer = Checkpointer(tmp_path, model, read_only=True)
    assert checkpointer.all_steps() == steps
    assert checkpointer.restore() == steps[-1]
    for param, value in zip(model.w, values, strict=True):
        np.testing.assert_array_equal(param, value)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("full_disk_then_save", "CheckpointError: checkpoint of step 2 was not"),
        ("full_disk_then_close", "CheckpointError: checkpoint of step 2 was not"),
        ("full_disk_then_own_exception", "RuntimeError: the user's own"),
        ("full_disk_then_fall_off_the_end", "At exit: checkpoint of step 2 was not"),
    ],
)
def test_a_failed_write_is_reported_and_costs_no_old_checkpoint(
    tmp_path, run_python, case, said
):
    result = run_python(CHILD, case, tmp_path)
    assert result.returncode == 1
    assert said in result.stderr
    assert "checkpoint of step 2 was not written" in result.stderr
    model = checkpoint_child.Big(2)
    assert Checkpointer(tmp_path, model).restore() == 1


def test_after_a_failed_write_the_next_save_works(tmp_path, run_python):
    result = run_python(CHILD, "full_disk_then_space_again", tmp_path)
    assert result.returncode == 0, result.stderr


def test_permission_is_checked_at_construction(run_python):
    if os.getuid() != 0:
        pytest.skip("needs root, to become a user without permission")
    # Not under pytest's own folder, which each of its processes closes to others.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with Checkpointer(folder, checkpoint_child.Big(1)) as checkpointer:
            checkpointer.save(1)
        result = run_python(CHILD, "no_permission", folder)
        assert result.returncode == 0, result.stderr
        assert result.stdout.count(f"{folder} cannot be written by this user") == 2


def test_no_backend_is_started_by_import_construction_or_listing(tmp_path, run_python):
    with Checkpointer(tmp_path, checkpoint_child.Big(1)) as checkpointer:
        checkpointer.save(1)
    result = run_python(CHILD, "no_backend", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1"]


def test_a_missing_extra_is_one_line(run_python):
    script = (
        "import sys; sys.modules['orbax'] = None\n"
        "try: import roxxel.checkpoint\n"
        "except ImportError as err: print(err)"
    )
    said = run_python("-c", script).stdout
    assert said == (
        "roxxel.checkpoint needs orbax-checkpoint: pip install 'roxxel[checkpoint]'.\n"
    )


def test_two_processes_save_and_one_restores(tmp_path, repo_root):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(repo_root),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, CHILD, "two_processes", tmp_path, str(i), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "missing in the checkpoint (1): model/extra" in out
    assert sorted(os.listdir(tmp_path)) == ["2", "3"]
    model, _ = checkpoint_child._pair()  # on eight devices here
    checkpointer = Checkpointer(tmp_path, model)
    assert checkpointer.restore() == 3
    assert checkpointer.read_position() == {"step": 3}
    expected = np.arange(32.0).reshape(8, 4) * 4
    np.testing.assert_array_equal(model.sharded, expected)
    assert len(model.sharded.get_value().sharding.device_set) == 8
