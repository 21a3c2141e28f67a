"""Streams of mixtures: every element against a reference, positions, refusals."""

import dataclasses
import itertools
import json
import math
import pickle
from fractions import Fraction

import fiddle as fdl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roxxel
from roxxel import ConfigError, MixtureStream, Phase, Roxxel
from roxxel.data import dtypes, mixture, order
from roxxel.data.joint_rows import JointRows

ELEMENTS = {"a": 500, "b": 1300, "c": 77, "d": 2200}
FIRST = {name: 10_000 * i for i, name in enumerate(ELEMENTS)}  # tells sets apart
WEIGHTS = {"a": 0.2, "b": 0.35, "c": 0.05, "d": 0.4}
GROWING = [
    Phase(steps=9, seq_len=4, batch_size=8),
    Phase(steps=7, seq_len=6, weights={"a": 1, "b": 0, "c": 1, "d": 2}),
    Phase(seq_len=12, batch_size=2),
]


def write(path, first, count, dtype="int32"):
    values = np.arange(first, first + count).astype(dtype)
    return Roxxel(path).write([values], block_size=64, max_shard_bytes=1500)


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    return {
        name: write(folder / f"{name}_*.rox", FIRST[name], count)
        for name, count in ELEMENTS.items()
    }


# the reference: lists, loops and fractions, one draw after the other


def reference_owner(names, weights, n):
    """Who gets draw n: the definition, by counts of the first n and n + 1 draws."""

    def counts(some, count):
        if len(some) == 1:
            return {some[0]: count}
        half = len(some) // 2
        left, right = some[:half], some[half:]
        share = Fraction(sum(weights[k] for k in left), sum(weights[k] for k in some))
        lefts = math.floor(count * share)
        return counts(left, lefts) | counts(right, count - lefts)

    drawn = [name for name in names if weights[name]]
    before, after = counts(drawn, n), counts(drawn, n + 1)
    return next(name for name in drawn if after[name] > before[name])


