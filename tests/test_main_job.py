"""The real command line: a small run killed, stopped and started again."""

import csv
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import nnx

from roxxel.checkpoint import Checkpointer
from roxxel.models.ssm import Mamba2LM

ROOT = pathlib.Path(__file__).parent.parent
STEPS = 60
EXPERIMENT = (
    f"experiments.ssm_tiny(d_model=32, n_layers=1, seq_len=32, batch_size=4, "
    f"steps={STEPS})"
)
COMMAND = [
    sys.executable,
    "-m",
    "roxxel.main",
    f"--fdl_config={EXPERIMENT}",
    "--fdl.save_every=7",
    "--fdl.evaluation=None",
    "--fdl.sample.num_tokens=16",
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return os.environ | {
        "ROXXEL_CACHE": str(cache / "data"),
        # The program is the same each time: compile it once.
        "JAX_COMPILATION_CACHE_DIR": str(cache / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def start(workdir, environment, *flags):
    return subprocess.Popen(
        [*COMMAND, f"--workdir={workdir}", *flags],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    output, _ = process.communicate(timeout=200)
    return process.returncode, output


def logged_steps(workdir):
    path = workdir / "roxxel_metrics.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row.get("step")]


def wait_for_step(process, workdir, step):
    """Until that many rows are logged; the process must be alive all the while."""
    while len(logged_steps(workdir)) < step:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)


def columns(workdir):
    with open(workdir / "roxxel_metrics.csv", newline="") as file:
        return [
            (row["step"], row["loss"], row["learning_rate"], row["grad_norm"])
            for row in csv.DictReader(file)
        ]


def final_parameters(workdir):
    model = Mamba2LM(
        vocab_size=256,
        d_model=32,
        n_layers=1,
        state_dim=32,
        head_dim=32,
        rngs=nnx.Rngs(1),
    )
    with Checkpointer(workdir / "checkpoints", model=model) as checkpointer:
        assert checkpointer.restore() == STEPS
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model))]


def assert_same_run(one, other):
    assert columns(one) == columns(other)
    for a, b in zip(final_parameters(one), final_parameters(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, environment):
    workdir = tmp_path_factory.mktemp("runs") / "undisturbed"
    code, output = finish(start(workdir, environment))
    assert code == 0, output
    return workdir, output


def test_everything_of_a_run_is_in_its_work_directory(undisturbed):
    workdir, output = undisturbed
    assert logged_steps(workdir) == list(range(1, STEPS + 1))
    names = {path.name for path in workdir.iterdir()}
    assert names >= {
        "config.json",
        "config.txt",
        "run.json",
        "summary.json",
        "sample.txt",
        "roxxel_system.log",
        "roxxel_metrics.csv",
        "checkpoints",
    }
    info = json.loads((workdir / "run.json").read_text())
    assert info["total_steps"] == STEPS
    assert "argv" in info or "command" in info
    assert (workdir / "sample.txt").read_text().startswith("def main(argv):\n")
    assert "loss" in output


def test_the_same_command_again_says_it_is_finished(undisturbed, environment):
    workdir, _ = undisturbed
    code, output = finish(start(workdir, environment))
    assert code == 0
    assert "Nothing left to train" in output


def test_killed_three_times_in_a_row_changes_nothing(
    undisturbed, environment, tmp_path
):
    workdir = tmp_path / "killed"
    for low in (3, 20, 40):
        process = start(workdir, environment)
        wait_for_step(process, workdir, random.randint(low, low + 12))
        process.send_signal(signal.SIGKILL)
        finish(process)
    code, output = finish(start(workdir, environment))
    assert code == 0, output
    assert_same_run(undisturbed[0], workdir)


def test_sigterm_exits_42_and_the_same_command_continues(
    undisturbed, environment, tmp_path
):
    workdir = tmp_path / "terminated"
    process = start(workdir, environment)
    wait_for_step(process, workdir, 10)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 42, output
    assert "Stopped by SIGTERM after step" in output
    assert "Traceback" not in output
    code, output = finish(start(workdir, environment))
    assert code == 0, output
    assert_same_run(undisturbed[0], workdir)


def test_divergence_exits_3_and_names_the_step(environment, tmp_path):
    workdir = tmp_path / "diverged"
    process = start(
        workdir,
        environment,
        "--fdl.schedule.peak=1e30",
        "--fdl.optimizer.clip_norm=None",
    )
    code, output = finish(process)
    assert code == 3, output
    assert "is not finite" in output.splitlines()[-1]
    assert (workdir / "checkpoints").exists()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--fdl.model.d_model=0", "d_model must be at least 1, got 0"),
        ("--fdl.checkpointer.max_to_keep=0", "max_to_keep"),
        ("--fdl.schedule.peak=nan", "peak must be positive and finite, got nan"),
    ],
)
def test_wrong_values_end_in_one_line_with_nothing_created(
    environment, tmp_path, flag, words
):
    code, output = finish(start(tmp_path / "run", environment, flag))
    assert code == 2, output
    assert words in output.splitlines()[-1]
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


def test_changed_batch_size_on_resume_exits_2_naming_both(
    undisturbed, environment, tmp_path
):
    workdir = undisturbed[0]
    code, output = finish(
        start(
            workdir, environment, "--fdl_tag.BatchSize=8", "--fdl.total_steps.steps=90"
        )
    )
    assert code == 2, output
    assert "batch_size was 4 and is now 8" in output.splitlines()[-1]
    assert "Traceback" not in output
