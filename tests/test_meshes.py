"""The same loss and gradients on every mesh, whole or in micro-batches, scanned or not,
under every remat policy, in both compute types.

One table: model families, meshes, and what is computed on each. Policies and loops take
turns over its cases. Compiling is all that a case costs: one in which both kinds of
blocks and all axes meet is run by default, the rest with the slow tests.
"""

import functools
import itertools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from flax import nnx
from jax.experimental import multihost_utils

from launch import local
from roxxel import sharding
from roxxel.checkpoint import Checkpointer
from roxxel.models.hybrid import HybridLM
from roxxel.models.losses import next_token_loss
from roxxel.models.ssm import Mamba2LM
from roxxel.models.transformer import TransformerLM
from roxxel.train import accumulate

SEPARATOR = 3
# Of a batch: in four micro-batches each of eight devices has one.
ROWS = 32
COMMON = {"vocab_size": 128, "d_model": 64, "separator_id": SEPARATOR}
# Documents end within and at the borders of the parts of a row; heads of keys and
# groups are fewer than the four devices of an axis.
SSM = {"state_dim": 16, "chunk_size": 8}
ATTENTION = {"n_heads": 4, "n_kv_heads": 2, "d_ff": 64}
MODELS = {
    "ssm": (Mamba2LM, {"n_layers": 2, "head_dim": 16, "n_groups": 2} | SSM),
    "transformer": (
        TransformerLM,
        {"n_layers": 2, "window": 10, "qk_norm": True} | ATTENTION,
    ),
    "hybrid": (
        HybridLM,
        {"n_layers": 4, "pattern": "MA", "ssm_head_dim": 32, "form": "parallel"}
        | SSM
        | ATTENTION,
    ),
}

MIXED = {"fsdp": 2, "tensor": 2, "context": 2}
MESHES = [{"data": 2}, {"data": 8}, {"fsdp": 4}, {"tensor": 2}, {"tensor": 4}]
MESHES += [{"context": 2}, {"context": 4}, {"data": 2, "fsdp": 4}]
MESHES += [{"data": 2, "tensor": 4}, {"data": 2, "fsdp": 2, "tensor": 2}, MIXED]
# Compute types and micro-batches of a step.
STEPS = [("float32", 1), ("float32", 2), ("float32", 4), ("bfloat16", 2)]
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
# Over two processes of two devices: the first axis lies over the processes.
ACROSS = {
    "ssm": {"context": 2, "tensor": 2},
    "transformer": {"data": 2, "fsdp": 2},
    "hybrid": {"fsdp": 2, "context": 2},
}
REMATS = ("none", "full", "dots", "scan")
DEFAULT = ("hybrid", MIXED, "float32", 2)


def table():
    """Every family on every mesh with every kind of step: remat and loop in turn."""
    ways = list(itertools.product(REMATS, (True, False)))
    cases = itertools.product(MODELS, MESHES, STEPS)
    for number, (family, axes, step) in enumerate(cases):
        # Every kind of step meets every way.
        turn = number + number // len(STEPS)
        remat, scan_layers = ways[turn % len(ways)]
        case = (family, axes, *step)
        mesh = "-".join(f"{name}{size}" for name, size in axes.items())
        loop = "scan" if scan_layers else "unrolled"
        name = f"{family}-{mesh}-{step[0]}-{step[1]}-{loop}-{remat}"
        marks = () if case == DEFAULT else pytest.mark.slow
        yield pytest.param(*case, scan_layers, remat, marks=marks, id=name)


def batch():
    """Tokens of 32 steps and one, masks from full to nearly empty, and two empty ones.

    Micro-batch i of n has rows i, i + n and so on.
    """
    tokens = jax.random.randint(jax.random.key(1), (ROWS, 33), 0, 24)
    kept = jnp.linspace(1.0, 0.2, ROWS)[:, None]
    mask = jax.random.bernoulli(jax.random.key(2), kept, tokens.shape)
    return tokens, mask.at[jnp.array([2, 6])].set(False)


