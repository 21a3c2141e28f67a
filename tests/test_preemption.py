"""SIGTERM and SIGINT at any point of a run: one agreed step, exit 42, exact resume."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from flax import nnx

from roxxel.checkpoint import Checkpointer
from roxxel.dataset import Roxxel
from roxxel.train.stop import StopNow, StopRequest
from tests import run_child
from tests.run_child import POINTS, STEPS
from tests.tiny import Bigram, compile_once  # noqa: F401

LIMIT_SECS = 30  # from the signal to the end of the process
ONLY = ("step", "loss", "grad_norm", "learning_rate", "eval_loss")


class Memory:
    """A board of several processes that are threads of one."""

    def __init__(self, texts, index, count):
        self._texts, self.index, self.count = texts, index, count

    def post(self, name, text):
        self._texts[name] = text

    def read(self, folder=""):
        return {
            name.removeprefix(folder): text
            for name, text in list(self._texts.items())
            if name.startswith(folder)
        }


def two():
    texts = {}
    return [StopRequest(Memory(texts, index, 2)) for index in range(2)]


def test_all_go_on_to_the_point_that_one_has_begun():
    ahead, behind = two()
    assert [ahead.reached() for _ in range(5)] == [False] * 5
    assert [behind.reached() for _ in range(3)] == [False] * 3
    behind.ask("SIGTERM")
    for _ in range(2):
        behind.poll()
        ahead.poll()
    assert ahead.reached()
    assert [behind.reached() for _ in range(3)] == [False, False, True]
    assert ahead.reason == "SIGTERM of process 1"


def test_both_asked_at_once_agree_too():
    one, other = two()
    other.reached()
    one.ask("SIGTERM")
    other.ask("SIGINT")
    for _ in range(2):
        one.poll()
        other.poll()
    assert [one.reached() for _ in range(2)] == [False, True]
    assert other.reached()


def test_nobody_goes_on_before_all_have_told():
    one, other = two()
    one.ask("SIGTERM")
    one.poll()
    waiting = threading.Thread(target=one.reached)
    waiting.start()
    assert waiting.is_alive()
    other.poll()
    one.poll()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_wait_is_ended_only_where_the_run_stops():
    ahead, behind = two()
    ahead.reached()
    behind.ask("SIGTERM")
    for _ in range(2):
        behind.poll()
        ahead.poll()
    with behind.interruptible():
        pass  # what the other has begun is waited for
    with pytest.raises(StopNow), ahead.interruptible():
        pass


def test_a_signal_that_the_main_thread_sees_late_is_still_one_signal():
    """It was in a call that takes long, while the watching thread saw the signal."""
    with StopRequest() as stop:
        os.write(stop._wakeup[1], bytes([signal.SIGTERM]))  # as C's handler does
        stop.poll()
        assert stop.reason == "SIGTERM"
        stop.asked_at -= 60  # long ago
        stop._handle(signal.SIGTERM, None)
        assert stop.insisted is None


def test_the_same_signal_twice_at_once_is_one_stop_and_later_ends_the_run():
    """Launchers and terminals may deliver one stop twice."""
    code = (
        "import os, signal, sys, time\n"
        "from roxxel.train.stop import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    for _ in range(2):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    assert stop.reached()\n"
        "    stop.asked_at -= 2\n"
        "    print('twice', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('not reached', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "twice\n", done.stderr
    assert done.returncode == -signal.SIGTERM


# -- real processes --------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preemption")
    rng = np.random.default_rng(0)
    Roxxel(folder / "train_*.rox").write([rng.integers(0, 16, 1100).astype(np.uint8)])
    return folder


def run(workdir, told, *, count, repo_root):
    """Exit codes and outputs, by process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(repo_root),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(workdir.parent / f"xla-{count}"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    processes = []
    for index in range(count):
        joined = {
            "ROXXEL_COORDINATOR": f"127.0.0.1:{port}",
            "ROXXEL_NUM_PROCESSES": str(count),
            "ROXXEL_PROCESS_ID": str(index),
        }
        processes.append(
            subprocess.Popen(
                [
                    *(sys.executable, str(repo_root / "tests" / "run_child.py")),
                    *(str(workdir), json.dumps(told)),
                ],
                env=environment | (joined if count > 1 else {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def rows(workdir):
    path = workdir / "roxxel_metrics.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return [{name: row.get(name) for name in ONLY} for row in csv.DictReader(file)]


def arrays(workdir):
    """The leaves of the last checkpoint."""
    model = Bigram(rngs=nnx.Rngs(9))
    optimizer = run_child.optimizer(model)
    with Checkpointer(workdir / "checkpoints", model, optimizer) as checkpointer:
        assert checkpointer.restore() == STEPS
    leaves = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
    return [np.asarray(leaf) for leaf in leaves]


def check_stopped(workdir, at, log, processes=1):
    (line,) = (line for line in log.splitlines() if "Stopped by" in line)
    assert float(line.split("step ")[1].split(", ")[1].split(" s ")[0]) < LIMIT_SECS
    done = len(rows(workdir))
    # Of two, the other may be ahead, past its own compilation: they agree on its step.
    if at in ("start", "compile") and (processes == 1 or not done):
        assert done == 0
        assert not list(workdir.glob("checkpoints/*"))
        assert "begins anew" in line
    else:
        with Checkpointer(workdir / "checkpoints", read_only=True) as checkpointer:
            assert checkpointer.latest_step() == done


def check_same(workdir, expected):
    assert rows(workdir) == rows(expected)
    for one, other in zip(arrays(workdir), arrays(expected), strict=True):
        np.testing.assert_array_equal(one, other)


# -- one process -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(place, compile_once):  # noqa: F811
    workdir = place / "alone"
    assert run_child.train(workdir, run_child.Disturbance(at="none")) == 0
    return workdir


def stop_at(point, number, place, alone):
    workdir = place / f"alone-{point}"
    disturbance = run_child.Disturbance(at=point, action=number)
    assert run_child.train(workdir, disturbance) == 42
    assert disturbance.is_over
    check_stopped(workdir, point, (workdir / "roxxel_system.log").read_text())
    assert run_child.train(workdir, run_child.Disturbance(at="none")) == 0
    check_same(workdir, alone)


@pytest.mark.parametrize("point", ["compile", "evaluation"])
def test_sigterm_of_one_process(point, place, alone):
    stop_at(point, signal.SIGTERM, place, alone)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["start", "data", "step", "save", "sample"])
def test_sigint_of_one_process(point, place, alone):
    stop_at(point, signal.SIGINT, place, alone)


# -- two processes ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(place, repo_root):
    codes, outputs = run(place / "pair", {"at": "none"}, count=2, repo_root=repo_root)
    assert codes == [0, 0], outputs
    return place / "pair"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "process"),
    # The lead alone samples, and reads the rows that the evaluation stops at.
    [(point, int(point not in ("evaluation", "sample"))) for point in POINTS]
    + [("data", None)],
)
def test_sigterm_of_one_of_two_or_both(pair, place, repo_root, at, process):
    workdir = place / f"pair-{at}-{process}"
    told = {"at": at, "action": int(signal.SIGTERM), "process": process}
    codes, outputs = run(workdir, told, count=2, repo_root=repo_root)
    assert codes == [42, 42], outputs
    check_stopped(workdir, at, outputs[0], processes=2)
    if at in ("data", "evaluation", "save"):
        codes, outputs = run(workdir, {"at": "none"}, count=2, repo_root=repo_root)
        assert codes == [0, 0], outputs
        check_same(workdir, pair)


def start_main(workdir, repo_root, tmp_path):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "roxxel.main"),
            "--fdl_config=experiments.ssm_tiny(d_model=32, n_layers=1, steps=4)",
            f"--workdir={workdir}",
        ],
        cwd=repo_root,
        env=os.environ | {"ROXXEL_CACHE": str(tmp_path / "c"), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_sigterm_before_there_is_a_run(tmp_path, repo_root):
    """While the data set is built, which is the first thing that appears."""
    process = start_main(tmp_path / "run", repo_root, tmp_path)
    until = time.monotonic() + 100
    while not (tmp_path / "c").exists() and time.monotonic() < until:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_SECS + 10)
    assert process.returncode == 42, output
    assert "SIGTERM before the first step" in output  # progress may write after it
    assert "Traceback" not in output
