"""`python -m launch.local`: processes that start, fail, stop and end as one."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import fake_roxxel

LINE = ("--", "--fdl_config=experiments.none")
MAX_SECS = 60


@pytest.fixture
def place(tmp_path):
    fake_roxxel.install(tmp_path)
    return tmp_path


@pytest.fixture
def start(place, repo_root):
    """Starts the launcher with the stand-in for runs."""
    started = []

    def run(*words, env=None):
        environment = os.environ | {"PYTHONPATH": str(repo_root)} | (env or {})
        process = subprocess.Popen(
            [sys.executable, "-m", "launch.local", *words],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process):
    out, err = process.communicate(timeout=MAX_SECS)
    return process.returncode, out, err


def attempts(place, index):
    lines = (place / f"attempts.{index}").read_text().splitlines()
    return [json.loads(line) for line in lines]


def wait_for(*paths):
    until = time.monotonic() + MAX_SECS
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, paths
        time.sleep(0.02)


def test_each_process_is_told_who_it_is_and_its_lines_say_it(start, place):
    code, out, err = ended(
        start(
            *("--processes=3", "--devices", "2", *LINE),
            *("--do=say:hello,err:why", "--do.1=say:one,part:end", "--fdl.a=b c"),
            env={"XLA_FLAGS": "--xla_cpu_x=1"},
        )
    )
    assert code == 0, err
    lines = ["[0] hello", "[1] end", "[1] one", "[2] hello"]
    assert sorted(out.splitlines()) == lines
    assert sorted(err.splitlines()) == ["[0] why", "[2] why"]
    seen = [attempts(place, i)[0] for i in range(3)]
    assert [s["env"]["ROXXEL_PROCESS_ID"] for s in seen] == ["0", "1", "2"]
    assert {s["env"]["ROXXEL_NUM_PROCESSES"] for s in seen} == {"3"}
    (coordinator,) = {s["env"]["ROXXEL_COORDINATOR"] for s in seen}
    assert coordinator.startswith("127.0.0.1:")
    for one in seen:
        assert one["argv"][0] == "--fdl_config=experiments.none"
        assert one["argv"][-1] == "--fdl.a=b c"
        # The user's own flags stay.
        flags = "--xla_cpu_x=1 --xla_force_host_platform_device_count=2"
        assert one["env"]["XLA_FLAGS"] == flags
        assert one["env"]["JAX_PLATFORMS"] == "cpu"


def test_one_process_needs_nobody_to_join(start, place):
    inherited = {"ROXXEL_COORDINATOR": "x:1", "ROXXEL_NUM_PROCESSES": "4"}
    assert ended(start(*LINE, env=inherited))[0] == 0
    assert not any(name.startswith("ROXXEL") for name in attempts(place, 0)[0]["env"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # The one that failed first is the cause, what its end did to others is not.
        (("--do.1=exit:2", "--do.0=signal,exit:1"), 2),
        (("--do.0=kill:9", "--do.1=signal,exit:42"), 137),
        # It does not listen: made to end.
        (("--do.0=exit:1", "--do.1=ignore,hang"), 1),
    ],
)
def test_when_one_fails_all_end_with_its_code(start, place, words, expected):
    process = start("--processes=2", "--grace_secs=1", *LINE, *words)
    assert ended(process)[0] == expected
    assert len(attempts(place, 0)) == len(attempts(place, 1)) == 1  # no restart


def test_after_a_stop_that_saved_the_group_starts_again(start, place):
    words = ("--do.0=codes:42/42/0", "--do.1=nap:0.1,codes:42/42/0")
    code, _, err = ended(start("--processes=2", "--backoff_secs=0", *LINE, *words))
    assert code == 0
    assert len(attempts(place, 0)) == len(attempts(place, 1)) == 3
    assert "local: restart 2 in 0 s." in err


def test_restarts_have_a_limit(start, place):
    words = ("--restarts=1", "--backoff_secs=0", *LINE, "--do=exit:42")
    code, _, err = ended(start(*words))
    assert (code, len(attempts(place, 0))) == (42, 2)
    assert "--restarts=1 are used up" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_all_and_is_waited_for(start, place, number):
    words = "--do=touch:up.{},signal,nap:0.1,touch:saved.{},exit:42"
    words = [f"--do.{i}=" + words.format(i, i)[5:] for i in range(2)]
    process = start("--processes=2", *LINE, *words)
    wait_for(place / "up.0", place / "up.1")
    process.send_signal(number)
    assert ended(process)[0] == 42
    assert (place / "saved.0").exists()
    assert (place / "saved.1").exists()
    assert len(attempts(place, 0)) == 1  # told to stop: not started again


def test_a_signal_between_attempts_ends_the_launch(start, place):
    process = start("--backoff_secs=50", *LINE, "--do=exit:42")
    for line in process.stderr:
        if "restart 1 in 50 s" in line:
            break
    process.terminate()
    assert ended(process)[0] == 42
    assert len(attempts(place, 0)) == 1


def test_a_killed_launcher_leaves_no_process_behind(start, place):
    if sys.platform != "linux":
        pytest.skip("the parent's death is a signal on Linux only")
    process = start(*LINE, "--do=touch:up,signal,touch:saved,exit:42")
    wait_for(place / "up")
    process.kill()
    wait_for(place / "saved")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--proceses=2", *LINE), "unknown flag '--proceses=2' before `--`. Did you"),
        (("--processes=0", *LINE), "argument --processes: expected a whole number"),
        (("--", "--workdir=x"), "no experiment: give its line behind `--`"),
    ],
)
def test_a_wrong_line_is_one_line(start, place, words, said):
    code, out, err = ended(start(*words))
    assert (code, out) == (2, "")
    assert err.startswith("local: error: ")
    assert said in err
    assert err.count("\n") == 1
    assert not list(place.glob("attempts.*"))


def test_a_dry_run_prints_what_would_run(start, place):
    words = ("--processes=2", "--devices=4", "--port=7777", "--dry_run", *LINE)
    code, out, _ = ended(start(*words, "--fdl.a=b c"))
    assert code == 0
    assert not list(place.glob("attempts.*"))
    for index, line in enumerate(out.splitlines()):
        assert line == (
            f"[{index}] ROXXEL_COORDINATOR=127.0.0.1:7777 ROXXEL_NUM_PROCESSES=2 "
            f"ROXXEL_PROCESS_ID={index} JAX_PLATFORMS=cpu "
            "XLA_FLAGS=--xla_force_host_platform_device_count=4 PYTHONUNBUFFERED=1 "
            f"{sys.executable} -m roxxel.main --fdl_config=experiments.none "
            "'--fdl.a=b c'"
        )
