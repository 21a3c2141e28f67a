"""A trace of some steps of a run, and its summary."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roxxel import main as main_lib
from roxxel import optim
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.train import operations, profile
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


class Layered(Bigram):
    """Has an operation whose name is known."""

    def __call__(self, tokens, *, segment_ids_BL=None, state=None):
        logits, state = super().__call__(tokens, state=state)
        with jax.named_scope("softened"):
            logits = jnp.tanh(logits @ jnp.eye(16))
        return logits, state


def trainer(tmp_path, **options):
    dataset = Roxxel(tmp_path / "train_*.rox")
    if not list(tmp_path.glob("*.rox")):
        rng = np.random.default_rng(0)
        dataset.write([rng.integers(0, 16, 1100).astype(np.uint8)])
    schedule = optim.warmup_cosine(peak=0.05, total_steps=20)
    return Trainer(
        model=Layered,
        optimizer=optim.adamw(schedule=schedule),
        stream=dataset.stream(8, 8, seed=3, overlap=1),
        total_steps=20,
        **options,
    )


def steps_in(trace):
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    return sorted(
        dict(event.stats)["step_num"]
        for plane in planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    )


def test_exactly_the_steps_asked_for_are_traced(tmp_path):
    work = tmp_path / "run"
    assert trainer(tmp_path, profile="4:7", stop_after=9).run(work) == 0
    (trace,) = (work / "profile").rglob("*.xplane.pb")
    assert steps_in(trace) == [5, 6, 7]
    text = (work / "profile.txt").read_text()
    assert text.startswith("Profile of the steps 5 to 7: ")
    assert str(trace) in text
    host, operations_text = text.split("\n\n")[1:3]
    assert {line.split()[-1] for line in host.splitlines()[2:]} >= {"step", "data"}
    assert "softened" in operations_text
    shares = [
        float(line.split()[1].rstrip("%")) for line in operations_text.splitlines()[2:]
    ]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert text.strip() in (work / "roxxel_system.log").read_text()
    # The losses are those of a run without it, and nothing is left traced.
    plain = tmp_path / "plain"
    assert trainer(tmp_path, stop_after=9).run(plain) == 0
    assert losses(work) == losses(plain)
    with jax.profiler.trace(tmp_path / "own"):
        pass


def losses(work):
    table = (work / "roxxel_metrics.csv").read_text().splitlines()
    return [row.split(",")[:2] for row in table]


def test_steps_that_are_done_are_not_traced(tmp_path):
    work = tmp_path / "run"
    assert trainer(tmp_path, stop_after=6).run(work) == 0
    assert trainer(tmp_path, profile="2:4", stop_after=8).run(work) == 0
    assert not (work / "profile").exists()
    assert "No profile: step 6 is done" in (work / "roxxel_system.log").read_text()
    # Of a range that has begun, what is left.
    assert trainer(tmp_path, profile="2:10", stop_after=12).run(work) == 0
    assert "the steps 9 to 10" in (work / "profile.txt").read_text()


def test_a_trace_that_cannot_be_written_stops_no_run(tmp_path):
    work = tmp_path / "run"
    with jax.profiler.trace(tmp_path / "own"):
        assert trainer(tmp_path, profile="2:4", stop_after=5).run(work) == 0
    assert "WARNING No profile: " in (work / "roxxel_system.log").read_text()


def test_an_error_ends_the_trace(tmp_path):
    def broken(model, batch, loss_mask=None):
        raise ValueError("broken on purpose")

    spec = trainer(tmp_path, profile="0:2", loss=broken)
    with pytest.raises(ValueError, match="broken on purpose"):
        spec.run(tmp_path / "run")
    with jax.profiler.trace(tmp_path / "own"):
        pass


@pytest.mark.parametrize(
    "text", ["", "7", "7:", ":7", "7:7", "9:8", "-1:4", "1:2:3", "a:b", "0:21", "1.0:2"]
)
def test_wrong_ranges_are_one_line(text, tmp_path):
    with pytest.raises(ConfigError) as error:
        trainer(tmp_path, profile=text)
    assert "profile" in str(error.value)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_flag_is_checked_without_a_device(capsys):
    command = ["--fdl_config=ssm_tiny", "--mode=check", "--fiddler=synthetic_data"]
    assert main_lib.main([*command, "--profile=5:3"]) == 2
    assert "START:STOP" in capsys.readouterr().err
    assert main_lib.main([*command, "--profile=3:5"]) == 0
    assert "traces the steps 4 to 5" in capsys.readouterr().out


def test_own_time_is_that_without_what_is_inside():
    events = [
        ("loop", 0.0, 100.0),
        ("dot", 10.0, 40.0),
        ("inner", 15.0, 20.0),
        ("dot", 50.0, 90.0),
        ("after", 100.0, 130.0),
    ]
    found: dict[str, float] = {}
    for name, seconds in operations.own_seconds(events):
        found[name] = found.get(name, 0.0) + seconds * 1e9
    assert found == pytest.approx({"loop": 30, "dot": 65, "inner": 5, "after": 30})


def test_origins_come_from_the_compiled_program():
    def squared(x):
        with jax.named_scope("part"):
            return (x @ x).sum()

    program = jax.jit(squared).lower(jnp.ones((8, 8))).compile()
    assert any("part/" in origin for origin in operations.origins(program).values())
    assert operations.origins(lambda: None) == {}


ONE_OF_TWO = """
import pathlib, sys
index, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
from tests.test_profile import trainer
sys.exit(trainer(folder, profile="3:5", stop_after=6).run(folder / "run"))
"""


@pytest.mark.slow
def test_two_processes_have_a_folder_each(tmp_path):
    trainer(tmp_path)  # writes the data
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = pathlib.Path(__file__).parent.parent
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_TWO, str(index), str(port), str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.DEVNULL,
        )
        for index in range(2)
    ]
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    for index in range(2):
        folder = tmp_path / "run" / "profile" / f"process_{index}"
        (trace,) = folder.rglob("*.xplane.pb")
        assert steps_in(trace) == [4, 5]
    assert "the steps 4 to 5" in (tmp_path / "run" / "profile.txt").read_text()


def test_parse():
    assert profile.parse(None) is None
    assert profile.parse("10:20") == (10, 20)
