"""The order of rows. Changing it changes what every resumed run reads.

The golden values below may change only on purpose: with a new name in the key of
`order._round_keys`, a note in the change log and a refusal to resume older runs.
"""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roxxel.data import order

GOLDEN = {  # (size, seed, epoch) -> row ids at the first eight positions
    (1, 0, 0): [0],
    (5, 42, 0): [3, 0, 1, 4, 2],
    (100, 42, 0): [35, 69, 24, 90, 89, 59, 31, 70],
    (100, 42, 1): [7, 3, 27, 94, 66, 74, 62, 99],
    (100, -1, 0): [93, 62, 37, 5, 13, 46, 89, 11],
    (100003, 42, 0): [27045, 25401, 49033, 61562, 14333, 42798, 19569, 58337],
    (100000000, 9223372036854775808, 3): [
        74283556,
        86529028,
        55234425,
        99764973,
        44116041,
        61898362,
        51613721,
        32036424,
    ],
    (1000000000000, 7, 9): [
        883523192671,
        549783396322,
        650810943244,
        430002979993,
        422954893440,
        835098095813,
        473835820001,
        75719816867,
    ],
}


def permuted(size, seed=0, epoch=0):
    return order.Permutation(size, seed, epoch)(np.arange(size))


@pytest.mark.parametrize(("key", "expected"), GOLDEN.items(), ids=str)
def test_golden_order(key, expected):
    size = key[0]
    positions = np.arange(min(size, 8))
    assert order.Permutation(*key)(positions).tolist() == expected


@pytest.mark.parametrize("first", range(1, 5001, 1000))
def test_every_row_comes_once_for_every_small_size(first):
    for size in range(first, first + 1000):
        counts = np.bincount(permuted(size, seed=size), minlength=size)
        assert len(counts) == size
        assert counts.min() == 1


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1])
def test_every_row_comes_once_around_a_power_of_two(size):
    counts = np.bincount(permuted(size, seed=1, epoch=2), minlength=size)
    assert (len(counts), counts.min(), counts.max()) == (size, 1, 1)


def test_samples_of_a_huge_order_do_not_collide():
    positions = np.unique(np.random.default_rng(0).integers(0, 2**40, 200_000))
    for seed, epoch in [(0, 0), (2**64, 3)]:
        rows = order.Permutation(2**40, seed, epoch)(positions)
        assert len(np.unique(rows)) == len(positions)
        # and they are spread evenly
        counts = np.bincount(rows >> 32, minlength=256)
        expected = len(rows) / 256
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert 180 < chi2 < 340  # 255 on average, 4 standard deviations


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 5000),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 99),
)
@example(size=1, seed=0, epoch=0)
@example(size=2, seed=0, epoch=0)
@example(size=4096, seed=0, epoch=0)  # a square
@example(size=4097, seed=0, epoch=0)  # one more: the most cycle walking
def test_every_row_comes_once(size, seed, epoch):
    rows = permuted(size, seed, epoch)
    assert np.array_equal(np.sort(rows), np.arange(size))


@pytest.mark.parametrize("size", [10**8, 2**31 + 1, 2**40, 10**12, 2**62])
def test_large_sizes_stay_in_range_without_repeats(size):
    permutation = order.Permutation(size, 7, 1)
    ends = np.concatenate([np.arange(5000), np.arange(size - 5000, size)])
    rows = permutation(ends)
    assert rows.dtype == np.int64
    assert rows.min() >= 0
    assert rows.max() < size
    assert len(np.unique(rows)) == 10_000
    # a window is the same as its positions one at a time
    assert rows[3] == permutation(ends[3:4])[0]


def test_epochs_and_seeds_are_unrelated():
    orders = [permuted(10**5, s, e) for s in (0, 1, 2, 42) for e in (0, 1, 2)]
    orders.append(np.arange(10**5))
    correlation = np.corrcoef(orders) - np.eye(len(orders))
    assert abs(correlation).max() < 0.02
    for rows in orders[:-1]:  # nor do neighbours follow each other
        assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.02


def test_the_first_rows_of_the_data_come_anywhere():
    places = np.zeros((3, 20))  # of rows 0, 1, 2: parts of the order
    for seed in range(3000):
        where = np.argsort(permuted(1000, seed))[:3]
        places[np.arange(3), where // 50] += 1
    chi2 = ((places - 150) ** 2 / 150).sum(axis=1)
    assert (chi2 < 44).all()  # 19 on average; above once in a thousand


@pytest.mark.parametrize("size", [7, 10, 16])
def test_every_row_is_as_likely_at_every_position(size):
    counts = np.zeros((size, size))
    for seed in range(4000):
        counts[np.arange(size), permuted(size, seed)] += 1
    expected = 4000 / size
    chi2 = ((counts - expected) ** 2 / expected).sum() / (size - 1) ** 2
    assert chi2 < 1.6  # about 1 for a fair shuffle


@pytest.mark.parametrize(
    "seed", [2**32, 2**63, 2**200, -1, 0, np.int64(7), np.uint8(7)]
)
def test_any_int_is_a_seed(seed):
    assert order.check_seed(seed) == int(seed)
    assert type(order.check_seed(seed)) is int


def test_wide_and_negative_seeds_are_told_apart():
    seeds = [1, -1, 2**32 + 1, 2**64 + 1, 2**64 - 1]
    assert len({tuple(permuted(50, seed)) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("seed", [None, True, np.True_, 1.5, "7", np.array([1, 2])])
def test_other_seeds_are_refused_by_name(seed):
    with pytest.raises(TypeError, match="seed must be an int, got"):
        order.check_seed(seed)


def test_a_jax_key_is_no_seed():
    import jax

    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        with pytest.raises(TypeError, match="seed must be an int"):
            order.check_seed(key)


@given(
    size=st.integers(1, 1 << 62),
    seed=st.integers(-10, 1 << 70),
    starts=st.lists(st.integers(0), min_size=1, max_size=8),
)
@settings(max_examples=200, deadline=None)
def test_few_positions_go_where_many_do(size, seed, starts):
    permutation = order.Permutation(size, seed, 3)
    positions = np.array([start % size for start in starts], np.int64)
    many = np.concatenate([positions, np.zeros(100, np.int64)])
    np.testing.assert_array_equal(
        permutation(positions), permutation(many)[: len(starts)]
    )
