"""How long a save holds up training, beside the bare copy of the same state.

    python benchmarks/saving.py                    # 500 MB
    python benchmarks/saving.py --megabytes=100 --folder=/fast/disk

`save` is the time until `Checkpointer.save` comes back, after which the arrays may be
donated to the next step; `copy` that of copying every array from the device into fresh
memory of the host, which no save can do without. Rounds are interleaved, each save is
waited for before the next round; medians, and the ratio of each round.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel.checkpoint import Checkpointer

MEGABYTE = 10**6
ARRAY_ELEMENTS = 4 * MEGABYTE // 4  # 4 MB each, as layers of a small model


class State(nnx.Module):
    """Arrays of float32 that do not compress."""

    def __init__(self, megabytes):
        keys = jax.random.split(jax.random.key(0), megabytes // 4)
        self.arrays = nnx.List(
            [nnx.Param(jax.random.normal(key, (ARRAY_ELEMENTS,))) for key in keys]
        )


def copy(model):
    """Seconds of the bare copy into fresh memory."""
    leaves = jax.tree.leaves(nnx.state(model))
    start = time.perf_counter()
    kept = [np.array(leaf, copy=True) for leaf in leaves]
    seconds = time.perf_counter() - start
    assert kept
    return seconds


def save(checkpointer, number):
    """Seconds until the save comes back, and until it is written."""
    start = time.perf_counter()
    checkpointer.save(number)
    back = time.perf_counter() - start
    checkpointer.wait()
    return back, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=None, help="where checkpoints go")
    given = parser.parse_args()
    model = State(given.megabytes)
    jax.block_until_ready(jnp.zeros(1))
    copies, blocks, writes = [], [], []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = pathlib.Path(folder) / "checkpoints"
        with Checkpointer(path, model, max_to_keep=1, trust_labels=True) as checkpoints:
            for number in range(given.rounds + 1):
                copied = copy(model)
                block, whole = save(checkpoints, number + 1)
                if number:  # the first one opens Orbax
                    copies.append(copied)
                    blocks.append(block)
                    writes.append(whole)
    ratios = [block / one for block, one in zip(blocks, copies, strict=True)]
    print(f"{given.megabytes} MB of state, medians of {given.rounds} rounds")
    for name, values in (("copy", copies), ("save", blocks), ("written", writes)):
        print(f"  {name:8s} {1e3 * statistics.median(values):8.1f} ms")
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"  save / copy {statistics.median(ratios):.2f}  [{shown}]")


if __name__ == "__main__":
    main()
