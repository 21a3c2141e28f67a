"""benchmarks/chaos.py: its plan, what it sees, and a small run of it."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from chaosbench import kills, results  # noqa: E402


def test_the_plan_is_a_function_of_the_seed():
    plan = kills.plan(3, 40, 2, 100)
    assert plan == kills.plan(3, 40, 2, 100) != kills.plan(4, 40, 2, 100)
    batches = [kill.batches for kill in plan if kill.batches is not None]
    assert len(plan) == 40
    assert 0 < len(batches) < 40  # some come in the start
    assert all(1 <= count <= 5 for count in batches)
    assert {kill.number for kill in plan} == {signal.SIGKILL, signal.SIGTERM}
    assert {kill.target for kill in plan} == {None, 0, 1}


def record(folder, process, *lines):
    text = "".join(
        json.dumps({"pid": pid, "step": step, "rows": rows}) + "\n"
        for pid, step, rows in lines
    )
    (folder / f"rows.{process}.jsonl").write_text(text)


def test_rows_of_an_attempt_that_was_killed_do_not_count(tmp_path):
    # Step 1 is trained again; the last line of the first attempt is cut by the kill.
    record(tmp_path, 0, (7, 0, {"0": 10}), (7, 1, {"0": 11}))
    path = tmp_path / "rows.0.jsonl"
    again = '{"pid": 7, "st{"pid": 8, "step": 1, "rows": {"0": 12}}\n'
    path.write_text(path.read_text() + again)
    record(tmp_path, 1, (9, 0, {"1": 20}), (9, 1, {"1": 21}))
    rows, wrong = results.trained_rows(tmp_path)
    assert wrong == []
    assert rows == {0: {0: 10, 1: 20}, 1: {0: 12, 1: 21}}
    assert results.last_step(tmp_path) == 1


def test_gaps_and_jumps_are_seen(tmp_path):
    record(tmp_path, 0, (7, 0, {"0": 1}), (7, 2, {"0": 2}), (8, 5, {"0": 3}))
    _, wrong = results.trained_rows(tmp_path)
    assert wrong == [
        "rows.0.jsonl: step 2 follows 0",
        "rows.0.jsonl: steps 3 to 5 are skipped",
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)  # five starts of two processes, on what cores there are
def test_two_kills_leave_no_trace():
    done = subprocess.run(
        [
            *(sys.executable, "benchmarks/chaos.py", "--kills=2", "--steps=30"),
            "--seed=1",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no difference after 2 kills" in done.stdout
