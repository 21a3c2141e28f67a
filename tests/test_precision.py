"""The types of a run's numbers, seen in its state and in the compiled program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from roxxel import optim, sharding
from roxxel.checkpoint import Checkpointer
from roxxel.config import opened, resolve
from roxxel.config.arguments import parse
from roxxel.errors import ConfigError
from roxxel.models.losses import next_token_loss
from roxxel.models.ssm import Mamba2LM
from roxxel.train.optimizer import RunOptimizer
from roxxel.train.precision import Precision
from roxxel.train.step import make_train_step
from tests.tiny import compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once")


def built(precision, *, axes=None, count=1, ema_decay=None):
    """Modules, step, leaves and a batch on a mesh of the first devices."""
    mesh = None
    if axes is not None:
        devices = jax.devices()[: int(np.prod(list(axes.values())))]
        mesh = sharding.make_mesh(axes, devices)

    def create():
        model = Mamba2LM(
            vocab_size=16,
            d_model=16,
            n_layers=1,
            head_dim=8,
            state_dim=4,
            rngs=nnx.Rngs(0),
            **precision.model_options(),
        )
        tx = optim.adamw(schedule=lambda count: 1e-2)
        return model, RunOptimizer(model, tx, precision=precision, ema_decay=ema_decay)

    modules = sharding.create_on(mesh, create)
    step = make_train_step(
        *modules, next_token_loss, precision=precision, accumulate=count
    )
    tokens = np.random.default_rng(0).integers(0, 16, (8, 9)).astype(np.int32)
    batch = jax.device_put(tokens, sharding.batch_sharding(mesh))
    return modules, step, step.leaves(*modules), batch


def reductions(step, leaves, batch):
    """Types of the all-reduces of arrays in the program as it is handed to XLA."""
    text = jax.jit(step.function).lower(leaves, batch).as_text()
    found = re.findall(r"all_reduce.*?->\s*tensor<(\w+)>", text, re.DOTALL)
    return {each.split("x")[-1] for each in found if "x" in each}


def test_stored_in_bfloat16_the_matrices_have_a_float32_copy():
    (model, optimizer), step, leaves, batch = built(
        Precision(params="bfloat16", compute="bfloat16"), ema_decay=0.9
    )
    flat, _ = jax.tree_util.tree_flatten_with_path(nnx.state(model, nnx.Param))
    types = {optim.parameter_name(path): leaf.dtype for path, leaf in flat}
    matrices = [name for name, dtype in types.items() if dtype == jnp.bfloat16]
    assert matrices == ["blocks.0.mixer.in_proj", "blocks.0.mixer.out_proj"]
    assert {types[name] for name in types if name not in matrices} == {
        np.dtype("float32")
    }
    state = jax.tree.leaves(nnx.state(optimizer))
    assert {leaf.dtype for leaf in state if leaf.size > 1} == {jnp.dtype("float32")}
    for _ in range(3):
        leaves, metrics = step.run(leaves, batch)
    assert metrics["finite"]
    step.write_back(leaves, model, optimizer)
    exact = jax.tree.leaves(nnx.as_pure(nnx.state(optimizer.master)))
    rounded = jax.tree.leaves(nnx.as_pure(nnx.state(model, nnx.Param)))
    for copy, weight in zip(exact, rounded, strict=True):
        np.testing.assert_array_equal(copy.astype(weight.dtype), weight)
    assert any(
        np.any(copy != weight.astype(np.float32))
        for copy, weight in zip(exact, rounded, strict=True)
    )


@pytest.mark.slow
def test_the_float32_copy_learns_what_bfloat16_would_lose():
    """Two steps are near those in float32 although a weight is rounded each time."""
    ends = []
    for precision in (Precision(), Precision(params="bfloat16")):
        _, step, leaves, batch = built(precision)
        losses = []
        for _ in range(5):
            leaves, metrics = step.run(leaves, batch)
            losses.append(float(metrics["loss"]))
        ends.append(losses)
    np.testing.assert_allclose(*ends, rtol=2e-2)
    assert ends[1][-1] < ends[1][0] - 0.05


@pytest.mark.slow
def test_gradients_are_reduced_in_the_type_that_was_asked_for():
    ends = []
    for reduction in ("float32", "bfloat16"):
        precision = Precision(reductions=reduction)
        _, step, leaves, batch = built(precision, axes={"data": 2}, count=2)
        if reduction == "bfloat16":
            assert reductions(step, leaves, batch) == {"bf16"}
        program = step.compile(leaves, batch)
        if reduction == "float32":
            lines = re.findall(r"= (.*) all-reduce\(", program.as_text())
            types = set(re.findall(r"(\w+)\[\d", " ".join(lines)))
            assert types == {"f32"}
        _, metrics = program(leaves, batch)
        ends.append([float(metrics[name]) for name in ("loss", "grad_norm")])
    np.testing.assert_allclose(*ends, rtol=2e-2)
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)


def test_reductions_in_bfloat16_need_a_mesh_of_data_alone():
    with pytest.raises(ConfigError, match="needs a mesh with axes data and replica"):
        built(Precision(reductions="bfloat16"), axes={"data": 2, "fsdp": 2})


def test_a_run_is_used_in_the_types_that_it_computed_in(tmp_path):
    experiment = "--fdl_config=experiments.ssm_tiny(d_model=32, n_layers=1)"
    line = parse([experiment, "--fdl.precision.compute=bfloat16"])
    found = resolve.experiment(line)
    model = nnx.eval_shape(lambda: opened.part(found, "model")(rngs=nnx.Rngs(0)))
    assert model.compute_dtype == jnp.float32
    nnx.update(
        model,
        jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), nnx.state(model)),
    )
    with Checkpointer(tmp_path / "checkpoints", model) as checkpointer:
        checkpointer.save(3)
    run = opened.open_run(found, tmp_path)
    assert (run.step, run.model.compute_dtype) == (3, jnp.bfloat16)


def test_types_are_checked():
    with pytest.raises(ConfigError, match="params must be float32 or bfloat16"):
        Precision(params="float16")


def test_every_leaf_is_donated_and_none_is_copied():
    """State, mean, float32 copy and guard: each output takes an input's memory."""
    precision = Precision(params="bfloat16")
    _, step, leaves, batch = built(precision, axes={"data": 2}, ema_decay=0.9)
    program = step.compile(leaves, batch)
    header = program.as_text().split("\n", 1)[0]
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", header)[1]
    assert len(re.findall(r"may-alias|must-alias", aliases)) == len(leaves)
    program(leaves, batch)
    assert all(leaf.is_deleted() for leaf in leaves)