def reference_batches(stages, seed, overlap, elements=ELEMENTS):
    """All batches of phases (steps, batch_size, seq_len, integer weights)."""
    names = sorted(elements)
    unit = math.lcm(*[seq_len for _, _, seq_len, _ in stages])
    units = {name: (elements[name] - overlap) // unit for name in names}
    sources = {source.name: source for source in mixture.sources(units, seed)}
    used = dict.fromkeys(names, 0)  # units
    batches = []
    for count, batch_size, seq_len, weights in stages:
        owners = [reference_owner(names, weights, n) for n in range(count * batch_size)]
        per_unit, rows = unit // seq_len, {}
        for name in names:
            needed = -(-owners.count(name) // per_unit)
            rows[name] = iter(
                reference_rows(sources[name], used[name], needed, per_unit)
            )
            used[name] += needed
        starts = [FIRST[name] + next(rows[name]) * seq_len for name in owners]
        made = [np.arange(start, start + seq_len + overlap) for start in starts]
        batches += list(np.array(made).reshape(count, batch_size, -1))
    return batches


def reference_rows(source, first, count, per_unit):
    """The rows of units first, first + 1, ... of the passes over a source."""
    passes = itertools.groupby(
        range(first, first + count), lambda unit: unit // source.units
    )
    out = []
    for number, units in passes:
        places = [unit % source.units for unit in units]
        outer = order.Permutation(source.units, source.seed, number)
        ids = outer(np.array(places))
        rows = [unit * per_unit + k for unit in ids.tolist() for k in range(per_unit)]
        if per_unit > 1:
            seed = mixture._derived(source.seed, f"rows {first} {per_unit}")
            inner = order.Permutation(len(rows), seed, number)
            rows = [rows[k] for k in inner(np.arange(len(rows))).tolist()]
        out += rows
    return out


weights_by_name = st.fixed_dictionaries(
    {name: st.integers(0, 5) for name in ELEMENTS}
).filter(lambda weights: any(weights.values()))
stage_lists = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.integers(1, 6),  # "c" has no more rows of 12
        st.sampled_from([1, 2, 3, 4, 6, 12]),
        weights_by_name,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(
    stages=stage_lists,
    seed=st.integers(-(2**65), 2**65),
    overlap=st.integers(0, 2),
    prefetch=st.sampled_from([0, 0, 0, 1, 4]),
    stops=st.lists(st.integers(0, 48), max_size=5),
)
def test_every_element_is_the_reference_s_after_any_number_of_resumes(
    mix, stages, seed, overlap, prefetch, stops
):
    expected = reference_batches(stages, seed, overlap)

    def stream(start):
        phases = [
            Phase(steps=n, batch_size=size, seq_len=length, weights=weights)
            for n, size, length, weights in stages
        ]
        return MixtureStream(
            mix,
            phases=phases,
            seed=seed,
            overlap=overlap,
            prefetch=prefetch,
            start_step=start,
        )

    assert stream(0).planned_steps == len(stream(0)) == len(expected)
    got = []
    for stop in [*sorted(stop for stop in stops if stop < len(expected)), None]:
        with stream(len(got)) as part:
            got += itertools.islice(part, None if stop is None else stop - len(got))
            position = json.loads(json.dumps(part.position(len(got))))
        assert stream(0).step_of(position) == len(got)
    for batch, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(batch, wanted)


def elements_of(batches, overlap):
    """All elements in rows, without those that are shared with the next row."""
    cut = [batch[:, : batch.shape[1] - overlap].reshape(-1) for batch in batches]
    return np.concatenate(cut)


@pytest.mark.parametrize("exhaustion", ["stop", "renormalise"])
@pytest.mark.parametrize("overlap", [0, 1])
def test_no_element_comes_twice_and_contexts_are_contiguous(mix, exhaustion, overlap):
    stream = MixtureStream(
        mix, weights=WEIGHTS, phases=GROWING, exhaustion=exhaustion, overlap=overlap
    )
    batches = list(stream)
    assert len(batches) == stream.planned_steps
    spans = stream.spans()
    for span in spans:
        for batch in batches[span.start : span.stop]:
            assert batch.shape == (span.batch_size, span.seq_len + overlap)
            steps = batch - batch[:, :1]
            assert (steps == np.arange(span.seq_len + overlap)).all()
    seen = elements_of(batches, overlap)
    assert len(np.unique(seen)) == len(seen)
    if exhaustion == "renormalise":  # all but rests of units and of a batch
        assert len(seen) >= sum(ELEMENTS.values()) - 4 * 12 * 3 - 2 * 12
    position = stream.position(len(batches))
    assert sum(position["drawn"].values()) == position["elements"] == len(seen)
    for name, count in position["drawn"].items():
        own = (seen >= FIRST[name]) & (seen < FIRST[name] + ELEMENTS[name])
        assert own.sum() == count


def test_repeating_takes_every_row_once_a_pass_in_another_order(mix):
    stream = MixtureStream(mix, weights=WEIGHTS, seq_len=7, batch_size=16)
    rows = [int(x) for batch in stream.steps(0, 60) for x in batch[:, 0]]
    rows = [row for row in rows if FIRST["c"] <= row < FIRST["c"] + 77]
    passes = [rows[i : i + 11] for i in range(0, 44, 11)]
    assert len({tuple(order) for order in passes}) == 4
    assert {tuple(sorted(order)) for order in passes} == {
        tuple(range(FIRST["c"], FIRST["c"] + 77, 7))
    }
    assert stream.planned_steps is None
    with pytest.raises(TypeError, match="no end"):
        len(stream)


def test_one_data_set_in_one_phase_is_its_plain_stream(mix):
    alone = MixtureStream({"x": mix["d"]}, seq_len=10, batch_size=7, overlap=1, seed=5)
    plain = mix["d"].stream(10, 7, overlap=1, seed=5)
    assert alone.steps_per_epoch == plain.steps_per_epoch == 31
    for batch, expected in zip(alone.steps(0, 31), plain, strict=True):
        np.testing.assert_array_equal(batch, expected)
    assert not np.array_equal(alone.batch(31), mix["d"].stream(10, 7).batch(31))


def test_the_order_of_the_dict_and_the_scale_of_weights_do_not_matter(mix):
    first = MixtureStream(mix, weights=WEIGHTS, seq_len=8).batch(20)
    turned = dict(reversed(mix.items()))
    weights = {name: 100 * weight for name, weight in reversed(WEIGHTS.items())}
    second = MixtureStream(turned, weights=weights, seq_len=8).batch(20)
    np.testing.assert_array_equal(first, second)
    other = MixtureStream(mix, weights=WEIGHTS, seq_len=8, seed=1).batch(20)
    assert not np.array_equal(first, other)


def test_without_weights_all_are_seen_once_at_the_same_time(mix):
    stream = MixtureStream(mix, seq_len=10, batch_size=4, exhaustion="stop")
    rows = sum(count // 10 for count in ELEMENTS.values())
    assert len(list(stream)) == stream.steps_per_epoch >= rows // 4 - 3


def test_a_weight_of_zero_is_never_drawn(mix):
    weights = WEIGHTS | {"c": 0}
    for exhaustion in mixture.EXHAUSTION:
        stream = MixtureStream(
            mix, weights=weights, seq_len=70, batch_size=3, exhaustion=exhaustion
        )
        seen = elements_of(stream.steps(0, 10), 0)
        assert not np.isin(seen, np.arange(FIRST["c"], FIRST["c"] + 77)).any()


def test_far_steps_are_made_like_near_ones(mix):
    stream = MixtureStream(mix, weights=WEIGHTS, phases=GROWING)
    for step in (10**12 // 32, 10**15):
        batch = stream.batch(step)
        assert batch.shape == (2, 12)
        assert stream.position(step)["elements"] == stream.tokens(step)
        np.testing.assert_array_equal(next(stream.steps(step, step + 9)), batch)


def test_stored_dtypes_may_differ_and_are_widened(mix, tmp_path):
    small = write(tmp_path / "s_*.rox", 50_000, 900, "uint16")
    stream = MixtureStream({"s": small, "d": mix["d"]}, seq_len=8, batch_size=6)
    both = MixtureStream({"s": small, "t": small}, seq_len=8, batch_size=6, overlap=1)
    for some in (stream, both):
        for batch in some.steps(0, 30):
            assert batch.dtype == np.int32
            assert (np.diff(batch) == 1).all()
    floats = write(tmp_path / "f_*.rox", 0, 900, "float32")
    with pytest.raises(ConfigError, match="'d' makes batches of int32, 'f' of float32"):
        MixtureStream({"f": floats, "d": mix["d"]}, seq_len=8)
    wanted = MixtureStream({"f": floats, "d": mix["d"]}, seq_len=8, dtype="float64")
    assert wanted.batch(0).dtype == np.float64


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "uint8", "float64"])
def test_one_gather_reads_what_the_windows_read(tmp_path, dtype):
    values = np.random.default_rng(0).integers(0, 2, 4000).astype(dtypes.parse(dtype))
    windows, places = [], np.random.default_rng(1).permutation(60).reshape(3, 20)
    size = 700 * values.itemsize + 1000  # two shards or three
    for i, part in enumerate(np.split(values, [1500, 2500])):
        data = Roxxel(tmp_path / f"{i}_*.rox").write(
            [part], block_size=8, max_shard_bytes=size
        )
        data.elements(0, len(part))  # maps all shards
        windows.append(data.locate(np.arange(20) * 3, 11, 1, dtype))
        data._opened().region.cold_reads = 0
    order = [np.sort(place) for place in places]
    joint, read = JointRows(order, windows), 0
    for start in range(0, 60, 5):
        got = joint.read(start, start + 5)
        if got is None:  # a row over the end of a shard
            continue
        read += 1
        for i, row in enumerate(got, start):
            k = next(k for k in range(3) if i in order[k])
            at = int(np.searchsorted(order[k], i))
            np.testing.assert_array_equal(row, windows[k].read(at, at + 1)[0])
    assert read >= 3


def test_damaged_blocks_are_found_where_they_are_asked_for(tmp_path):
    for name in "ab":
        Roxxel(tmp_path / f"{name}.rox").write([np.arange(300, dtype=np.int32)])
    with open(tmp_path / "a.rox", "r+b") as file:
        file.seek(400)
        file.write(b"damage")
    checked = {n: Roxxel(tmp_path / f"{n}.rox", verify="lazy") for n in "ab"}
    with pytest.raises(roxxel.ShardFormatError, match=r"a\.rox"):
        list(MixtureStream(checked, seq_len=10, exhaustion="stop", batch_size=4))


def test_items_of_one_shape_are_mixed_too(mix, tmp_path):
    images = np.arange(60 * 6).reshape(60, 2, 3).astype(np.uint8)
    first = Roxxel(tmp_path / "x.rox").write(images[:20], item_shape=(2, 3))
    second = Roxxel(tmp_path / "y.rox").write(images[20:], item_shape=(2, 3))
    stream = MixtureStream({"x": first, "y": second}, batch_size=5, exhaustion="stop")
    batches = list(stream)
    assert {(b.shape, b.dtype.name) for b in batches} == {((5, 2, 3), "uint8")}
    seen = {item.tobytes() for batch in batches for item in batch}
    assert len(seen) == 5 * len(batches) >= 50
    with pytest.raises(ConfigError, match=r"'d' has .* \(\), 'x' of \(2, 3\)"):
        MixtureStream({"x": first, "d": mix["d"]}, seq_len=6)
    with pytest.raises(ConfigError, match="streamed whole; leave seq_len"):
        MixtureStream({"x": first}, phases=[Phase(seq_len=3)])


# the plan as others see it


def test_spans_tokens_and_steps_agree(mix):
    phases = [
        Phase(steps=3, seq_len=4),
        Phase(tokens=100, seq_len=4, weights=WEIGHTS),
        Phase(fraction=0.5, seq_len=8, batch_size=2),
        Phase(seq_len=4, batch_size=16),
    ]
    stream = MixtureStream(mix, phases=phases, batch_size=8, tokens=1000)
    shapes = [(s.start, s.stop, s.batch_size, s.seq_len) for s in stream.spans()]
    # 3 and 4 steps of 32 elements; from 196 on 500 in steps of 16; the rest of 64 each
    assert shapes == [(0, 7, 8, 4), (7, 37, 2, 8), (37, 42, 16, 4)]
    assert stream.planned_steps == len(stream) == 42
    assert (stream.batch_size, stream.seq_len) == (8, 4)
    sizes = [batch.size for batch in stream]
    assert len(sizes) == 42
    for step in range(43):
        assert stream.tokens(step) == sum(sizes[:step])
        assert stream.steps_for(stream.tokens(step)) == step
    assert stream.steps_for(stream.tokens(20) + 1) == 21
    with pytest.raises(ConfigError, match=r"tokens are more than the 1024 of all 42"):
        stream.steps_for(1025)
    for call in (stream.tokens, stream.position):
        with pytest.raises(
            ConfigError, match=r"behind the end .* planned for 42 steps"
        ):
            call(43)
    with pytest.raises(ConfigError, match="stop 50 lies behind"):
        stream.steps(0, 50)
    with pytest.raises(ConfigError, match="start_step 43 lies behind"):
        MixtureStream(mix, phases=phases, batch_size=8, tokens=1000, start_step=43)


def test_an_epoch_is_the_steps_without_a_row_twice(mix):
    def epoch(**options):
        options = {"weights": WEIGHTS, "seq_len": 10, "batch_size": 4} | options
        return MixtureStream(mix, **options).steps_per_epoch

    assert (
        epoch() == epoch(exhaustion="stop") == 39
    )  # "c" has 7 rows: 0.05 of 140 to 159
    rows = sum(count // 10 for count in ELEMENTS.values())
    assert epoch(exhaustion="renormalise") == rows // 4
    assert epoch(phases=[Phase(steps=3)]) == 39
    assert epoch(weights=WEIGHTS | {"a": 100}, batch_size=64) == 1


def test_a_stream_is_a_plain_value(mix):
    config = fdl.Config(
        MixtureStream,
        mix={name: fdl.Config(Roxxel, data.shards) for name, data in mix.items()},
        weights=dict(WEIGHTS),
        phases=[fdl.Config(Phase, steps=9, seq_len=4), fdl.Config(Phase, seq_len=8)],
        batch_size=6,
    )
    config.phases[0].steps = 5
    stream = fdl.build(config)
    assert stream.spans()[1].start == 5
    for _ in range(3):
        next(stream)
    again = pickle.loads(pickle.dumps(stream))
    for _ in range(5):
        np.testing.assert_array_equal(next(again), next(stream))
    assert again.position(8) == stream.position(8)


def test_names_load_lazily_and_say_what_they_do():
    assert roxxel.MixtureStream is MixtureStream
    assert roxxel.Phase is Phase
    for words in ("closed forms", "least common multiple", "renormalise"):
        assert words in MixtureStream.__doc__


# resuming


def stream_of(mix, **options):
    options = {"weights": WEIGHTS, "seq_len": 6, "batch_size": 4, "seed": 1} | options
    return MixtureStream(mix, **options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2}, "seed was 1 .* 2 now"),
        ({"overlap": 1}, "overlap was 0 .* 1 now"),
        ({"exhaustion": "stop"}, "exhaustion was 'repeat' .* 'stop' now"),
        ({"seq_len": 12}, "seq_len of phase 0 was 6 .* 12 now"),
        (
            {"weights": WEIGHTS | {"c": 0.06}},
            r"weights of phase 0 was .*'c': 0.05.*0.06",
        ),
        ({"phases": [Phase(steps=2)]}, r"20 rows into phase 0, which has 2 steps"),
        ({"batch_size": 8}, "20 rows into phase 0, is no multiple of batch_size 8"),
    ],
)
def test_another_mixture_is_refused_with_both_values(mix, change, words):
    position = stream_of(mix).position(5)
    with pytest.raises(ConfigError, match=words):
        stream_of(mix, **change).step_of(position)


