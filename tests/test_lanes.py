"""Rows in lanes against the same rows all together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roxxel.generation import decoding, lanes, sampling
from tests import test_generate
from tests.quick import compile_quickly  # noqa: F401

ROWS = 8


def cores(most):
    found = lanes.Cores([jnp.ones(1)], most=most)
    assert found.most == most
    return found


@pytest.mark.parametrize(
    ("most", "rows", "expected"),
    [
        (1, 16, [16]),
        (2, 16, [8, 8]),
        (2, 7, [7]),  # too few for two
        (2, 9, [9]),  # two lanes would be two programs
        (16, 16, [4, 4, 4, 4]),
        (4, 18, [6, 6, 6]),
    ],
)
def test_lanes_are_equal_and_of_enough_rows(most, rows, expected):
    parts = cores(most).split(rows)
    assert [part.stop - part.start for part in parts] == expected
    assert [i for part in parts for i in range(rows)[part]] == list(range(rows))


def test_on_several_devices_or_with_many_parameters_there_is_one_lane():
    placed = [jax.device_put(jnp.ones(1), device) for device in jax.devices()[:2]]
    assert lanes.Cores(placed, most=2).most == 1
    large = jnp.zeros(4 << 20)
    assert lanes.Cores([large], most=2).most == 1


@pytest.mark.slow
def test_tokens_do_not_depend_on_lanes(compile_quickly):  # noqa: F811
    model = test_generate.make("hybrid")
    prompts = [np.arange(1, 2 + row, dtype=np.int32) for row in range(ROWS)]
    rows = [sampling.Sampling(temperature=row % 2, seed=row) for row in range(ROWS)]
    kinds = sampling.Kinds.of(rows)
    knobs = sampling.knobs(rows, model.vocab_size)
    later = sampling.knobs(rows[:1], model.vocab_size)
    tokens = []
    for most in (1, 2):
        decoder = decoding.Decoder(model)
        decoder.cores = cores(most)
        carry = decoder.start(prompts, knobs, kinds, slots=64, tracks=True)
        assert len(carry.lanes) == most
        first_B = np.asarray(carry.tokens_B)
        one_SB, carry = decoder.run(carry, knobs, kinds, 4)
        own = decoder.start(prompts[:1], later, kinds, slots=64, tracks=True)
        carry = decoder.grown(decoder.joined(carry, own, ROWS - 2), 128)
        two_SB, carry = decoder.run(carry, knobs, kinds, 4)
        tokens.append(np.concatenate([first_B[None], one_SB[:4], two_SB[:4]]))
    np.testing.assert_array_equal(*tokens)
    assert len(np.unique(tokens[0])) > 3
