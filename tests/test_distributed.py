"""How the processes of a run find each other, agree, and end together."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from roxxel import distributed, roll_call
from roxxel.errors import ConfigError

ROXXEL = ("ROXXEL_COORDINATOR", "ROXXEL_NUM_PROCESSES", "ROXXEL_PROCESS_ID")
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
NOBODY = (None, None, None)


@pytest.fixture
def environment(monkeypatch):
    """Sets variables in a world where nothing else tells of processes."""
    for name in list(os.environ):
        if name.startswith(("ROXXEL_", "SLURM_", "OMPI_", "KUBERNETES_", "JAX_COORD")):
            monkeypatch.delenv(name)

    def put(values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("variables", "given", "words"),
    [
        ({}, NOBODY, "one process"),
        (
            dict(zip(ROXXEL, ("a:1", "2", "1"), strict=True)),
            NOBODY,
            "process 1 of 2, coordinator a:1 (ROXXEL_COORDINATOR=a:1)",
        ),
        (  # flags before variables
            dict(zip(ROXXEL, ("a:1", "2", "1"), strict=True)),
            ("b:2", "4", "3"),
            "process 3 of 4, coordinator b:2 (--coordinator=b:2)",
        ),
        (  # variables before what jax finds
            SLURM | dict(zip(ROXXEL, ("a:1", "2", "0"), strict=True)),
            NOBODY,
            "process 0 of 2, coordinator a:1",
        ),
        (
            SLURM,
            NOBODY,
            "process 1 of 2, coordinator node1:61447 (found by jax: slurm)",
        ),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, NOBODY, "one process"),
        (OPEN_MPI, NOBODY, "process 3 of 4, coordinator 10.96.0.1:"),
    ],
)
def test_who_says_how_many_processes_there_are(environment, variables, given, words):
    environment(variables)
    assert words in str(distributed.choose(given))


def test_devices_are_shared_out_where_processes_share_a_host(environment):
    environment(SLURM)
    alone = {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert distributed.choose().local_device_ids == (0,)
    environment(alone)
    assert distributed.choose().local_device_ids is None
    environment(OPEN_MPI | {"SLURM_JOB_ID": ""})


@pytest.mark.parametrize(
    ("given", "timeout", "words"),
    [
        (("h:1", "2", None), None, "--process_id must be given too"),
        (("h", "2", "0"), None, "coordinator 'h': expected host:port"),
        (("h:port", "2", "0"), None, "coordinator 'h:port': expected host:port"),
        (("h:1", "two", "0"), None, "--num_processes=two: expected a whole number"),
        (("h:1", "2", "2"), None, "--process_id=2: expected less than"),
        (NOBODY, "0", "--init_timeout=0: expected seconds"),
        (NOBODY, "soon", "--init_timeout=soon: expected seconds"),
    ],
)
def test_wrong_values_are_named(environment, given, timeout, words):
    environment({})
    with pytest.raises(ConfigError, match=words):
        distributed.check(given, timeout)


def in_threads(*calls):
    """What each call raised, or None; all at the same time."""
    results = [None] * len(calls)

    def work(index, call):
        try:
            call()
        except Exception as err:
            results[index] = err

    threads = [
        threading.Thread(target=work, args=(index, call))
        for index, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_a_roll_call_of_three():
    address = f"127.0.0.1:{free_port()}"
    assert (
        in_threads(
            lambda: roll_call.gather(address, 3, 20),
            lambda: roll_call.call(address, 1, 3, 20),
            lambda: roll_call.call(address, 2, 3, 20),
        )
        == [None] * 3
    )
    # The port is free again at once.
    assert in_threads(lambda: roll_call.gather(address, 1, 5)) == [None]


def test_who_is_missing_is_told_to_all_that_came():
    address = f"127.0.0.1:{free_port()}"
    errors = in_threads(
        lambda: roll_call.gather(address, 4, 1.5),
        lambda: roll_call.call(address, 2, 4, 1.5),
    )
    for error in errors:
        assert isinstance(error, roll_call.JoinError)
        assert f"coordinator {address}: 2 of 4 processes came within 1.5 s" in str(
            error
        )
        assert "missing: 1, 3. --init_timeout raises the limit" in str(error)


def test_processes_that_contradict_each_other():
    address = f"127.0.0.1:{free_port()}"
    errors = in_threads(
        lambda: roll_call.gather(address, 2, 10),
        lambda: roll_call.call(address, 1, 3, 10),
    )
    assert "process 1 was started as one of 3 processes, process 0 as one of 2" in str(
        errors[0]
    )
    assert str(errors[1]) == str(errors[0])


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("127.0.0.1", "Connection refused"),
        ("no-such-host.invalid", "not known|resolution|No address"),
    ],
)
def test_a_coordinator_that_cannot_be_reached(host, words):
    address = f"{host}:{free_port()}"
    with pytest.raises(roll_call.JoinError, match=words) as caught:
        roll_call.call(address, 1, 2, 1)
    assert f"process 1 of 2 cannot reach the coordinator {address}" in str(caught.value)
    assert "--init_timeout raises the limit" in str(caught.value)


def test_somebody_else_at_the_coordinators_port():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer():
            while True:
                try:
                    line, _ = other.accept()
                except OSError:  # closed
                    return
                with line:
                    line.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(roll_call.JoinError, match="no process of this run"):
            roll_call.call(f"127.0.0.1:{port}", 1, 2, 1)


def test_a_port_in_use_is_told_at_once():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(roll_call.JoinError, match=f"cannot listen on port {port}"):
            roll_call.gather(f"127.0.0.1:{port}", 2, 60)


def test_strangers_do_not_count_as_processes():
    address = f"127.0.0.1:{free_port()}"

    def stranger():
        host, port = address.split(":")
        for _ in range(100):
            try:
                with socket.create_connection((host, int(port)), timeout=1) as line:
                    line.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return
            except OSError:
                continue

    errors = in_threads(
        lambda: roll_call.gather(address, 2, 10),
        stranger,
        lambda: roll_call.call(address, 1, 2, 10),
    )
    assert errors == [None] * 3


# -- the command line ----------------------------------------------------------------


def start(workdir, port, index, *flags, count=2):
    command = [
        *(sys.executable, "-m", "roxxel.main"),
        "--fdl_config=experiments.ssm_tiny(d_model=32, n_layers=1, seq_len=32, "
        "batch_size=4, steps=4)",
        *("--fdl.evaluation=None", "--fdl.sample=None", f"--workdir={workdir}"),
        *(f"--coordinator=127.0.0.1:{port}", f"--num_processes={count}"),
        *(f"--process_id={index}", *flags),
    ]
    return subprocess.Popen(
        command,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcomes(processes):
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    codes = [process.returncode for process in processes]
    return list(zip(codes, outputs, strict=True))


def test_one_of_two_processes_ends_in_the_time_limit(tmp_path, repo_root, monkeypatch):
    monkeypatch.chdir(repo_root)
    port = free_port()
    ((code, output),) = outcomes([start(tmp_path / "run", port, 0, "--init_timeout=1")])
    assert code == 1, output
    assert "1 of 2 processes came within 1 s; missing: 1" in output.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_with_other_configurations_end_with_2(
    tmp_path, repo_root, monkeypatch
):
    monkeypatch.chdir(repo_root)
    monkeypatch.setenv("ROXXEL_CACHE", str(tmp_path / "cache"))
    port = free_port()
    lead = start(tmp_path / "run", port, 0)
    other = start(tmp_path / "run", port, 1, "--fdl.schedule.peak=0.5")
    for code, output in outcomes([lead, other]):
        assert code == 2, output
        assert "process 1 differs from process 0 in the configuration: " in output
        assert "peak" in output
        assert "0.5 there" in output
    assert not (tmp_path / "run").exists()


JOIN_AFTER_USE = """
import sys
import numpy as np
import roxxel, roxxel.main, roxxel.checkpoint
from roxxel import Logger, Roxxel, distributed
rox = Roxxel(sys.argv[1] + "/data.rox")
rox.write([np.arange(100, dtype=np.uint8)])
assert rox.num_elements == 100
Logger
import jax
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
assert str(distributed.initialize(sys.argv[2], 1, 0)).endswith("0 of 1, coordinator "
    + sys.argv[2] + " (--coordinator=" + sys.argv[2] + ")")
assert not xla_bridge.backends_are_initialized()
jax.distributed.initialize(sys.argv[2], 1, 0)
assert jax.process_index() == 0
"""


def test_joining_is_possible_after_imports_writing_and_opening(tmp_path, run_python):
    address = f"127.0.0.1:{free_port()}"
    run_python("-c", JOIN_AFTER_USE, tmp_path, address, check=True)
