"""Phases of other batch shapes: compiled ahead, resumed anywhere, bit for bit."""

import collections
import functools
import json
import os
import signal
import threading

import jax
import numpy as np
import pytest

from roxxel import MixtureStream, Phase, optim
from roxxel.dataset import Roxxel
from roxxel.errors import EXIT_RESTART, ConfigError
from roxxel.train import programs
from roxxel.train.trainer import Trainer
from tests.test_trainer import Disturbed, assert_same_run, rows
from tests.tiny import Bigram, compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")

STEPS = 20
BOUNDARIES = (6, 13)


@pytest.fixture
def mix(tmp_path):
    rng = np.random.default_rng(0)
    data = {}
    for name in ("one", "two"):
        data[name] = Roxxel(tmp_path / f"{name}.rox")
        data[name].write([rng.integers(0, 16, 4000).astype(np.uint8)])
    return data


def phased(mix):
    phases = [
        Phase(steps=6, batch_size=8, seq_len=8),
        Phase(steps=7, batch_size=16, seq_len=16, weights={"one": 1, "two": 3}),
        Phase(steps=7, batch_size=8, seq_len=8),
    ]
    return MixtureStream(mix, phases=phases, seed=3, overlap=1)


def trainer(mix, *, stream=None, **kw):
    stream = stream or phased(mix)
    total = optim.total_steps(stream)
    schedule = optim.warmup_cosine(peak=0.05, total_steps=total)
    options = {
        "model": Bigram,
        "optimizer": optim.adamw(schedule=schedule),
        "schedule": schedule,
        "stream": stream,
        "total_steps": total,
        "save_every": 5,
    }
    return Trainer(**(options | kw))


@pytest.fixture
def compiled(monkeypatch):
    """Compilations of the step by the thread they ran on, and steps by program."""
    seen = collections.Counter()
    compiling = programs.StepPrograms._compile

    def counted(self, key, batch):
        seen[threading.current_thread().name, batch.shape] += 1
        return compiling(self, key, batch)

    monkeypatch.setattr(programs.StepPrograms, "_compile", counted)
    return seen


def test_phases_train_with_each_shape_compiled_once_and_ahead(mix, tmp_path, compiled):
    on_main, begun = [], []

    def listen(event, duration, **kw):
        if event.endswith("backend_compile_duration"):
            on_main.append((len(begun), threading.current_thread().name))

    def counting(step):
        begun.append(step)

    # Time to compile is given before each boundary: no boundary may then compile.
    waiting = Waiting(phased(mix), counting)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert trainer(mix, stream=waiting).run(tmp_path / "run") == 0
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == {
        ("MainThread", (8, 9)): 1,
        ("roxxel-compile", (16, 17)): 1,
    }
    at_boundary = [
        name
        for step, name in on_main
        if step - 1 in BOUNDARIES and name == "MainThread"
    ]
    assert at_boundary == []
    tokens = [int(row["tokens"].split(".")[0]) for row in rows(tmp_path / "run")]
    assert tokens == 6 * [64] + 7 * [256] + 7 * [64]
    plan = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]
    assert plan["tokens"] == sum(tokens)
    assert [(s["start"], s["stop"]) for s in plan["spans"]] == [
        (0, 6),
        (6, 13),
        (13, 20),
    ]
    log = (tmp_path / "run" / "roxxel_system.log").read_text()
    assert "steps 6 to 13: 16 x 16 tokens" in log


class Waiting:
    """A stream that waits for the next phase's program before it begins the phase."""

    def __init__(self, stream, tell):
        self._stream, self._tell = stream, tell

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def place(self, *args, **kwargs):
        return Waiting(self._stream.place(*args, **kwargs), self._tell)

    def steps(self, start, stop):
        for step, batch in enumerate(self._stream.steps(start, stop), start):
            if step in BOUNDARIES:
                for thread in threading.enumerate():
                    if thread.name == "roxxel-compile":
                        thread.join()
            self._tell(step)
            yield batch


def test_resuming_inside_and_at_the_edge_of_phases_changes_nothing(mix, tmp_path):
    assert trainer(mix).run(tmp_path / "undisturbed") == 0
    for stop in (4, 6, 9, 13, None):
        assert trainer(mix, stop_after=stop).run(tmp_path / "cut") == 0
    assert_same_run(tmp_path / "undisturbed", tmp_path / "cut")


def test_a_signal_at_the_edge_of_a_phase_saves_and_resumes(mix, tmp_path):
    kill = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
    for at in BOUNDARIES:
        run = trainer(mix, stream=Disturbed(phased(mix), at, kill))
        assert run.run(tmp_path / "stopped") == EXIT_RESTART
        assert len(rows(tmp_path / "stopped")) == at  # no longer waits for the batch
    assert trainer(mix).run(tmp_path / "stopped") == 0
    assert trainer(mix).run(tmp_path / "undisturbed") == 0
    assert_same_run(tmp_path / "undisturbed", tmp_path / "stopped")


def test_a_stop_before_the_next_phase_compiles_nothing_for_it(mix, tmp_path, compiled):
    assert trainer(mix, stop_after=5).run(tmp_path / "run") == 0
    assert list(compiled) == [("MainThread", (8, 9))]


def test_another_past_is_refused_by_the_streams_own_word(mix, tmp_path):
    assert trainer(mix, stop_after=10).run(tmp_path / "run") == 0
    phases = [Phase(steps=7, seq_len=8), Phase(steps=13, batch_size=16, seq_len=16)]
    other = MixtureStream(mix, phases=phases, batch_size=8, seed=3, overlap=1)
    with pytest.raises(ConfigError, match="of phase 0 was 6 when the position was"):
        trainer(mix, stream=other).run(tmp_path / "run")


def test_a_run_longer_than_its_phases_is_refused(mix, tmp_path):
    with pytest.raises(ConfigError, match="total_steps is 21, the phases"):
        trainer(mix, total_steps=21).run(tmp_path / "run")


def test_a_failed_background_compilation_is_raised_at_the_boundary(
    mix, tmp_path, monkeypatch
):
    compiling = programs.StepPrograms._compile

    def failing(self, key, batch):
        if threading.current_thread().name == "roxxel-compile":
            raise MemoryError("no room for the second program")
        return compiling(self, key, batch)

    monkeypatch.setattr(programs.StepPrograms, "_compile", failing)
    with pytest.raises(MemoryError, match="no room"):
        trainer(mix).run(tmp_path / "run")
    assert len(rows(tmp_path / "run")) >= BOUNDARIES[0] - 2
