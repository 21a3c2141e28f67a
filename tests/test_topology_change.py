"""A run goes on with other processes, devices and mesh axes: same data, same losses."""

import collections
import csv
import json
import math
import os
import pathlib
import subprocess
import sys

import fiddle as fdl
import jax
import pytest
from flax import nnx

from benchmarks.chaosbench.recording import FOLDER_VARIABLE
from experiments.ssm_tiny import ssm_tiny
from roxxel import sharding
from tests import topology_runs
from tests.tiny import compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")

ROOT = pathlib.Path(__file__).parent.parent
CUT = '{"data": 2, "fsdp": 4}'
SSM = "experiments.ssm_tiny(d_model=32, n_layers=1, seq_len=32, batch_size=8, steps=24)"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Runs the bigram on the eight devices of this process, from where it stands."""

    def run(name, **fields):
        rows = tmp_path / name / "rows"
        rows.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(FOLDER_VARIABLE, str(rows))
        config = topology_runs.bigram()
        for field, value in fields.items():
            setattr(config, field, value)
        assert fdl.build(config).run(tmp_path / name) == 0
        return tmp_path / name

    return run


@pytest.fixture
def processes(tmp_path):
    """Runs an experiment in several processes of so many devices each."""

    def run(name, count, devices, *words):
        rows = tmp_path / name / "rows"
        rows.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "launch.local", f"--processes={count}"),
                *(f"--devices={devices}", "--", f"--workdir={tmp_path / name}", *words),
            ],
            cwd=ROOT,
            env=os.environ
            | {
                FOLDER_VARIABLE: str(rows),
                "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        where = f"on {count * devices} cpu device(s) in {count} process(es)"
        assert count == 1 or where in done.stdout + done.stderr
        return tmp_path / name

    return run


def rows(workdir):
    """Step -> the sums of its rows; each record of a step has to be the same."""
    found = collections.defaultdict(dict)
    for path in (workdir / "rows").iterdir():
        for line in map(json.loads, path.read_text().splitlines()):
            for index, total in line["rows"].items():
                assert found[line["step"]].setdefault(int(index), total) == total
    return dict(found)


def losses(workdir):
    with open(workdir / "roxxel_metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    return [(int(row["step"]), float(row["loss"])) for row in table if row["loss"]]


def check_same(changed, undisturbed, steps):
    assert rows(changed) == rows(undisturbed)
    assert [len(batch) for _, batch in sorted(rows(changed).items())] == [8] * steps
    pairs = zip(losses(changed), losses(undisturbed), strict=True)
    for number, ((step, loss), (other_step, other)) in enumerate(pairs, 1):
        assert step == other_step == number
        assert math.isclose(loss, other, rel_tol=1e-5), step


def test_from_two_processes_to_eight_devices_and_other_axes(here, processes):
    undisturbed = here("undisturbed")
    processes(
        *("changed", 2, 2, "--fdl_config=tests.topology_runs.bigram"),
        "--fdl.stop_after=4",
    )
    here("changed", mesh_axes={"data": 2, "fsdp": 4}, stop_after=8)
    changed = here("changed")
    check_same(changed, undisturbed, topology_runs.STEPS)


def test_on_the_same_topology_every_bit_is_the_same(here):
    axes = {"data": 4, "fsdp": 2}
    undisturbed = here("undisturbed", mesh_axes=axes)
    for last in (3, 7, None):
        resumed = here("resumed", mesh_axes=axes, stop_after=last)
    assert losses(resumed) == losses(undisturbed)
    assert rows(resumed) == rows(undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)  # 12 processes, which share what cores there are
def test_from_four_processes_to_two_to_one_and_back(processes):
    words = (f"--fdl_config={SSM}", "--fdl.evaluation=None", "--fdl.sample=None")
    words += ("--fiddler=benchmarks.chaosbench.recording.rows",)
    undisturbed = processes("undisturbed", 1, 4, *words)
    processes("changed", 4, 1, *words, "--fdl.stop_after=6")
    processes("changed", 2, 2, *words, "--fdl.stop_after=12")
    processes("changed", 1, 8, *words, "--fdl.stop_after=18", f"--fdl.mesh_axes={CUT}")
    changed = processes("changed", 4, 1, *words)
    check_same(changed, undisturbed, 24)


def test_an_optimizer_with_masked_entries_has_its_place_on_a_mesh():
    trainer = fdl.build(ssm_tiny(d_model=32, n_layers=1, steps=3))  # Muon beside Adam
    mesh = sharding.make_mesh({"data": 2, "fsdp": 4})
    state = nnx.state(sharding.abstract_on(mesh, trainer.create))
    for leaf in jax.tree.leaves(state):
        assert leaf.sharding.mesh.shape == mesh.shape
