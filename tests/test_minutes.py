"""A length in minutes becomes steps once, and stays."""

import json

import pytest

from roxxel.config import arguments, minutes, resolve
from roxxel.train import calibrate

FLAGS = (
    "--fdl_config=experiments.ssm_tiny(d_model=32, n_layers=1, seq_len=32)",
    "--fdl.total_steps.steps=None",
)


@pytest.fixture
def resolved(tmp_path):
    def run(value):
        line = arguments.parse([*FLAGS, f"--fdl.total_steps.minutes={value}"])
        found = resolve.experiment(line)
        notes = minutes.resolve(found, tmp_path / "run", "--workdir=run")
        return found.config, notes

    return run


def test_minutes_become_steps_once_and_are_kept(resolved, tmp_path, monkeypatch):
    config, notes = resolved(2)
    record = json.loads((tmp_path / "run/budget.json").read_text())
    rate, steps = record["tokens_per_second"], record["steps"]
    assert rate > 0
    assert steps == -(-int(rate * 120) // (8 * 32))
    assert (config.total_steps.steps, config.total_steps.minutes) == (steps, None)
    assert config.schedule.total_steps is config.total_steps
    assert f"{steps:,} steps" in notes[0]

    monkeypatch.setattr(calibrate, "tokens_per_second", lambda trainer: 1 / 0)
    again, _ = resolved(2)
    assert again.total_steps.steps == steps
    longer, _ = resolved(4)  # at the rate that was recorded
    assert longer.total_steps.steps == pytest.approx(2 * steps, abs=1)


def test_a_graph_without_minutes_is_left_alone(tmp_path):
    found = resolve.experiment(arguments.parse([FLAGS[0]]))
    assert minutes.resolve(found, tmp_path / "run", "--workdir=run") == []
    assert not (tmp_path / "run").exists()
