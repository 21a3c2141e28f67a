"""Meshes, what lies where on them, and equal numbers on all of them."""

import collections
import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quick
from flax import nnx
from jax.sharding import PartitionSpec as P
from tiny import Bigram

from roxxel import optim, sharding
from roxxel.checkpoint import Checkpointer
from roxxel.errors import ConfigError
from roxxel.models.hybrid import HybridLM
from roxxel.models.losses import next_token_loss
from roxxel.models.transformer import TransformerLM
from roxxel.train import meshes
from roxxel.train.step import make_train_step


@pytest.mark.parametrize(
    ("axes", "devices", "sizes"),
    [
        ({"data": -1}, 8, {"data": 8}),
        ({"data": -1, "fsdp": 4}, 8, {"data": 2, "fsdp": 4}),
        ({"data": 2, "fsdp": 1}, 2, {"data": 2, "fsdp": 1}),
    ],
)
def test_axis_sizes_need_no_devices(axes, devices, sizes):
    assert sharding.axis_sizes(axes, devices) == sizes


@pytest.mark.parametrize(
    "axes",
    [
        {"data": 3},
        {"data": 0},
        {"data": -1, "fsdp": 3},
        {"data": -1, "fsdp": -1},
        {"data": -2, "fsdp": -4},
    ],
)
def test_axes_that_do_not_fit_are_refused(axes):
    with pytest.raises(ConfigError, match=r"do not fit 8 devices"):
        sharding.make_mesh(axes)


@pytest.mark.parametrize(
    ("axes", "rows"),
    [
        ({"data": 8}, P("data")),
        ({"data": 2, "fsdp": 4}, P(("data", "fsdp"))),
        ({"fsdp": 4, "tensor": 2}, P("fsdp")),
        ({"x": 4, "y": 2}, P("x")),  # no name that is known: the first
    ],
)
def test_rows_lie_over_the_axes_of_data(axes, rows):
    assert sharding.batch_sharding(sharding.make_mesh(axes)).spec == rows
    parts = np.prod([axes[name] for name in np.ravel(rows[0])])
    assert sharding.batch_shards(axes) == parts


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((64, 256), P(None, "fsdp")),
        ((256, 256), P("fsdp")),  # of equals the first
        ((1023, 64), P(None, "fsdp")),  # the largest does not divide
        ((4096,), P("fsdp")),
        ((4092,), P()),  # small
        ((1023, 1023), P()),  # nothing divides
        ((), P()),
    ],
)
def test_the_largest_dimension_that_divides_is_cut(shape, spec):
    assert sharding.parameter_sharding({"data": 2, "fsdp": 4}, shape) == spec
    assert sharding.parameter_sharding({"data": 8}, shape) == P()


def create():
    model = HybridLM(
        vocab_size=128,
        d_model=64,
        n_layers=2,
        pattern="MA",
        n_heads=4,
        ssm_head_dim=32,
        state_dim=16,
        chunk_size=16,
        rngs=nnx.Rngs(0),
    )
    return model, nnx.Optimizer(model, optax.sgd(1.0, momentum=0.9), wrt=nnx.Param)


def mesh_of(axes):
    devices = jax.devices()[: int(np.prod(list(axes.values())))]
    return sharding.make_mesh(axes, devices)


def created(**axes):
    """Model and optimizer on a mesh; what makes them is compiled once."""
    return nnx.merge(*_created(tuple(axes.items())), copy=True)


@functools.cache
def _created(axes):
    return nnx.split(sharding.create_on(mesh_of(dict(axes)), create))


@functools.cache
def one_step(axes):
    """State after a step with a learning rate of 1, and the loss, on a mesh."""
    mesh = mesh_of(dict(axes))
    model, optimizer = created(**dict(axes))
    step = make_train_step(model, optimizer, next_token_loss, donate=False)
    tokens = jax.random.randint(jax.random.key(1), (8, 33), 0, 128)
    tokens = jax.device_put(tokens, sharding.batch_sharding(mesh))
    before = step.leaves(model, optimizer)
    placed = [leaf.sharding for leaf in before]
    run = jax.jit(
        step.function, out_shardings=(placed, None), compiler_options=quick.OPTIONS
    )
    after, metrics = run(before, tokens)
    return after, float(metrics["loss"])


MESHES = [(("data", 2), ("fsdp", 4))]