def test_other_data_and_other_streams_are_refused(mix):
    position = stream_of(mix).position(5)
    fewer = {name: mix[name] for name in "abc"}
    weights = {name: WEIGHTS[name] for name in "abc"}
    with pytest.raises(ConfigError, match="fingerprint was"):
        stream_of(fewer, weights=weights).step_of(position)
    swapped = mix | {"a": mix["b"], "b": mix["a"]}
    with pytest.raises(ConfigError, match="fingerprint was"):
        stream_of(swapped).step_of(position)
    plain = mix["a"].stream(6, 4, seed=1)
    with pytest.raises(ConfigError, match=r"has no 'exhaustion': .* another kind"):
        stream_of(mix).step_of(plain.position(5))
    with pytest.raises(ConfigError, match=r"fingerprint was \{"):
        plain.step_of(position)


def test_another_batch_size_goes_on_at_the_first_unread_row(mix):
    old = stream_of(mix, batch_size=8)
    new = stream_of(mix, batch_size=4)
    step = new.step_of(old.position(10))
    assert step == 20
    both = np.concatenate([new.batch(step), new.batch(step + 1)])
    np.testing.assert_array_equal(both, old.batch(10))


def test_phases_behind_the_position_may_change(mix):
    def stream(second, third, first=None):
        first = first or Phase(steps=5, seq_len=12)
        return stream_of(mix, phases=[first, second, third])

    second, third = Phase(steps=6, seq_len=6), Phase(seq_len=4)
    old = stream(second, third)
    alike = dict.fromkeys("abcd", 1)
    new = stream(second, Phase(steps=9, seq_len=4, batch_size=2, weights=alike))
    for step in range(12):  # the end of the second phase is the start of the third
        assert new.step_of(old.position(step)) == step
        np.testing.assert_array_equal(
            new.batch(min(step, 10)), old.batch(min(step, 10))
        )
    with pytest.raises(ConfigError, match="weights of phase 2"):
        new.step_of(old.position(12))
    other = stream(Phase(steps=7, seq_len=6), third)
    assert [other.step_of(old.position(step)) for step in (0, 5)] == [0, 5]
    # rows of the second phase are shuffled over all of its units
    with pytest.raises(ConfigError, match=r"steps of phase 1 was 6 .* and is 7 now"):
        other.step_of(old.position(6))
    with pytest.raises(ConfigError, match=r"steps of phase 1 was 6 .* and is 7 now"):
        other.step_of(old.position(12))
    with pytest.raises(ConfigError, match=r"batch_size of phase 1 was 4 .* 2 now"):
        stream(Phase(steps=6, batch_size=2), third).step_of(old.position(7))
    halves = stream(Phase(steps=12, batch_size=2), third)  # as many rows
    step = halves.step_of(old.position(7))
    assert step == 9
    both = np.concatenate([halves.batch(step), halves.batch(step + 1)])
    np.testing.assert_array_equal(both, old.batch(7))
    with pytest.raises(ConfigError, match=r"least common multiple 12 .* have 36 now"):
        stream(second, Phase(seq_len=9)).step_of(old.position(7))
    with pytest.raises(ConfigError, match=r"steps of phase 0 was 5 .* and is 4 now"):
        stream(second, third, Phase(steps=4, seq_len=12)).step_of(old.position(6))
    shorter = stream_of(mix, phases=[Phase(steps=5, seq_len=12), Phase(seq_len=4)])
    with pytest.raises(ConfigError, match="saved in phase 2, there are 2 phases now"):
        shorter.step_of(old.position(12))


