"""`--mode=eval`, once and following a run; holds on checkpoints; how runs end."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from toy_experiments.followed import count

from roxxel.checkpointing import files, holds
from roxxel.errors import EXIT_RESTART, DivergedError
from roxxel.main import main
from roxxel.train import outcome
from tests.quick import compile_quickly  # noqa: F401
from tests.tiny import compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once", "compile_quickly")

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "--fdl_config=toy_experiments.followed.followed"
RESULTS = "evaluations.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of ten steps, followed by another process all the time."""
    path = tmp_path_factory.mktemp("followed")
    before = pathlib.Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


@pytest.fixture(scope="module")
def run(folder):
    """The run's folder; the follower was there before it."""
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    args = [EXPERIMENT, "--workdir=run", "--mode=eval", "--follow"]
    (folder / "run").mkdir()
    follower = subprocess.Popen(
        [sys.executable, "-m", "roxxel.main", *args],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    flag = f"{EXPERIMENT}(results='run/{RESULTS}')"
    try:
        assert main([flag, "--workdir=run"]) == 0
    finally:
        out, err = follower.communicate(timeout=120)
    assert follower.returncode == 0, err
    assert "the run has ended; all is evaluated" in err
    assert out.count("main") == 5
    return folder / "run"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_in(run):
    return sorted(step.number for step in files.scan(run / "checkpoints")[0])


def evaluated(capsys, *flags):
    code = main(["--mode=eval", *flags])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_follower_evaluates_each_checkpoint_and_the_trainer_keeps_the_best(run):
    """The run itself evaluates nothing and keeps one checkpoint beside the best."""
    rows = lines(run / RESULTS)
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10]
    assert rows[0]["main_loss"] < rows[-1]["main_loss"]
    assert set(rows[0]) >= {"time", "main_perplexity", "main_accuracy"}
    assert steps_in(run) == [2, 10]
    _, best = files.scan(run / "checkpoints")[0]
    assert best.metric("main_loss") == rows[0]["main_loss"]
    assert not (run / "checkpoints" / holds.FOLDER).exists()
    assert outcome.read(run) == {"code": 0, "steps": 10}
    assert "main_loss" not in (run / "roxxel_metrics.csv").read_text()
    assert "main" not in json.loads((run / "run.json").read_text())["plan"]


def test_one_checkpoint_by_name_step_or_best(run, capsys, tmp_path):
    before = (run / RESULTS).read_text()
    by_run = [f"--run={run}", "--trust_module=toy_experiments"]
    by_run += ["--trust_module=tests"]
    found = {}
    for name in ("best", "latest", "2"):
        output = tmp_path / f"{name}.jsonl"
        flags = [*by_run, f"--checkpoint={name}", f"--output={output}"]
        code, out, err = evaluated(capsys, *flags)
        assert code == 0, err
        found[name] = lines(output)[0]
        assert out.splitlines()[1].split() == [
            *("set", "loss", "perplexity", "accuracy", "bits_per_byte", "targets")
        ]
        assert out.splitlines()[2].split()[0] == "main"
    first, *_, last = lines(run / RESULTS)
    for name, row in {"best": first, "2": first, "latest": last}.items():
        assert found[name]["step"] == row["step"]
        assert found[name]["main_loss"] == pytest.approx(row["main_loss"], rel=1e-6)
    assert (run / RESULTS).read_text() == before


def test_tasks_are_sets_of_any_model(run, capsys, tmp_path):
    output = f"--output={tmp_path / 'out.jsonl'}"
    flags = [EXPERIMENT, "--workdir=run", "--sets=in_context,main", output]
    code, out, err = evaluated(capsys, *flags)
    assert code == 0, err
    names = [line.split()[0] for line in out.splitlines()[2:]]
    assert names == [
        *("induction", "copying", "selective_copying", "associative_recall", "main")
    ]
    (row,) = lines(tmp_path / "out.jsonl")
    assert 0 <= row["copying_accuracy"] < 0.5
    assert "copying_bits_per_byte" not in row


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sets=mian"], "no set 'mian'. Did you mean main"),
        (["--sets=main,,"], "expected names with commas"),
        (["--checkpoint=4"], "--checkpoint=4: there is no such checkpoint"),
        (["--checkpoint=newest"], "expected latest, best or a number"),
        (["--output=no/such/file"], "there is no place for a file"),
        (["--fdl.evaluation=None"], "has no evaluation: give"),
        (["--follow", "--checkpoint=best"], "--follow takes each checkpoint"),
        (["--follow", "--patience=soon"], "--patience=soon: expected seconds"),
        (["--follow", "--sets=nothing"], "no set 'nothing'"),
        (["--workdir=elsewhere"], "there is no folder"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(run, flags, words, capsys):
    before = sorted(path.name for path in run.iterdir())
    where = [] if "workdir" in flags[0] else ["--workdir=run"]
    code, out, err = evaluated(capsys, EXPERIMENT, *where, *flags)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in run.iterdir()) == before


# -- a run that goes on, stops or dies -----------------------------------------------


