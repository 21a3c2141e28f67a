"""Sweeps as users start them: processes, kills, signals; the runs are toys."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import attempts, results
from launch.folder import Folder

TESTS = Path(__file__).parent
TOY = "--fdl_config=sweep_toy.toy"
ENV = {"PYTHONPATH": f"{TESTS.parent}:{TESTS}", "NO_COLOR": "1"}


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "launch.sweep", *flags, "--sweep_dir=s"]


@pytest.fixture
def sweep(tmp_path):
    """Runs a sweep of toys in `tmp_path/s` to its end."""

    def run(*flags, code=0):
        done = subprocess.run(
            command(TOY, *flags),
            cwd=tmp_path,
            env=os.environ | ENV,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def start(tmp_path: Path, *flags: str) -> subprocess.Popen:
    with open(tmp_path / "driver.out", "ab") as output:
        return subprocess.Popen(
            command(TOY, *flags),
            cwd=tmp_path,
            env=os.environ | ENV,
            stdout=output,
            stderr=output,
        )


def wait_until(condition, process: subprocess.Popen | None = None) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        assert process is None or process.poll() is None, "ended before"
        time.sleep(0.01)


def steps_of(workdir: Path) -> list[int]:
    with open(workdir / results.METRICS) as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def board(tmp_path: Path) -> list[dict[str, str]]:
    with open(tmp_path / "s" / results.LEADERBOARD) as file:
        return list(csv.DictReader(file))


def total_steps(tmp_path: Path) -> int:
    files = (tmp_path / "s/trials").glob("*/saved.json")
    return sum(json.loads(file.read_text())["step"] for file in files)


SIX = ("--sweep.width=1,2,3", "--sweep.peak=1e-2,1e-3", "--workers=2")


@pytest.mark.parametrize(
    "with_runs",
    [
        pytest.param(False, id="driver"),
        pytest.param(True, id="everything", marks=pytest.mark.slow),
    ],
)
def test_killed_twice_it_loses_and_repeats_nothing(with_runs, tmp_path):
    flags = [*SIX, "--fdl.step_secs=0.02"]
    moments = sorted(random.sample(range(2, 100), 2))
    for moment in moments:  # of the 120 steps of the sweep
        driver = start(tmp_path, *flags)
        wait_until(lambda m=moment: total_steps(tmp_path) >= m, driver)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        if with_runs:
            for file in (tmp_path / "s/state").glob("*/holder.json"):
                kill_group(json.loads(file.read_text())["supervisor"])
    assert start(tmp_path, *flags).wait() == 0, moments
    folder = Folder(tmp_path / "s")
    assert len(folder.ids()) == len(board(tmp_path)) == 6
    for trial_id in folder.ids():
        workdir = folder.workdir(trial_id)
        assert steps_of(workdir) == list(range(1, 21)), moments
        starts = (workdir / "starts.txt").read_text().splitlines()
        codes = attempts.read(folder, trial_id).codes
        if not with_runs:
            assert (starts, codes) == (["0 1"], (0,)), moments
        assert codes[-1] == 0
        assert len(set(starts)) == len(starts), "no step was trained twice"


def kill_group(identity: str) -> None:
    with_pid = int(identity.partition(":")[0])
    try:
        os.killpg(with_pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_a_signal_stops_all_after_saving_and_the_same_command_continues(tmp_path):
    flags = [*SIX, "--fdl.step_secs=0.02"]
    driver = start(tmp_path, *flags)
    wait_until(lambda: total_steps(tmp_path) >= 3, driver)
    other = subprocess.run(
        command(TOY, *flags),
        cwd=tmp_path,
        env=os.environ | ENV,
        capture_output=True,
        text=True,
    )
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "another driver runs this sweep" in other.stderr
    driver.send_signal(signal.SIGINT)
    assert driver.wait() == 42
    folder = Folder(tmp_path / "s")
    codes = [attempts.read(folder, i).codes for i in folder.ids()]
    assert (42,) in codes
    assert (tmp_path / "driver.out").read_text().endswith("same command continues.\n")
    assert start(tmp_path, *flags).wait() == 0
    for trial_id in folder.ids():
        assert steps_of(folder.workdir(trial_id)) == list(range(1, 21))


@pytest.mark.slow
def test_each_ending_and_trying_again(sweep, tmp_path):
    endings = ("ok", "config", "diverges", "crashes", "crashes_once")
    done = sweep(f"--sweep.ending={','.join(endings)}", "--workers=2", code=1)
    folder = Folder(tmp_path / "s")
    found = {
        folder.record(i)["overrides"]["ending"]: attempts.read(folder, i)
        for i in folder.ids()
    }
    assert {name: (state.status, state.codes) for name, state in found.items()} == {
        "ok": ("done", (0,)),
        "config": ("failed", (2,)),  # never started again
        "diverges": ("diverged", (3,)),
        "crashes": ("failed", (1, 1)),
        "crashes_once": ("done", (1, 0)),
    }
    assert [row["status"] for row in board(tmp_path)][:2] == ["done", "done"]
    assert "failed: roxxel: error: the data set is empty" in done.stderr
    assert "RuntimeError: boom" in done.stderr
    sweep(f"--sweep.ending={','.join(endings)}", "--retry_failed", code=1)
    states = {i: attempts.read(folder, i) for i in folder.ids()}
    assert sorted(len(state.codes) for state in states.values()) == [1, 2, 2, 2, 4]


def test_halving_stops_the_bad_and_resumes_the_good(sweep, tmp_path):
    flags = ["--sweep.width=0,1,2,3", "--halving", "--rungs=3", "--workers=2"]
    done = sweep(*flags, "--metric=loss")
    rows = {row["width"]: row for row in board(tmp_path)}
    assert {width: int(row["steps"]) for width, row in rows.items()} == {
        "3": 20,
        "2": 10,
        "1": 5,
        "0": 5,
    }
    assert rows["3"]["status"] == "done"
    assert rows["0"]["status"] == "paused"
    for row in rows.values():  # resumed where it stopped, each step once
        steps = int(row["steps"])
        assert steps_of(Path(row["workdir"])) == list(range(1, steps + 1))
    starts = Path(rows["3"]["workdir"], "starts.txt").read_text().split()[::2]
    assert starts == ["0", "5", "10"]
    assert "done after step 20, loss " in done.stderr
    again = sweep(*flags, "--metric=loss")
    assert again.stdout == done.stdout


def test_search_continues_where_it_was(sweep, tmp_path):
    pytest.importorskip("optuna")
    flags = ["--search=optuna", "--range.peak=log:1e-4:1", "--range.width=int:1:5"]
    sweep(*flags, "--trials=3", "--workers=2")
    first = board(tmp_path)
    sweep(*flags, "--trials=5", "--workers=2")
    rows = board(tmp_path)
    assert (len(first), len(rows)) == (3, 5)
    assert {row["id"] for row in first} < {row["id"] for row in rows}
    values = [float(row["eval_loss"]) for row in rows]
    assert values == sorted(values)
    for row in rows:
        assert Path(row["workdir"], "starts.txt").read_text().count("\n") == 1
        assert 1e-4 <= float(row["peak"]) <= 1
        assert 1 <= int(row["width"]) <= 5


def test_job_array_runs_one_trial_an_index(sweep, tmp_path):
    flags = ["--sweep.width=1,2", "--emit=slurm", "--slurm=--time=1:00 --gres=gpu:1"]
    script = Path(sweep(*flags).stdout.split()[-1])
    text = script.read_text()
    for line in ("--array=0-1", "--time=1:00", "--gres=gpu:1", "--signal=B:TERM@120"):
        assert f"#SBATCH {line}\n" in text
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/requeued\n')
    (tools / "scontrol").chmod(0o755)
    env = os.environ | ENV | {"SLURM_ARRAY_JOB_ID": "7"}
    env["PATH"] = f"{tools}:{env['PATH']}"
    for index in "01":
        env["SLURM_ARRAY_TASK_ID"] = index
        done = subprocess.run(["bash", script], env=env, capture_output=True)
        assert done.returncode == 0, done.stderr
    sweep("--report")
    assert [row["status"] for row in board(tmp_path)] == ["done", "done"]
    # Told to stop, a trial saves and its index is queued again.
    script = Path(sweep(*flags, "--sweep.step_secs=0.02").stdout.split()[-1])
    env["SLURM_ARRAY_TASK_ID"] = "2"
    before = total_steps(tmp_path)
    job = subprocess.Popen(["bash", script], env=env)
    wait_until(lambda: total_steps(tmp_path) > before, job)
    job.terminate()
    assert job.wait() == 42
    assert (tmp_path / "requeued").read_text() == "requeue 7_2\n"


def test_a_folder_is_extended_or_refused(sweep, tmp_path):
    sweep("--sweep.width=1,2")
    sweep("--sweep.width=2,3", "--sweep.peak=1e-2")
    assert len(board(tmp_path)) == 4, "(2) and (2, 1e-2) are different overrides"
    done = sweep("--sweep.width=1,2", "--fdl.peak=0.5", code=2)
    assert "holds another sweep: flags was" in done.stderr
    assert done.stderr.count("\n") == 1
    (tmp_path / "s/trials" / board(tmp_path)[0]["id"] / "saved.json").unlink()
    sweep("--sweep.width=1,2")
    lines = [
        (tmp_path / "s/trials" / row["id"] / "starts.txt").read_text()
        for row in board(tmp_path)
    ]
    assert all(text.count("\n") == 1 for text in lines), "what is done is not run again"


@pytest.mark.slow
def test_killed_twice_with_the_real_trainer(tmp_path):
    flags = ["--fdl_config=ssm_tiny", "--fiddler=debug(steps=12)", "--workers=2"]
    flags += ["--fiddler=synthetic_data", "--fdl.sample=None"]
    flags += ["--sweep.optimizer.schedule.peak=1e-3,3e-3,1e-2", "--sweep.seed=0,1"]
    env = os.environ | ENV | {"ROXXEL_CACHE": str(tmp_path / "cache")}
    env["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    killed_after = sorted(random.sample(range(1, 60), 2))  # of 72 steps in all
    for rows in killed_after:
        driver = subprocess.Popen(command(*flags), cwd=tmp_path, env=env)
        wait_until(lambda n=rows: num_rows(tmp_path) >= n, driver)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert subprocess.run(command(*flags), cwd=tmp_path, env=env).returncode == 0
    assert [row["status"] for row in board(tmp_path)] == ["done"] * 6
    folder = Folder(tmp_path / "s")
    for row in board(tmp_path):
        assert steps_of(Path(row["workdir"])) == list(range(1, 13)), killed_after
        assert attempts.read(folder, row["id"]).codes == (0,), killed_after


def num_rows(tmp_path: Path) -> int:
    tables = (tmp_path / "s/trials").glob(f"*/{results.METRICS}")
    return sum(max(0, table.read_text().count("\n") - 1) for table in tables)


def test_a_metric_that_no_trial_has_ends_with_the_names_there_are(sweep):
    done = sweep("--sweep.width=1,2", "--metric=evalloss", "--workers=2", code=1)
    last = done.stderr.splitlines()[-1]
    assert "--metric=evalloss" in last
    assert "eval_loss" in last
    sweep("--report", "--metric=eval_loss")
    sweep("--report", "--metric=eval_los", code=1)