def test_a_run_of_one_row_length_can_be_made_longer(mix):
    old = stream_of(mix, tokens=24 * 10)
    new = stream_of(mix, tokens=24 * 30)
    assert (old.planned_steps, new.planned_steps) == (10, 30)
    assert new.step_of(old.position(10)) == 10
    for step in range(10):
        np.testing.assert_array_equal(new.batch(step), old.batch(step))


def test_passes_after_a_resumed_one_are_whole(mix):
    alone = {"c": mix["c"]}
    stream = MixtureStream(alone, seq_len=7, batch_size=2, start_step=3)
    rows = [int(x) for _ in range(30) for x in next(stream)[:, 0]]
    for begin in (5, 16, 27):  # 11 rows a pass, 6 of the first were seen before
        assert len(set(rows[begin : begin + 11])) == 11


# refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mix": {}}, "mix must be a dict"),
        ({"mix": {"a": 3}}, r"mix\['a'\] is 3, not a Roxxel"),
        ({"mix": {1: 3}}, "mix has the name 1"),
        ({"exhaustion": "loop"}, "one of repeat, stop, renormalise, got 'loop'"),
        ({"seq_len": None}, "seq_len is needed"),
        ({"seq_len": 100}, "'c' has 77 elements, a row needs 100 .*smaller seq_len"),
        ({"batch_size": 0}, "batch_size must be .* got 0"),
        ({"start_step": -1}, "start_step must be .* got -1"),
        ({"prefetch": -1}, "prefetch must be .* got -1"),
        ({"tokens": 0}, "tokens must be .* got 0"),
        ({"phases": Phase(steps=1)}, "phases must be a list"),
        ({"phases": [{"steps": 1}]}, r"phase 0 is \{'steps': 1\}, expected a Phase"),
        ({"weights": {"a": 1}}, "weights lack 'b'"),
        ({"weights": [1, 1, 1]}, r"weights must be a dict .* got \[1, 1, 1\]"),
        ({"weights": 5}, "weights must be a dict .* got 5"),
        ({"weights": "abcd"}, "weights must be a dict .* got 'abcd'"),
        ({"weights": dict.fromkeys("abcd", "x")}, "'a' must be a number .* got 'x'"),
        ({"weights": dict.fromkeys("abcd", np.inf)}, "must be a number .* got inf"),
        ({"mix": 5}, "mix must be a dict"),
        ({"phases": 5}, "phases must be a list of Phase, got 5"),
        ({"exhaustion": []}, r"exhaustion must be one of .* got \[\]"),
        ({"seq_len": "6"}, "seq_len must be an int .* got '6'"),
        ({"overlap": 0.5}, "overlap must be an int .* got 0.5"),
        ({"tokens": "1e6"}, "tokens must be an int .* got '1e6'"),
        ({"dtype": 5}, "dtype 5"),
        ({"phases": [Phase(weights={"z": 1})]}, "weights name 'z'"),
        ({"batch_size": 1000}, "677 windows < batch 1000 in phase 0"),
        (
            {"phases": [Phase(steps=1, seq_len=n) for n in (7, 11, 13)]},
            "'a' has 500 elements, fewer than the 1001 .*7, 11, 13: .*multiple 1001",
        ),
        ({"exhaustion": "stop", "batch_size": 500}, "runs out before the first batch"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(mix, options, words):
    options = {"mix": mix, "weights": WEIGHTS, "seq_len": 6} | options
    with pytest.raises(ConfigError, match=words):
        MixtureStream(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"weights": 5},
        {"weights": [1, 2]},
        {"fraction": "a"},
        {"fraction": [0.5]},
        {"fraction": True},
        {"fraction": float("nan")},
        {"steps": "a"},
        {"tokens": 1.5},
        {"batch_size": [2]},
        {"seq_len": {}},
    ],
)
def test_phases_that_cannot_be_are_refused(options):
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name} must be"):
        Phase(**options)