def test_a_follower_ends_by_a_signal_and_goes_on_where_it_was(folder, run, capsys):
    """Of a run that was stopped; then of one whose trainer does not come back."""
    assert main([EXPERIMENT, "--workdir=other", "--stop_after=6"]) == 0
    path = folder / "other"
    (path / outcome.FILE_NAME).write_text('{"code": 42, "steps": 6}')
    flags = [EXPERIMENT, "--workdir=other", "--follow"]

    def stop():
        end = time.monotonic() + 60
        while count(path / RESULTS) < 1 and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    code, _, err = evaluated(capsys, *flags)
    thread.join()
    assert code == EXIT_RESTART, err
    assert "stopped by SIGTERM" in err
    assert [row["step"] for row in lines(path / RESULTS)] == [6]
    assert not (path / "checkpoints" / holds.FOLDER).exists()
    code, _, err = evaluated(capsys, *flags, "--patience=0")
    assert code == EXIT_RESTART
    assert "nobody has trained" in err
    assert len(lines(path / RESULTS)) == 1  # it had its metrics
    for end in (0, 1, 3):
        (path / outcome.FILE_NAME).write_text(json.dumps({"code": end, "steps": 6}))
        assert evaluated(capsys, *flags)[0] == 0


def test_a_follower_passes_over_what_cannot_be_read(folder, run, capsys):
    """Bytes of an array that are not what was written; the file is as long."""
    shutil.copytree(run, folder / "hurt")
    for step in files.scan(folder / "hurt/checkpoints")[0]:
        (step.path / files.LATER).unlink()
    for path in (folder / "hurt/checkpoints/2/state").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(b"\xa5" * path.stat().st_size)
    (folder / "hurt" / RESULTS).unlink()
    code, _, err = evaluated(capsys, EXPERIMENT, "--workdir=hurt", "--follow")
    assert code == 0, err
    assert "step 2 is passed over: " in err
    assert [row["step"] for row in lines(folder / "hurt" / RESULTS)] == [10]
    flags = [EXPERIMENT, "--workdir=hurt", "--checkpoint=2"]
    code, out, err = evaluated(capsys, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_how_an_attempt_ended_is_on_record(tmp_path):
    def diverges():
        assert outcome.read(tmp_path) is None
        raise DivergedError("loss is nan")

    assert outcome.recorded(tmp_path, lambda: 42, lambda: 7) == 42
    assert outcome.read(tmp_path) == {"code": 42, "steps": 7}
    assert not outcome.is_over(tmp_path)
    with pytest.raises(DivergedError):
        outcome.recorded(tmp_path, diverges, lambda: 8)
    assert outcome.read(tmp_path) == {"code": 3, "steps": 8}
    assert outcome.is_over(tmp_path)
    assert not outcome.is_alive(tmp_path)


# -- holds -----------------------------------------------------------------------------


def checkpoint(root, number, loss="nan"):
    folder = files.staging(root, number)
    folder.mkdir(parents=True)
    record = {"metrics": {"loss": loss}, "position": None, "milestone": False}
    files.commit(root, number, record)


def numbers(root):
    return sorted(step.number for step in files.scan(root)[0])


KEEP = files.Keep(newest=1, metric="main_loss", mode="min")


def test_held_checkpoints_stay_until_they_are_let_go(tmp_path):
    for number in range(1, 6):
        checkpoint(tmp_path, number)
    with holds.Hold(tmp_path) as one, holds.Hold(tmp_path):
        files.prune(tmp_path, KEEP)
        assert numbers(tmp_path) == [1, 2, 3, 4, 5]
        one.keep_from(4)
        assert holds.lowest(tmp_path) == 0  # the other holds all
    with holds.Hold(tmp_path) as one:
        one.keep_from(4)
        files.prune(tmp_path, KEEP)
        assert numbers(tmp_path) == [4, 5]
        checkpoint(tmp_path, 6)  # what comes later is held as well
        files.prune(tmp_path, KEEP)
        assert numbers(tmp_path) == [4, 5, 6]
    files.prune(tmp_path, KEEP)
    assert numbers(tmp_path) == [6]
    assert not (tmp_path / holds.FOLDER).exists()


def test_holds_of_the_dead_expire(tmp_path):
    folder = tmp_path / holds.FOLDER
    folder.mkdir()
    here = folder / "here.json"
    here.write_text(json.dumps({"serial": 1, "host": socket.gethostname()}))
    far = folder / "far.json"
    far.write_text(json.dumps({"serial": 3, "host": "another machine"}))
    assert holds.lowest(tmp_path) == 3  # its lock may not show here
    assert not here.exists()
    os.utime(far, (time.time() - 3600,) * 2)
    assert holds.lowest(tmp_path) == float("inf")
    assert not far.exists()


def test_metrics_that_come_later_rank_checkpoints(tmp_path):
    for number, loss in ((1, 3.0), (2, 1.0), (3, float("nan"))):
        checkpoint(tmp_path, number)
        step = files.find(tmp_path, number, KEEP)
        assert files.add_metrics(step, {"main_loss": loss})
    assert files.find(tmp_path, "best", KEEP).number == 2
    assert files.add_metrics(files.find(tmp_path, 2, KEEP), {"other": 1})
    best = files.find(tmp_path, "best", KEEP)
    assert (best.metric("main_loss"), best.metric("other")) == (1.0, 1.0)
    # Several followers, each with sets of its own.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        added = pool.map(lambda n: files.add_metrics(best, {f"m{n}": n}), range(32))
        assert all(added)
    best = files.find(tmp_path, 2, KEEP)
    assert [best.metric(f"m{n}") for n in range(32)] == list(range(32))
    files.prune(tmp_path, KEEP)
    assert numbers(tmp_path) == [2, 3]
    checkpoint(tmp_path, 2)  # saved anew: what was found of the former is void
    assert not files.add_metrics(best, {"main_loss": 0.0})
    with pytest.raises(files.CheckpointError):
        files.find(tmp_path, "best", KEEP)
