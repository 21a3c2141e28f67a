"""The same loss and gradients on every mesh, scanned or not, under every remat policy.

One table over the model families. Compiling is all that a case costs: the one in which
both kinds of blocks and all axes meet is run by default, the rest with the slow tests.
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

SEPARATOR = 3
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

EACH = [{"data": 8}, {"fsdp": 4}, {"tensor": 2}, {"context": 4}]
EACH += [{"fsdp": 2, "tensor": 2, "context": 2}]
# Each by one family.
MORE = [{"data": 2}, {"tensor": 4}, {"context": 2}, {"data": 2, "fsdp": 4}]
MORE += [{"data": 2, "tensor": 4}, {"data": 2, "fsdp": 2, "tensor": 2}]
# Over two processes of two devices: the first axis lies over the processes.
ACROSS = {
    "ssm": {"context": 2, "tensor": 2},
    "transformer": {"data": 2, "fsdp": 2},
    "hybrid": {"fsdp": 2, "context": 2},
}
REMATS = ("none", "full", "dots", "scan")
DEFAULT = [("hybrid", {"fsdp": 2, "tensor": 2, "context": 2}, True, "scan")]


def slow_cases():
    """Each family on each axis alone and on all; policies and loops in turn."""
    ways = list(itertools.product(REMATS, (True, False)))
    for at, family in enumerate(MODELS):
        # Seven of the eight ways: every policy.
        for index, axes in enumerate(EACH + MORE[at :: len(MODELS)]):
            remat, scan_layers = ways[(3 * index + at) % len(ways)]
            case = (family, axes, scan_layers, remat)
            if case not in DEFAULT:
                yield pytest.param(*case, marks=pytest.mark.slow, id=_name(*case))


def _name(family, axes, scan_layers, remat):
    mesh = "-".join(f"{name}{size}" for name, size in axes.items())
    return f"{family}-{mesh}-{'scan' if scan_layers else 'unrolled'}-{remat}"


def batch():
    """Tokens of 32 steps and one, and an uneven loss mask."""
    tokens = jax.random.randint(jax.random.key(1), (8, 33), 0, 24)
    return tokens, jax.random.bernoulli(jax.random.key(2), 0.7, tokens.shape)


def loss_and_gradients(family, axes, **options):
    """In float64 on the host, from the same initial values on any mesh."""
    cls, sizes = MODELS[family]
    devices = jax.devices()[: int(np.prod(list(axes.values())))]
    mesh = sharding.make_mesh(axes, devices)
    create = lambda: (cls(**COMMON, **sizes, **options, rngs=nnx.Rngs(0)),)  # noqa: E731
    (model,) = sharding.create_on(mesh, create)
    graphdef, state = nnx.split(model)

    def loss(state, batch):
        return next_token_loss(nnx.merge(graphdef, state), *batch)[0]

    run = jax.jit(jax.value_and_grad(loss), compiler_options=quick.OPTIONS)
    rows = jax.tree.map(np.asarray, batch())
    placed = jax.device_put(rows, sharding.batch_sharding(mesh))
    value, gradients = run(state, placed)
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
    ("family", "axes", "scan_layers", "remat"),
    [pytest.param(*case, id=_name(*case)) for case in DEFAULT] + list(slow_cases()),
)
def test_loss_and_gradients_are_those_of_one_device(family, axes, scan_layers, remat):
    got = loss_and_gradients(family, axes, scan_layers=scan_layers, remat=remat)
    check_equal(got, on_one_device(family), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_bfloat16_agrees_with_one_device_to_its_own_precision(family):
    axes = {"fsdp": 2, "tensor": 2, "context": 2}
    got = loss_and_gradients(family, axes, compute_dtype=jnp.bfloat16, remat="dots")
    check_equal(got, on_one_device(family, "bfloat16"), 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [True, False], ids=["scan", "unrolled"])
@pytest.mark.parametrize("remat", REMATS)
def test_one_device_unrolled_or_scanned_under_every_policy(remat, scan_layers):
    options = {"scan_layers": scan_layers, "remat": remat}
    got = loss_and_gradients("hybrid", {"data": 1}, **options)
    check_equal(got, on_one_device("hybrid"), 1e-5)


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
