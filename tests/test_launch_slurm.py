"""`launch/slurm.sbatch`: what it would run, and what a real SLURM makes of it."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from tests import fake_roxxel, slurm_cluster

LINE = ("--", "--fdl_config=experiments.ssm_tiny", "--fdl.a=b c")


@pytest.fixture
def bash(repo_root):
    def run(*words, env=None):
        return subprocess.run(
            ["bash", "launch/slurm.sbatch", *words],
            cwd=repo_root,
            env=os.environ | (env or {}),
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_scripts_pass_shellcheck(repo_root):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    scripts = [*(repo_root / "launch").glob("*.sh"), repo_root / "launch/slurm.sbatch"]
    done = subprocess.run(
        ["shellcheck", *scripts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_dry_run_prints_the_submission_and_the_step(bash):
    done = bash("--per=gpu", "--restarts=7", "--dry_run", *LINE)
    assert done.returncode == 0, done.stderr
    submit, step, end = done.stdout.splitlines()
    assert submit.startswith("sbatch --nodes=N launch/slurm.sbatch '--per=gpu'")
    assert "--dry_run" not in submit
    assert "'--ntasks-per-node=GPUS_PER_NODE'" in step
    words = "'python3' '-m' 'roxxel.main' '--fdl_config=experiments.ssm_tiny'"
    assert step.endswith(f"{words} '--fdl.a=b c'")
    assert end == "on exit code 42, at most 7 times: scontrol requeue JOB"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--per=core", *LINE), "unknown flag or value '--per=core' before --"),
        (("--restarts=many", *LINE), "--restarts=many: expected a whole number."),
        (("--time=1", *LINE), "flags of sbatch come before the script"),
        (("--dry_run", "--", "--workdir=x"), "no experiment: give its line behind --"),
        (LINE, "not in a SLURM job: start it with sbatch, or give --dry_run."),
    ],
)
def test_a_wrong_line_is_one_line(bash, words, said):
    outside = {"SLURM_JOB_ID": ""}
    done = bash(*words, env=outside)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slurm.sbatch: error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# -- on a real SLURM -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if missing := slurm_cluster.missing():
        pytest.skip(f"SLURM is not installed: no {', '.join(missing)}")
    with slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def submit(cluster, repo_root, tmp_path):
    def run(*words):
        job = cluster.ask(
            *("sbatch", "--parsable", "--nodes=2", f"{repo_root}/launch/slurm.sbatch"),
            *(f"--python={sys.executable}", *words),
            cwd=tmp_path,
        )
        assert job.isdigit()
        return job

    return run


@pytest.mark.slow
def test_a_run_that_saved_is_requeued_and_a_wrong_one_fails(cluster, submit, tmp_path):
    fake_roxxel.install(tmp_path)
    job = submit(*LINE, "--do=codes:42/2")
    cluster.release(job)
    assert cluster.wait(job, "COMPLETED", "FAILED") == "FAILED"
    for index in ("0", "1"):
        log = tmp_path / f"attempts.{index}"
        tries = [json.loads(line) for line in log.read_text().splitlines()]
        assert len(tries) == 2  # after exit code 2 there is no third one
        for one in tries:
            assert one["argv"][:2] == list(LINE[1:])
            assert one["env"]["ROXXEL_PROCESS_ID"] == index
            assert one["env"]["ROXXEL_NUM_PROCESSES"] == "2"
    last = submit("--restarts=0", *LINE, "--do=exit:42")
    assert cluster.wait(last, "COMPLETED", "FAILED") == "FAILED"
    assert "are used up" in (tmp_path / f"roxxel-{last}.out").read_text()


@pytest.mark.slow
def test_two_nodes_train_are_preempted_resume_and_end(
    cluster, submit, tmp_path, repo_root, monkeypatch
):
    monkeypatch.setitem(cluster.env, "PYTHONPATH", str(repo_root))
    monkeypatch.setitem(cluster.env, "JAX_PLATFORMS", "cpu")
    experiment = "experiments.ssm_tiny(d_model=32, n_layers=1, seq_len=32, steps=200)"
    job = submit(
        *("--", f"--fdl_config={experiment}", "--fdl.evaluation=None"),
        *("--fdl.sample=None", "--fdl.save_every=1000", "--workdir=run"),
    )
    until = time.monotonic() + 120
    while len(logged(tmp_path)) < 20:
        assert time.monotonic() < until, (tmp_path / f"roxxel-{job}.out").read_text()
        time.sleep(0.05)
    cluster.ask("scontrol", "requeue", job)
    cluster.release(job)
    state = cluster.wait(job, "COMPLETED", "FAILED")
    said = (tmp_path / f"roxxel-{job}.out").read_text()
    assert state == "COMPLETED", said
    assert "on 2 cpu device(s) in 2 process(es)" in said
    step = int(re.search(r"Stopped by .* after step (\d+)", said).group(1))
    assert step >= 20
    assert f"Resuming after step {step} of 200" in said
    assert logged(tmp_path) == list(range(1, 201))


def logged(folder):
    path = folder / "run" / "roxxel_metrics.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [int(row["step"]) for row in rows if row.get("loss")]
