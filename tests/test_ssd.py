"""The scan against float64 recurrences: values, gradients, states, any chunk size."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roxxel.models import ssd

GOLDENS = pathlib.Path(__file__).parent / "goldens"
CASES = {
    "ssd_basic": (1, 8, 16, 24, 64, 100),
    "ssd_init_state": (4, 16, 48),
    "ssd_ragged": (8, 16, 53, 64),
    "ssd_short": (8, 64),
    "ssd_strong_decay": (16, 64),
    "ssd_segments": (8, 16, 20, 48),
}
TOLERANCE = {"ssd_strong_decay": 2e-4}
INPUTS = ("x", "a", "B", "C", "h0")


def relative_error(got, want):
    """Largest error over the largest wanted value, as the goldens define it."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    return np.max(np.abs(got - want)) / max(1.0, np.max(np.abs(want)))


@pytest.mark.parametrize("form", ["scan", "parallel"])
@pytest.mark.parametrize(
    ("name", "chunk_size"), [(n, c) for n, sizes in CASES.items() for c in sizes]
)
def test_scan_matches_the_recurrence(name, chunk_size, form):
    data = np.load(GOLDENS / f"{name}.npz")
    names = [key for key in INPUTS if key in data]
    segment_ids = data.get("segment_ids")

    @jax.jit
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
