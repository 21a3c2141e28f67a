"""Lengths of a run in every unit, alone and through streams of one or more shapes."""

import functools
import types

import pytest
from flax import nnx

from roxxel import budget
from roxxel.data.steps import Span
from roxxel.errors import ConfigError
from roxxel.models.language_model import num_params


class Stream:
    """Four rows of ten tokens a step; phases add spans of other shapes."""

    steps_per_epoch = 7
    planned_steps = None

    def __init__(self, *spans):
        self._spans = spans or (Span(0, None, 4, 10),)
        self.planned_steps = self._spans[-1].stop

    def spans(self):
        return self._spans

    def steps_for(self, tokens):
        return -(-tokens // 40)


STREAM = Stream()
PHASES = Stream(Span(0, 10, 4, 10), Span(10, 15, 2, 40))


class Costly(nnx.Module):
    """A thousand parameters; a token costs 100 operations times its row's length."""

    def __init__(self, *, rngs):
        self.weight = nnx.Param(rngs.params.normal((10, 100)))

    def flops_per_token(self, seq_len):
        return 100 * seq_len


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ({"steps": 5}, 5),
        ({"tokens": 400}, 10),
        ({"tokens": 401}, 11),  # whole batches, rounded up
        ({"epochs": 3}, 21),
        ({"epochs": 0.5}, 3),  # rounded down
        ({"epochs": 0.01}, 1),  # at least one step
        ({"tokens_per_param": 2.0, "model": Costly}, 50),
        ({"flops": 100 * 10 * 40 * 3.9, "model": Costly}, 3),
        ({"flops": 1.0, "model": Costly}, 1),
    ],
)
def test_total_steps_in_each_unit(units, expected):
    assert budget.total_steps(STREAM, **units) == expected


def test_flops_without_a_formula_are_six_a_parameter_and_token():
    class Plain(nnx.Module):
        def __init__(self, *, rngs):
            self.weight = nnx.Param(rngs.params.normal((10, 100)))

    total = budget.total_steps(STREAM, flops=6 * 1000 * 40 * 5.5, model=Plain)
    assert total == 5


@pytest.mark.parametrize(
    "units",
    [
        {},
        {"steps": 1, "epochs": 1},
        {"steps": 0},
        {"epochs": float("nan")},
        {"tokens": float("inf")},
        {"minutes": -1},
        {"flops": 1e9},  # no model
        {"tokens_per_param": 20},
        {"minutes": 3},  # measured by the command line only
    ],
)
def test_total_steps_refuses_what_is_no_length(units):
    with pytest.raises(ConfigError, match="total_steps"):
        budget.total_steps(STREAM, **units)


def test_epochs_need_data_of_known_length():
    endless = types.SimpleNamespace(batch_size=4, seq_len=10)
    with pytest.raises(ConfigError, match="epochs need a data set of known length"):
        budget.total_steps(endless, epochs=1)


def test_phases_have_a_length_of_their_own():
    assert budget.total_steps(PHASES) == 15
    assert budget.total_steps(PHASES, steps=12) == 12
    with pytest.raises(ConfigError, match=r"16 steps, the phases .* have 15"):
        budget.total_steps(PHASES, steps=16)


def test_flops_are_counted_span_by_span():
    first, second = 10 * 100 * 10 * 40, 100 * 40 * 80
    total = functools.partial(budget.total_steps, PHASES, model=Costly)
    assert total(flops=first) == 10
    assert total(flops=first + 2.5 * second) == 12
    assert total(flops=first + 100 * second) == 15


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (7, 7),
        (0.25, 50),
        ("25%", 50),
        ("0.25", 50),
        ("100%", 200),
        ("7", 7),
        ("7 steps", 7),
        ("1e2 steps", 100),
        ("1_000 tokens", 25),
        ("1e3tokens", 25),
        ("1 epoch", 7),
        ("0.5 epochs", 4),
        (1e-9, 1),
    ],
)
def test_cadences_in_each_unit(value, steps):
    assert budget.cadence(value, stream=STREAM, total_steps=200) == steps


@pytest.mark.parametrize(
    "value", [0, -1, 2.5, "", "often", "3 parsecs", "120%", float("nan"), True, [3]]
)
def test_what_is_no_cadence_is_refused_by_name(value):
    with pytest.raises(ConfigError, match="save_every"):
        budget.cadence(value, stream=STREAM, total_steps=200, name="save_every")


def test_tokens_need_a_stream():
    with pytest.raises(ConfigError, match="warmup='1 epochs': epochs need a stream"):
        budget.length("1 epochs", name="warmup", total_steps=10)


def test_no_cadence_is_never():
    assert budget.cadence(None, stream=STREAM, total_steps=200) is None


@pytest.mark.parametrize(
    "flags",
    [
        ("--fdl.total_steps.tokens_per_param=2",),
        (
            "--fdl.total_steps.tokens_per_param=2",
            "--fdl.model=configs.models.transformer(d_model=32, n_layers=1, n_heads=2)",
        ),
    ],
)
def test_flags_reach_every_unit(flags):
    """The model of a length is the one that the flags have left in the graph."""
    import fiddle as fdl

    from roxxel.config import arguments, resolve

    words = ["--fdl_config=ssm_tiny", "--fdl.total_steps.steps=None", *flags]
    config = resolve.experiment(arguments.parse(words)).config
    assert config.total_steps.model is config.model
    model = fdl.build(config.model)
    count = num_params(nnx.eval_shape(lambda: model(rngs=nnx.Rngs(0))))
    total = budget.total_steps(STREAM, tokens_per_param=2, model=model)
    assert total == -(-2 * count // 40)


def test_a_warm_up_in_tokens_by_flag():
    from roxxel.config import arguments, resolve

    words = ["--fdl_config=ssm_tiny", "--fdl.schedule.warmup=5e4 tokens"]
    config = resolve.experiment(arguments.parse(words)).config
    assert config.schedule.stream is config.stream
    plain = resolve.experiment(arguments.parse(words[:1])).config
    assert "stream" not in plain.schedule.__arguments__