@pytest.mark.slow
@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_numbers_are_the_same_on_every_mesh(axes):
    # With this learning rate the new parameters show the gradients themselves.
    want, loss = one_step((("data", 1),))
    got, got_loss = one_step(axes)
    assert got_loss == pytest.approx(loss, rel=1e-6)
    for one, other in zip(got, want, strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert np.abs(one - other).max() <= 1e-5 * max(1.0, np.abs(other).max())


def largest_piece(array):
    return max(shard.data.size for shard in array.addressable_shards)


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_a_device_holds_its_part_of_the_state_alone(axes):
    for module in created(**dict(axes)):
        leaves = jax.tree.leaves(nnx.state(module))
        large = [leaf for leaf in leaves if leaf.size >= sharding.MIN_SHARDED_ELEMENTS]
        assert len(large) > 5
        assert all(largest_piece(leaf) == leaf.size // 4 for leaf in large)


def test_a_checkpoint_moves_between_meshes(tmp_path):
    meshes = [{"fsdp": 4}, {"data": 2, "fsdp": 4}, {"data": 1}]
    model, optimizer = created(**meshes[0])
    want = [np.asarray(leaf) + 1 for leaf in jax.tree.leaves(nnx.state(model))]
    state = jax.tree.map(lambda leaf: leaf + 1, nnx.state(model))
    nnx.update(model, state)
    with Checkpointer(tmp_path, model, optimizer) as checkpointer:
        checkpointer.save(3)
    for axes in meshes:
        model, optimizer = created(**axes)
        places = [leaf.sharding for leaf in jax.tree.leaves(nnx.state(model))]
        with Checkpointer(tmp_path, model, optimizer) as checkpointer:
            assert checkpointer.restore() == 3
        got = jax.tree.leaves(nnx.state(model))
        assert all(map(np.array_equal, got, want))
        for leaf, place in zip(got, places, strict=True):
            assert leaf.sharding.is_equivalent_to(place, leaf.ndim)


def test_a_model_on_a_mesh_is_gathered_on_one_device():
    """As it is sampled from at the end of a run."""
    model, _ = created(fsdp=4)
    assert meshes.fits_one_device(model)
    abstract = nnx.eval_shape(lambda: create()[0])
    alone = nnx.merge(
        nnx.graphdef(abstract), meshes.gathered(model, mesh_of({"fsdp": 4}))
    )
    pairs = (jax.tree.leaves(nnx.state(one)) for one in (alone, model))
    for got, want in zip(*pairs, strict=True):
        assert got.sharding.device_set == {jax.devices()[0]}
        np.testing.assert_array_equal(got, want)
    assert all(b.placement is None for b in alone.blocks if hasattr(b, "placement"))


def test_a_mesh_leaves_rows_that_do_not_divide_alone():
    model, _ = created(fsdp=4)
    run = jax.jit(lambda t: model(t)[0:2], compiler_options=quick.OPTIONS)
    logits, _ = run(jnp.ones((1, 5), jnp.int32))
    assert np.isfinite(logits).all()


def test_abstract_modules_lie_where_the_created_ones_do():
    mesh = sharding.make_mesh({"data": 2, "fsdp": 4})

    def create():
        model = Bigram(128, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    made, shapes = (f(mesh, create) for f in (sharding.create_on, sharding.abstract_on))
    step = make_train_step(*made, next_token_loss)
    pairs = list(zip(step.leaves(*made), step.leaves(*shapes), strict=True))
    assert any(array.sharding.spec == P("fsdp") for array, _ in pairs)
    for array, shape in pairs:
        assert isinstance(shape, jax.ShapeDtypeStruct)
        assert (array.shape, array.dtype) == (shape.shape, shape.dtype)
        assert array.sharding.is_equivalent_to(shape.sharding, array.ndim)


@pytest.mark.parametrize(
    ("axes", "outer", "sizes"),
    [
        ({"data": -1, "fsdp": 2}, {"data": 2}, {"data": 4, "fsdp": 2}),
        ({"fsdp": -1}, {"data": 2}, {"data": 2, "fsdp": 4}),  # over slices alone
        ({"data": 2, "fsdp": 2}, {"fsdp": 2}, {"data": 2, "fsdp": 4}),
        ({"data": -1}, None, {"data": 8}),
    ],
)
def test_sizes_within_and_over_slices(axes, outer, sizes):
    assert sharding.axis_sizes(axes, 8, outer) == sizes


def test_a_slice_lies_together_on_every_axis():
    devices = jax.devices()
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2}, devices, {"data": 2})
    # Rows of the mesh 0 and 1 are the first slice, the first four devices.
    assert [[d.id for d in row] for row in mesh.devices] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2}, devices, {"fsdp": 2})
    assert [[d.id for d in row] for row in mesh.devices] == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("axes", "outer", "words"),
    [
        ({"data": -1}, {"data": 3}, r"dcn_axes {'data': 3} do not fit 8 devices"),
        ({"data": -1}, {"data": -1}, r"dcn_axes {'data': -1} do not fit 8 devices"),
        ({"data": 8}, {"data": 2}, r"do not fit 4 devices of each of 2 slices"),
    ],
)
def test_slices_that_do_not_fit_are_refused(axes, outer, words):
    with pytest.raises(ConfigError, match=words):
        sharding.make_mesh(axes, dcn_axes=outer)