def loss_and_gradients(family, axes, *, count=1, **options):
    """In float64 on the host, from the same initial values on any mesh."""
    cls, sizes = MODELS[family]
    devices = jax.devices()[: int(np.prod(list(axes.values())))]
    mesh = sharding.make_mesh(axes, devices)
    create = lambda: (cls(**COMMON, **sizes, **options, rngs=nnx.Rngs(0)),)  # noqa: E731
    (model,) = sharding.create_on(mesh, create)
    graphdef, state = nnx.split(model)

    def run(batch, state):
        loss = lambda model, rows: next_token_loss(model, *rows)  # noqa: E731
        return accumulate.gradients(loss, batch, graphdef, state, count=count)[::2]

    rows = jax.tree.map(np.asarray, batch())
    placed = jax.device_put(rows, sharding.batch_sharding(mesh))
    value, gradients = jax.jit(run, compiler_options=quick.OPTIONS)(placed, state)
    for gradient, parameter in zip(
        *map(jax.tree.leaves, (gradients, state)), strict=True
    ):
        assert gradient.dtype == parameter.dtype
    flat = jax.tree_util.tree_leaves_with_path(gradients)
    return float(value), {
        jax.tree_util.keystr(path): whole(leaf).astype(np.float64)
        for path, leaf in flat
    }


def whole(array):
    """On the host, of whichever processes it lies over."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


@functools.cache
def on_one_device(family, dtype="float32"):
    return loss_and_gradients(family, {"data": 1}, compute_dtype=jnp.dtype(dtype))


def check_equal(got, want, tolerance):
    assert got[0] == pytest.approx(want[0], rel=tolerance)
    assert got[1].keys() == want[1].keys()
    for name, gradient in want[1].items():
        far = np.abs(got[1][name] - gradient).max()
        assert far <= tolerance * max(np.abs(gradient).max(), 1e-3), name


@pytest.mark.parametrize(
    ("family", "axes", "dtype", "count", "scan_layers", "remat"), list(table())
)
def test_loss_and_gradients_are_those_of_one_device(
    family, axes, dtype, count, scan_layers, remat
):
    got = loss_and_gradients(
        family,
        axes,
        count=count,
        compute_dtype=jnp.dtype(dtype),
        scan_layers=scan_layers,
        remat=remat,
    )
    check_equal(got, on_one_device(family, dtype), TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [True, False], ids=["scan", "unrolled"])
@pytest.mark.parametrize("remat", REMATS)
def test_one_device_unrolled_or_scanned_under_every_policy(remat, scan_layers):
    options = {"scan_layers": scan_layers, "remat": remat}
    got = loss_and_gradients("hybrid", {"data": 1}, **options)
    check_equal(got, on_one_device("hybrid"), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("family", MODELS)
def test_one_device_in_micro_batches(family, count):
    got = loss_and_gradients(family, {"data": 1}, count=count)
    check_equal(got, on_one_device(family), 1e-5)


@pytest.mark.slow
def test_two_processes_have_the_numbers_of_one_device(tmp_path):
    root, port = pathlib.Path(__file__).parent, local.free_port()
    children = [
        subprocess.Popen(
            [sys.executable, str(root / "mesh_child.py"), str(tmp_path)],
            env=os.environ
            | {"PYTHONPATH": str(root.parent)}
            | local.environment(index, 2, port, 2),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for child in children:
            output, _ = child.communicate(timeout=280)
            assert child.returncode == 0, output
    finally:
        for child in children:
            child.kill()
    for family in ACROSS:
        with np.load(tmp_path / f"{family}.npz") as found:
            got = {key: found[key] for key in found.files}
        check_equal((float(got.pop("loss")), got), on_one_device(family), 1e-5)


def test_scanned_layers_are_kept_as_unrolled_ones(tmp_path):
    """A checkpoint of either way to run the layers restores into the other."""
    for scan_layers in (True, False):
        model, other = (tiny(scan_layers=way) for way in (scan_layers, not scan_layers))
        want = [np.asarray(leaf) + 1 for leaf in jax.tree.leaves(nnx.state(model))]
        nnx.update(model, jax.tree.map(lambda leaf: leaf + 1, nnx.state(model)))
        with Checkpointer(tmp_path / str(scan_layers), model) as checkpointer:
            checkpointer.save(1)
        with Checkpointer(tmp_path / str(scan_layers), other) as checkpointer:
            assert checkpointer.restore() == 1
        assert all(map(np.array_equal, jax.tree.leaves(nnx.state(other)), want))


def tiny(**options):
    sizes = {"vocab_size": 16, "d_model": 8, "n_layers": 2, "n_heads": 1, "d_ff": 8}
    return TransformerLM(**sizes, **options, rngs=nnx.Rngs(0))
