"""Runs that hang or lose a process: diagnosed, ended in time, and nothing lost."""

import os
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest

from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.train import watch, watchdog
from roxxel.train.stop import StopRequest
from roxxel.train.timing import StepClock
from roxxel.train.watchdog import Deadlines
from tests.test_preemption import Memory, rows, run


@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_deadlines_are_checked(value):
    with pytest.raises(ConfigError, match="deadlines: data must be positive"):
        Deadlines(data=value)


def test_phases_have_their_own_deadline():
    deadlines = Deadlines(data=1, step=2, evaluation=3, save=4, sample=5)
    phases = ("data", "step", "evaluation", "save", "sample")
    assert [deadlines.of(name) for name in phases] == [1, 2, 3, 4, 5]
    assert [deadlines.of(name) for name in ("start", "compile", "other", "stop")] == [
        None
    ] * 4


def sleep_here(started, end):
    started.set()
    end.wait(60)


def test_stacks_name_host_thread_and_line(tmp_path):
    started, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=sleep_here, args=(started, end), name="a-reader")
    thread.start()
    started.wait(10)
    dumped = []
    # The thread that writes them is left out, as the watch's is.
    writer = threading.Thread(
        target=lambda: dumped.append(watchdog.dump(tmp_path, process=3, why="a test"))
    )
    writer.start()
    writer.join()
    end.set()
    thread.join()
    text = dumped[0].read_text()
    assert dumped[0].parent == tmp_path / "stacks"
    assert f"process 3, host {socket.gethostname()}, pid {os.getpid()}" in text
    assert "a test" in text
    assert "thread MainThread" in text
    reader = text[text.index("thread a-reader") :]
    assert re.search(r'File ".*test_watchdog.py", line \d+, in sleep_here', reader)


class Ended(Exception):
    pass


class Quiet:
    """A logger that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def log_message(self, text, **options):
        self.lines.append(text)

    def flush(self):
        pass


@pytest.fixture
def ends(monkeypatch):
    """What would end the process raises instead."""

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(watch.os, "_exit", end)


def watched(tmp_path, *, board=None, **deadlines):
    now = [time.perf_counter()]
    clock = StepClock(clock=lambda: now[0])
    logger = Quiet()
    stop = StopRequest(board)
    found = watch.Watch(tmp_path, stop, Deadlines(**deadlines), board, logger)
    found.follow(clock)
    return found, clock, logger, stop, now


@pytest.mark.parametrize(
    ("phase", "is_warm", "hangs"),
    [
        ("data", True, True),
        ("save", True, True),
        ("compile", True, False),
        ("start", True, False),
        ("step", False, False),  # the first compiles
        ("step", True, True),
        ("evaluation", False, False),
        ("evaluation", True, True),
    ],
)
def test_what_counts_as_a_hang(tmp_path, ends, phase, is_warm, hangs):
    limits = dict.fromkeys(("data", "step", "evaluation", "save"), 5.0)
    found, clock, logger, _, now = watched(tmp_path, **limits)
    now[0] -= 4
    clock.switch(phase)
    if is_warm:
        clock.beat()
    found._look_at_phase()
    now[0] -= 2
    clock.since -= 2
    found._awake_since = 0
    if hangs:
        with pytest.raises(Ended) as caught:
            found._look_at_phase()
        assert caught.value.args == (42,)
        assert f'no progress in "{phase}" for 6' in logger.lines[-1]
        assert list((tmp_path / "stacks").iterdir())
    else:
        found._look_at_phase()
        assert not (tmp_path / "stacks").exists()


def test_a_process_that_was_stopped_itself_does_not_count_as_hung(tmp_path, ends):
    found, clock, _, _, now = watched(tmp_path, data=5.0)
    now[0] -= 100
    clock.switch("data")
    found._awake_since = time.perf_counter()
    found._look_at_phase()


def test_a_stop_without_an_end_ends_the_process(tmp_path, ends):
    found, clock, logger, stop, _ = watched(tmp_path, stop=20.0)
    clock.switch("data")
    stop.ask("SIGTERM")
    found._look_at_stop()
    assert "SIGTERM: stopping within 20 s" in logger.lines[-1]
    stop.asked_at -= 21
    clock.switch("save")  # which is never cut off
    found._look_at_stop()
    clock.switch("compile")
    with pytest.raises(Ended) as caught:
        found._look_at_stop()
    assert caught.value.args == (42,)
    assert '"compile" did not end within 20 s' in logger.lines[-1]


@pytest.mark.parametrize("code", ["1", "2", "42"])
def test_the_failure_of_another_process_ends_this_one(tmp_path, ends, capsys, code):
    texts = {}
    board = Memory(texts, 1, 2)
    found, *_ = watched(tmp_path, board=board)
    found._look_at_others()
    texts["failed/0"], texts["code/0"] = "on a-host: OSError: disk gone", code
    found._look_at_others()
    found._failed_at -= 6
    with pytest.raises(Ended) as caught:
        found._look_at_others()
    assert caught.value.args == (int(code),)  # that of the cause
    told = capsys.readouterr().err
    assert "[process 1] process 0 failed on a-host: OSError: disk gone" in told


# -- real processes --------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    rng = np.random.default_rng(0)
    Roxxel(folder / "train_*.rox").write([rng.integers(0, 16, 1100).astype(np.uint8)])
    return folder


def test_a_process_that_sleeps_in_its_data_is_named(place, repo_root):
    told = {"process": 1, "at": "data", "action": "sleep"}
    told["deadlines"] = {"data": 2.0, "step": 100.0}
    codes, outputs = run(place / "hang", told, count=2, repo_root=repo_root)
    assert codes == [42, 42], outputs
    host = socket.gethostname()
    where = r"run_child.py:\d+ in pass_by"
    words = rf'process 1 hangs on {host}: no progress in "data" for .*{where}'
    assert re.search(words, (place / "hang" / "roxxel_system.log").read_text())
    dumps = sorted((place / "hang" / "stacks").iterdir(), key=lambda p: p.name[16:])
    assert [re.search(r"process_(\d)_", path.name)[1] for path in dumps] == ["0", "1"]
    text = dumps[1].read_text()
    assert f"host {host}" in text
    main = text[text.index("thread MainThread") :]
    assert re.search(r'run_child.py", line \d+, in pass_by\n +time.sleep', main)


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_an_exception_in_one_process_ends_both(place, repo_root, process):
    workdir = place / f"raise-{process}"
    told = {"process": process, "at": "data", "action": "raise"}
    codes, outputs = run(workdir, told, count=2, repo_root=repo_root)
    assert codes == [1, 1], outputs
    cause = f"OSError: broken in process {process}"
    assert "Traceback" in outputs[process]
    assert cause in outputs[process]
    assert f"process {process} failed on" in outputs[1 - process]
    own = "roxxel_system.log" if process == 0 else "roxxel_error_process_1.log"
    assert cause in (workdir / own).read_text()
    codes, outputs = run(workdir, {"at": "none"}, count=2, repo_root=repo_root)
    assert codes == [0, 0], outputs
    assert [row["step"] for row in rows(workdir)] == [str(n) for n in range(1, 13)]


@pytest.mark.slow
def test_a_killed_process_takes_the_other_with_it(place, repo_root):
    told = {"process": 1, "at": "data", "action": "kill"}
    begin = time.monotonic()
    codes, outputs = run(place / "kill", told, count=2, repo_root=repo_root)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, 42), outputs
    assert time.monotonic() - begin < 150  # the heartbeat's limit is 30 s