@pytest.mark.parametrize(
    ("shape", "names", "spec"),
    [
        ((64, 256), ("embed", "mlp"), P("fsdp", "tensor")),
        ((256, 64), ("mlp", "embed"), P("tensor", "fsdp")),
        ((256, 63), ("vocab", "embed"), P(("tensor", "fsdp"))),  # cut once more
        ((64, 255), ("embed", "mlp"), P("fsdp")),  # odd
        ((64, 256), None, P(None, "fsdp")),  # a module that names nothing
        ((4096,), ("embed", "mlp"), P("fsdp")),  # a factored moment
        ((16, 16), ("embed", "mlp"), P()),  # small
    ],
)
def test_a_parameter_is_cut_by_its_names_and_then_the_largest(shape, names, spec):
    sizes = {"fsdp": 4, "tensor": 2}
    assert sharding.parameter_sharding(sizes, shape, names) == spec


def test_rules_say_which_axis_cuts_what():
    rules = sharding.AxisRules(mlp=None, largest=("fsdp", "tensor"), batch="fsdp")
    sizes = {"data": 2, "fsdp": 2, "tensor": 2}
    spec = sharding.parameter_sharding(sizes, (64, 256), ("embed", "mlp"), rules)
    assert spec == P(None, ("fsdp", "tensor"))
    assert sharding.batch_axes(sizes, rules) == ("fsdp",)
    assert sharding.batch_axes({"tensor": 8}) == ()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"length": "data"}, "batch and length name the same axis 'data'"),
        ({"mlp": "context"}, "length and mlp name the same axis 'context'"),
        ({"heads": 2}, "heads must be an axis, a tuple of axes or None, got 2"),
    ],
)
def test_rules_that_cut_twice_are_refused(rules, words):
    with pytest.raises(ConfigError, match=words):
        sharding.AxisRules(**rules)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"tensor": 8}, r"n_heads = 4 does not divide by 8 \(tensor\)"),
        ({"tensor": 3}, r"vocab_size, padded to pad_vocab_to, = 128 .* 3 \(tensor\)"),
        ({"tensor": 8}, r"heads of a Mamba-2 block = 4 does not divide by 8"),
    ],
)
def test_sizes_of_a_model_that_do_not_divide_are_named(sizes, words):
    model = nnx.eval_shape(lambda: create()[0])
    problems = sharding.model_problems(model, sizes)
    assert any(re.search(words, problem) for problem in problems)
    assert sharding.model_problems(model, {"tensor": 4, "context": 8}) == []
    with pytest.raises(ConfigError, match="does not divide by 8"):
        sharding.abstract_on(sharding.make_mesh({"tensor": 8}), create)


def test_axes_that_cut_nothing_are_named():
    for axes in ({"data": 8}, {"data": 4, "other": 1}, {"x": 8}, {"replica": 2}):
        assert sharding.axis_problem(axes) is None
    problem = sharding.axis_problem({"data": 2, "fspd": 4})
    assert problem == (
        "mesh axis 'fspd' cuts nothing: axis_rules name data, replica, fsdp, context, "
        "tensor; rename it, or name it there."
    )
    rules = sharding.AxisRules(embed="fspd")
    assert sharding.axis_problem({"data": 2, "fspd": 4}, rules) is None


def test_lengths_that_do_not_divide_are_named():
    problem = sharding.length_problem("stream", 513, {"context": 4})
    assert problem == (
        "stream: seq_len 513 does not divide by 4 (context); "
        "nearest that do: 512 or 516."
    )
    assert sharding.length_problem("stream", 512, {"context": 4}) is None