def test_sizes_of_numpy_make_positions_of_plain_json(mix):
    phases = [Phase(steps=np.int64(2), seq_len=np.int32(6)), Phase(fraction=0.5)]
    sizes = {"seq_len": 6, "batch_size": 4, "overlap": 1, "tokens": 960}
    now = {name: np.int64(value) for name, value in sizes.items()}
    stream = stream_of(mix, phases=phases, **now)
    plain = stream_of(mix, phases=[Phase(steps=2), Phase(fraction=0.5)], **sizes)
    assert json.loads(json.dumps(stream.position(3))) == plain.position(3)
    assert [type(x) for x in dataclasses.astuple(stream.spans()[0])] == [int] * 4


def test_a_step_behind_the_plan_is_named(mix):
    stream = stream_of(mix, phases=[Phase(steps=45)])
    stream.batch(44)
    for step in (45, 46):
        with pytest.raises(ConfigError, match=f"^step {step} .* steps 0 to 44"):
            stream.batch(step)


@pytest.mark.parametrize("seed", [None, True, 1.5])
def test_seeds_are_any_int(mix, seed):
    with pytest.raises(TypeError, match=f"seed must be an int, got {seed}"):
        stream_of(mix, seed=seed)
    np.testing.assert_array_equal(
        stream_of(mix, seed=7).batch(0), stream_of(mix, seed=np.int64(7)).batch(0)
    )


def test_the_first_batch_mixes_data_sets_and_shards(mix):
    batch = stream_of(mix, batch_size=64, weights=dict.fromkeys("abcd", 1)).batch(0)
    owners = np.searchsorted(sorted(FIRST.values()), batch[:, 0], side="right")
    assert np.bincount(owners).tolist() == [0, 16, 16, 16, 16]
    of_d = batch[owners == 4, 0] - FIRST["d"]
    assert len(set((of_d // 350).tolist())) >= 4  # of 7 shards
