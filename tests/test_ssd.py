"""The scan against float64 recurrences: values, gradients, states, any chunk size."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick

from roxxel.models import ssd

GOLDENS = pathlib.Path(__file__).parent / "goldens"
# Chunks that divide the length, leave a tail, are the length, and exceed it. (Each
# case compiles for about a second; more sizes show nothing new.)
CASES = [
    ("ssd_basic", 1, "scan"),
    ("ssd_basic", 16, "scan"),
    ("ssd_basic", 24, "parallel"),
    ("ssd_basic", 64, "scan"),
    ("ssd_basic", 100, "parallel"),
    ("ssd_init_state", 4, "scan"),
    ("ssd_init_state", 16, "parallel"),
    ("ssd_init_state", 48, "scan"),
    ("ssd_ragged", 16, "scan"),
    ("ssd_ragged", 8, "parallel"),
    ("ssd_ragged", 53, "parallel"),
    ("ssd_ragged", 64, "scan"),
    ("ssd_short", 8, "scan"),
    ("ssd_short", 64, "parallel"),
    ("ssd_strong_decay", 16, "scan"),
    ("ssd_strong_decay", 16, "parallel"),
    ("ssd_strong_decay", 64, "scan"),
    ("ssd_segments", 8, "parallel"),
    ("ssd_segments", 16, "scan"),
    ("ssd_segments", 20, "scan"),
    ("ssd_segments", 20, "parallel"),
    ("ssd_segments", 48, "scan"),
]
TOLERANCE = {"ssd_strong_decay": 2e-4}
INPUTS = ("x", "a", "B", "C", "h0")


def relative_error(got, want):
    """Largest error over the largest wanted value, as the goldens define it."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    return np.max(np.abs(got - want)) / max(1.0, np.max(np.abs(want)))


@pytest.mark.parametrize(("name", "chunk_size", "form"), CASES)
def test_scan_matches_the_recurrence(name, chunk_size, form):
    data = np.load(GOLDENS / f"{name}.npz")
    names = [key for key in INPUTS if key in data]
    segment_ids = data.get("segment_ids")

    @functools.partial(jax.jit, compiler_options=quick.OPTIONS)
    def run(inputs):
        def objective(inputs):
            y, state = ssd.ssd_scan(
                *(inputs[key] for key in ("x", "a", "B", "C")),
                chunk_size=chunk_size,
                initial_state=inputs.get("h0"),
                segment_ids=segment_ids,
                form=form,
            )
            total = jnp.sum(y * data["cot_y"]) + jnp.sum(state * data["cot_state"])
            return total, (y, state)

        return jax.grad(objective, has_aux=True)(inputs)

    grads, (y, state) = run({key: data[key] for key in names})
    errors = {
        "y": relative_error(y, data["ref_y"]),
        "state": relative_error(state, data["ref_final_state"]),
    }
    for key in names:
        errors[key] = relative_error(grads[key], data[f"ref_grad_{key}"])

    assert max(errors.values()) < TOLERANCE.get(name, 1e-5), errors


def test_carried_state_after_each_chunk_is_exact():
    data = np.load(GOLDENS / "ssd_basic.npz")
    length = int(data["boundary_chunk"])
    state = None
    for index in range(data["ref_states_after_chunk"].shape[1]):
        piece = slice(index * length, (index + 1) * length)
        inputs = (data[key][:, piece] for key in ("x", "a", "B", "C"))
        _, state = ssd.ssd_scan(*inputs, chunk_size=length, initial_state=state)
        want = data["ref_states_after_chunk"][:, index]
        assert relative_error(state, want) < 1e-5


def test_segment_ids_may_come_in_any_order():
    data = np.load(GOLDENS / "ssd_segments.npz")
    renamed = (data["segment_ids"] * 7 + 3) % 5  # equal ids again after others
    changes = np.diff(data["segment_ids"], axis=1) != 0
    np.testing.assert_array_equal(changes, np.diff(renamed, axis=1) != 0)
    y, _ = ssd.ssd_scan(
        *(data[key] for key in ("x", "a", "B", "C")),
        chunk_size=16,
        initial_state=data["h0"],
        segment_ids=jnp.asarray(renamed),
    )
    assert relative_error(y, data["ref_y"]) < 1e-5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"form": "loop"}, "form must be 'scan' or 'parallel', got 'loop'"),
    ],
)
def test_wrong_options_are_refused(change, words):
    data = np.load(GOLDENS / "ssd_short.npz")
    inputs = (data[key] for key in ("x", "a", "B", "C"))
    with pytest.raises(ValueError, match=words):
        ssd.ssd_scan(*inputs, **({"chunk_size": 8} | change))