def test_a_large_model_is_born_in_its_parts():
    """No program and no array holds more on a device than its share and one layer."""
    mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
    modules = sharding.abstract_on(mesh, large)
    leaves = jax.tree.leaves([nnx.state(module) for module in modules])
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    layer = sum(
        leaf.size * 4 for leaf in jax.tree.leaves(nnx.state(modules[0].blocks[0]))
    )
    share = sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) * 4 for leaf in leaves)
    assert share < whole / 7.5  # eight devices, and what is too small to cut
    program = sharding.creation(mesh, large).lower().compile()
    memory = program.memory_analysis()
    assert memory.output_size_in_bytes <= share * 1.01
    assert memory.temp_size_in_bytes <= layer
    before = jax.live_arrays()
    made = jax.block_until_ready(program())
    assert len(jax.tree.leaves(made)) == len(leaves)
    known = set(map(id, before))
    held = held_by_device(a for a in jax.live_arrays() if id(a) not in known)
    assert len(held) == 8
    assert max(held.values()) <= share * 1.01


def large():
    model = TransformerLM(
        vocab_size=256, d_model=128, n_layers=2, n_heads=2, d_ff=256, rngs=nnx.Rngs(0)
    )
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


def updated(make, axes):
    """Parameters and state of an optimizer after three given gradients, on a mesh."""

    def create():
        model = TransformerLM(
            **{"vocab_size": 128, "d_model": 128, "n_layers": 1, "n_heads": 2},
            **{"d_ff": 128, "rngs": nnx.Rngs(0)},
        )
        tx = make(schedule=lambda count: 0.1 / (1 + count))
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    mesh = mesh_of(axes)
    graphdef, state = nnx.split(sharding.abstract_on(mesh, create))
    places = None if mesh is None else jax.tree.map(lambda leaf: leaf.sharding, state)
    rng = np.random.default_rng(0)

    def begin(leaf):  # without a program: moments and counts begin at zero
        def put(array):
            is_weight = isinstance(leaf, nnx.Param)
            value = rng.normal(size=array.shape) if is_weight else 0
            full = np.full(array.shape, value, array.dtype)
            return jax.device_put(full, array.sharding)

        return leaf.replace(jax.tree.map(put, leaf.get_value()))

    is_variable = lambda leaf: isinstance(leaf, nnx.Variable)  # noqa: E731
    state = jax.tree.map(begin, state, is_leaf=is_variable)

    @functools.partial(jax.jit, out_shardings=places, compiler_options=quick.OPTIONS)
    def run(state, key):
        model, optimizer = nnx.merge(graphdef, state)
        params = nnx.state(model, nnx.Param)
        leaves, treedef = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        grads = [
            jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)
        ]
        optimizer.update(model, jax.tree.unflatten(treedef, grads))
        return nnx.state((model, optimizer))

    for seed in range(3):
        state = run(state, jax.random.key(seed))
    return jax.tree.leaves(state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [optim.muon, optim.adamw, optim.lion, optim.adafactor, optim.sgd]
)
def test_optimizers_update_parts_as_the_whole(make):
    one = updated(make, {"data": 1})
    many = updated(make, {"fsdp": 2, "tensor": 2})
    assert any(largest_piece(leaf) < leaf.size for leaf in many)
    for got, want in zip(many, one, strict=True):
        far = np.abs(np.asarray(got, np.float64) - np.asarray(want, np.float64)).max()
        assert far <= 1e-5 * max(1.0, np.abs(want).max())


def held_by_device(arrays):
    held = collections.Counter()
    for array in arrays:
        part = array.sharding.shard_shape(array.shape)
        for device in array.sharding.device_set:
            held[device] += int(np.prod(part)) * array.dtype.itemsize
    return held


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a mesh asks of a TPU that is not here."""

    id: int
    coords: tuple[int, int, int]
    slice_index: int
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"
    core_on_chip: int = 0

    @property
    def process_index(self):
        return self.id // 4


def test_axes_within_a_slice_need_not_be_sides_of_its_grid():
    """A slice of 4 x 4 chips has no side of 8."""
    places = itertools.product(range(2), range(4), range(4))
    chips = [Chip(n, (x, y, 0), s) for n, (s, y, x) in enumerate(places)]
    mesh = sharding.make_mesh({"data": 2, "fsdp": 8}, chips, {"data": 2})
    assert dict(mesh.shape) == {"data": 4, "fsdp": 8}
    slices = [{chip.slice_index for chip in row} for row in mesh.devices]
    assert slices == [{0}, {0}, {1}, {1}]
