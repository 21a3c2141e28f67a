"""`launch/tpu_vm.sh`, with a `gcloud` that records its calls and runs them here."""

import json
import signal
import subprocess
import time

import pytest

from tests import fake_roxxel, gcloud_stub

LINE = ("--", "--fdl_config=experiments.ssm_tiny", "--workdir=/runs/two", "--fdl.a=b c")
AT = ("--name=two", "--zone=z")


@pytest.fixture
def place(tmp_path):
    """A repository with a stand-in for runs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    fake_roxxel.install(folder)
    for name in ("configs", "experiments", "launch"):
        (folder / name).mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (folder / name).touch()
    return folder


@pytest.fixture
def cloud(tmp_path):
    return tmp_path / "cloud"


@pytest.fixture
def start(place, cloud, repo_root):
    env = gcloud_stub.install(cloud, repo_root)

    def run(verb, *words):
        return subprocess.Popen(
            ["bash", str(repo_root / "launch/tpu_vm.sh"), verb, *words],
            cwd=place,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.fixture
def call(start):
    def run(*words, code=0):
        process = start(*words)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        return out, err

    return run


@pytest.fixture
def slice_(cloud, place, start):
    """One slice that was created before."""
    gcloud_stub.make(cloud, ["two"], place)


def attempts(cloud, slice_, worker):
    (log,) = (cloud / slice_ / str(worker) / "roxxel").glob("attempts.*")
    return [json.loads(line) for line in log.read_text().splitlines()]


def wait_for(*paths):
    until = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until, paths
        time.sleep(0.02)


def test_create_run_again_and_delete(call, cloud):
    _, err = call("create", *AT, "--slices=2", "--type=v5litepod-8", "--spot")
    assert "two is PROVISIONING." in err
    (created,) = [words for words in gcloud_stub.calls(cloud) if "create" in words]
    assert created == [
        *("compute", "tpus", "queued-resources", "create", "two", "--zone=z"),
        *("--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5-lite"),
        *("--spot", "--node-count=2", "--node-prefix=two"),
    ]
    _, err = call("create", *AT, "--slices=2")  # nothing is asked for twice
    assert "two is there already." in err
    for slice_ in ("two-0", "two-1"):
        for worker in (0, 1):
            words = (cloud / slice_ / str(worker) / "roxxel/pip").read_text()
            assert "install --quiet jax[tpu]" in words
    # The number of slices is known from the queued resource.
    out, _ = call("run", *AT, *LINE, "--do=say:hello,codes:42/0")
    assert sorted(out.splitlines()).count("[two-1] hello") == 4
    seen = [attempts(cloud, f"two-{s}", w) for s in (0, 1) for w in (0, 1)]
    assert [len(one) for one in seen] == [2, 2, 2, 2]
    assert [one[0]["env"]["ROXXEL_PROCESS_ID"] for one in seen] == list("0123")
    assert seen[3][1]["argv"][:3] == list(LINE[1:])
    call("delete", *AT)
    assert not (cloud / "two-0").exists()
    _, err = call("delete", *AT)
    assert "two is not there." in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--do.0=exit:3", "--do=exit:42"), 3),
        (("--do.1=exit:5",), 5),
    ],
)
def test_the_exit_code_is_that_of_the_run(slice_, call, cloud, words, code):
    call("run", *AT, *LINE, *words, code=code)
    assert len(attempts(cloud, "two", 0)) == 1


def test_restarts_have_a_limit(slice_, call, cloud):
    _, err = call("run", *AT, "--restarts=1", *LINE, "--do=exit:42", code=42)
    assert "--restarts=1 are used up" in err
    assert len(attempts(cloud, "two", 1)) == 2


def test_ctrl_c_stops_all_after_saving(slice_, start, cloud):
    process = start("run", *AT, *LINE, "--do=touch:up,signal,touch:saved,exit:42")
    homes = [cloud / "two" / str(worker) / "roxxel" for worker in (0, 1)]
    wait_for(*(home / "up" for home in homes))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 42
    assert all((home / "saved").exists() for home in homes)
    assert len(attempts(cloud, "two", 0)) == 1


def test_restart_stops_what_runs_and_takes_the_new_code(
    slice_, call, start, cloud, place
):
    first = start("run", *AT, "--restarts=0", *LINE, "--do=touch:up,signal,exit:42")
    homes = [cloud / "two" / str(worker) / "roxxel" for worker in (0, 1)]
    wait_for(*(home / "up" for home in homes))
    out, _ = call("run", *AT, *LINE, "--do=exit:0", code=1)
    assert "a run is there already" in out
    (place / "experiments/new.py").touch()
    call("restart", *AT, *LINE, "--do=say:again")
    first.communicate(timeout=60)
    assert first.returncode == 42
    assert all((home / "experiments/new.py").exists() for home in homes)
    assert len(attempts(cloud, "two", 0)) == 2


def test_a_dry_run_calls_nothing(call, cloud):
    for verb, line in (
        ("create", ()),
        ("run", LINE),
        ("restart", LINE),
        ("delete", ()),
    ):
        out, err = call(verb, *AT, "--slices=2", "--dry_run", *line)
        assert err == ""
        assert out.startswith("'gcloud' 'compute' 'tpus' ")
        assert "'two-1'" in out or verb == "delete"
        assert "--fdl.a=b c" in out or not line
    assert not (cloud / "calls.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("start", *AT),
            "no such verb: start; expected create, run, restart or delete.",
        ),
        (("create", "--zone=z"), "--name=: expected up to 39 of a-z"),
        (("create", "--name=two"), "--zone=ZONE is missing."),
        (("create", *AT, "--slices=0"), "--slices=0: expected a whole number from 1."),
        (("create", *AT, "--slice=2"), "unknown flag or missing value: --slice=2."),
        (("run", *AT), "no experiment: give its line behind --"),
        (("delete", *AT, *LINE), "delete takes no experiment"),
    ],
)
def test_a_wrong_line_is_one_line(call, cloud, words, said):
    out, err = call(*words, code=2)
    assert out == ""
    assert err.startswith("tpu_vm.sh: error: ")
    assert said in err
    assert err.count("\n") == 1
    assert not (cloud / "calls.jsonl").exists()
