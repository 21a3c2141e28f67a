"""Weights, phases and passes as integers: `apportion`, `phases` and `mixture`."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roxxel import ConfigError, Phase
from roxxel.data import mixture, phases
from roxxel.data.apportion import Apportionment

weight_lists = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=12
).filter(any)
prefixes = st.one_of(st.integers(0, 300), st.integers(0, 10**12))


def exact(weights):
    return [Fraction(str(weight)) for weight in weights]


def shares(weights):
    return [weight / sum(exact(weights)) for weight in exact(weights)]


# shares of draws


@settings(max_examples=150, deadline=None)
@given(weights=weight_lists, n=prefixes, length=st.integers(1, 200))
def test_draws_follow_the_weights_at_every_prefix(weights, n, length):
    tree = Apportionment(exact(weights))
    counts = tree.counts(n)
    assert sum(counts) == n
    depth = math.ceil(math.log2(max(1, sum(map(bool, weights)))))
    for count, share in zip(counts, shares(weights), strict=True):
        assert abs(count - n * share) <= depth + Fraction(1, 32)
        assert share or not count
    parts = tree.parts(n, n + length)  # and one draw at a time says the same
    for k in range(0, length + 1, 7):
        more = np.bincount(parts[:k], minlength=len(weights)).tolist()
        assert tree.counts(n + k) == [a + b for a, b in zip(counts, more, strict=True)]


def test_eight_data_sets_stay_within_eight_rows_up_to_1e12():
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = rng.random(8) ** 4 + 1e-9
        tree = Apportionment(exact(weights))
        wanted = shares(weights)
        for n in rng.integers(0, 10**12, 50).tolist():
            for count, share in zip(tree.counts(n), wanted, strict=True):
                assert abs(count - n * share) < 4
    # nearly a simple fraction: not rounded to it
    weights = [0.50000000011, 0.49999999989]
    counts = Apportionment(exact(weights)).counts(10**12)
    assert counts == [500000000110, 499999999890]


@settings(max_examples=100, deadline=None)
@given(weights=weight_lists, count=st.integers(0, 10**9), part=st.integers(0, 11))
def test_fewest_draws_is_the_inverse_of_counts(weights, count, part):
    part %= len(weights)
    tree = Apportionment(exact(weights))
    n = tree.fewest(part, count)
    if n is None:
        assert not weights[part] or shares(weights)[part] < Fraction(1, 2**45)
        return
    assert tree.counts(n)[part] >= count
    assert not n or tree.counts(n - 1)[part] < count


def test_long_runs_and_far_draws_keep_whole_numbers():
    weights = [Fraction(1, 3), Fraction("0.123456789123456789"), Fraction(1, 7)]
    tree = Apportionment(weights)
    start = 2**61 + 12345
    parts = tree.parts(start, start + 200_000)
    before, after = tree.counts(start), tree.counts(start + 200_000)
    got = np.bincount(parts, minlength=3).tolist()
    assert got == [b - a for a, b in zip(before, after, strict=True)]


# lengths of phases

DEFAULT = phases.Stage(steps=None, batch_size=4, seq_len=10, weights={"a": 1})


def lengths(*given, tokens=None):
    return [stage.steps for stage in phases.resolve(given, DEFAULT, tokens)]


def test_lengths_become_steps():
    assert lengths() == [None]
    assert lengths(tokens=401) == [11]  # the step that reaches it
    assert lengths(Phase(steps=5), Phase()) == [5, None]
    assert lengths(Phase(steps=5), Phase(tokens=81)) == [5, 3]
    assert lengths(Phase(steps=5), Phase(), tokens=1000) == [5, 20]
    assert lengths(Phase(fraction=0.1), Phase(fraction=0.9), tokens=4000) == [10, 90]
    # rounding does not add up: 100 elements are 2.5 steps
    assert lengths(*[Phase(fraction=0.1)] * 10, tokens=1000) == [3, 2] * 5
    assert lengths(Phase(fraction=0.5, seq_len=5), Phase(), tokens=400) == [10, 5]
    assert lengths(Phase(tokens=1), Phase(tokens=1)) == [1, 1]  # at least one step
    stage = phases.resolve([Phase(batch_size=8, seq_len=5)], DEFAULT, None)[0]
    assert (stage.batch_size, stage.seq_len, stage.weights) == (8, 5, {"a": 1})


@pytest.mark.parametrize(
    ("given", "tokens", "words"),
    [
        ([Phase(), Phase(steps=3)], None, "phase 0 has no length; only the last may"),
        (
            [Phase(fraction=0.5), Phase()],
            None,
            "0.5 is of the stream's tokens",
        ),
        ([Phase(fraction=0.6), Phase(fraction=0.6)], 99, "add up to 1.2, expected 1"),
        ([Phase(fraction=0.6), Phase(fraction=0.3)], 99, "add up to 0.9, expected 1"),
        ([Phase(steps=10), Phase()], 400, "rest of 400 tokens, but .* take 400"),
    ],
)
def test_lengths_that_make_no_plan_are_refused(given, tokens, words):
    with pytest.raises(ConfigError, match=words):
        phases.resolve(given, DEFAULT, tokens)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"steps": 1, "tokens": 5},
            "one of steps, tokens, fraction, got",
        ),
        ({"steps": 0}, "a phase's steps must be .* got 0"),
        ({"tokens": 1.5}, "a phase's tokens must be .* got 1.5"),
        ({"fraction": 0}, "fraction must be a number above 0 and at most 1, got 0"),
        ({"fraction": 1.5}, "got 1.5"),
        ({"batch_size": -1}, "a phase's batch_size must be .* got -1"),
        ({"seq_len": "8"}, "a phase's seq_len must be .* got '8'"),
    ],
)
def test_phases_that_cannot_be_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        Phase(**values)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"a": 1, "b": -1}, "weight of 'b' must be a number of at least 0, got -1"),
        ({"a": 1, "b": math.nan}, "weight of 'b' .* got nan"),
        ({"a": 1, "b": math.inf}, "weight of 'b' .* got inf"),
        ({"a": 1, "b": "2"}, "weight of 'b' .* got '2'"),
        ({"a": 1, "b": True}, "weight of 'b' .* got True"),
        ({"a": 0, "b": 0.0}, "weights are all 0"),
        ({"a": 1, "c": 1}, "weights name 'c', the data sets are a, b"),
        ({"a": 1}, "weights lack 'b'; give 0"),
        ([1, 1], "weights must be a dict"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, words):
    with pytest.raises(ConfigError, match=words):
        phases.exact_weights(weights, ["a", "b"])


def test_weights_are_the_decimal_numbers_that_they_read_as():
    given = {"b": np.float32(0.1), "a": 3}
    assert phases.exact_weights(given, ["a", "b"]) == [3, Fraction(1, 10)]


# plans


def planned(sizes, stages, exhaustion="repeat", unit=12):
    full = [
        (
            phases.Stage(steps=n, batch_size=size, seq_len=length, weights={}),
            exact(weights),
        )
        for n, size, length, weights in stages
    ]
    return mixture.plan(full, sizes=sizes, unit=unit, exhaustion=exhaustion)


def test_a_phase_begins_at_a_whole_unit():
    legs = planned([100, 100], [(7, 5, 4, (1, 3)), (None, 2, 12, (1, 1))])
    first, second = legs
    assert (first.rows_per_unit, first.counts(35)) == (3, [8, 27])
    assert first.units == (3, 9)  # 8 rows of 3 a unit: one is left out
    assert second.firsts == (3, 9)
    assert (second.start_step, second.stop_step, second.units) == (7, None, (None,) * 2)


def test_stopping_ends_with_the_last_whole_batch_before_a_source_runs_out():
    (leg,) = planned([10, 100], [(None, 4, 12, (1, 1))], "stop")
    assert leg.stop_step == 5
    assert leg.counts(20) == [10, 10]
    (leg,) = planned([10, 100], [(None, 8, 12, (1, 1))], "stop")
    assert leg.stop_step == 2
    # the phase that it happens in is cut, those behind it never come
    stages = [(3, 4, 12, (1, 1)), (9, 4, 6, (1, 0)), (5, 4, 12, (0, 1))]
    legs = planned([10, 100], stages, "stop")
    assert [leg.steps for leg in legs] == [3, 2]  # 4 units are 8 rows of half
    # a source without weight does not end it
    (leg,) = planned([1, 100], [(None, 10, 12, (0, 1))], "stop")
    assert leg.stop_step == 10
    assert planned([1, 100], [(None, 10, 12, (1, 1))], "stop") == []


def test_renormalising_goes_on_until_all_have_run_out():
    (leg,) = planned([10, 20, 40], [(None, 1, 12, (1, 1, 1))], "renormalise")
    assert leg.stop_step == 70
    for n in range(71):
        counts = leg.counts(n)
        assert sum(counts) == n
        alike = [min(size, max(counts)) for size in (10, 20, 40)]
        assert all(
            abs(a - b) <= 3 or a == size
            for a, b, size in zip(counts, alike, (10, 20, 40), strict=True)
        )
    drawn = leg.sources(0, 70)
    assert np.bincount(drawn).tolist() == [10, 20, 40]
    assert set(drawn[-15:].tolist()) == {2}
    for start in range(0, 70, 9):  # any piece is a piece of the whole
        assert leg.sources(start, start + 1).tolist() == [drawn[start]]
    legs = planned([5, 9], [(4, 2, 12, (1, 1)), (9, 2, 12, (1, 1))], "renormalise")
    assert [leg.steps for leg in legs] == [4, 3]
    # nothing is left for the second phase's only source
    legs = planned([5, 9], [(5, 2, 12, (1, 0.5)), (9, 2, 12, (1, 0))], "renormalise")
    assert [leg.steps for leg in legs] == [5]


def test_far_plans_are_made_at_once():
    size = 10**13
    stages = [(10**10, 32, 12, (1,) * 8), (None, 32, 6, (1,) * 8)]
    for policy in mixture.EXHAUSTION:
        legs = planned([size] * 8, stages, policy)
        assert legs[1].start_step == 10**10
        if policy != "repeat":
            left = (size * 8 - 32 * 10**10) * 2
            assert abs(legs[1].steps - left // 32) <= 1
