"""The Mamba-2 model in training: documents, bfloat16, long rows, initial values."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quick
from flax import nnx

from roxxel.models import losses, ssm

# One layer where one shows it: compiling is nearly all that these tests cost.
SIZES = {"d_model": 16, "n_layers": 1, "head_dim": 8, "state_dim": 8, "chunk_size": 8}
SEPARATOR = 31


def make(**options):
    options = {"vocab_size": 32, **SIZES, "rngs": nnx.Rngs(0)} | options
    return ssm.Mamba2LM(**options)


@quick.jit
def forward(model, tokens, segment_ids=None, state=None):
    return model(tokens, segment_ids_BL=segment_ids, state=state)


def all_finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


def random_tokens(seed, *shape, low=0, high=30):
    return jax.random.randint(jax.random.key(seed), shape, low, high)


# Document A of 13 tokens and its separator, then document B: the border lies inside a
# chunk of 8, so both the chunk's matrix and the carried state could leak.
BORDER = 14


def two_documents(last_of_a):
    a = random_tokens(1, 13, low=0, high=15).at[-1].set(last_of_a)
    b = random_tokens(2, 16, low=16, high=30)
    tokens = jnp.concatenate([a, jnp.array([SEPARATOR]), b])[None]
    segment_ids = (jnp.arange(tokens.shape[1]) >= BORDER).astype(jnp.int32)[None]
    return tokens, segment_ids


@pytest.mark.parametrize(
    ("form", "separator_id"),
    [("scan", None), ("scan", SEPARATOR), ("parallel", None)],
)
def test_a_document_sees_nothing_of_the_one_before(form, separator_id):
    model = make(form=form, separator_id=separator_id, n_layers=2)
    logits = []
    for last_of_a in (3, 9):
        tokens, segment_ids = two_documents(last_of_a)
        given = segment_ids if separator_id is None else None
        logits.append(np.asarray(forward(model, tokens, given)[0]))
    # Bit for bit, from B's first steps on, where the convolution reaches back.
    np.testing.assert_array_equal(logits[0][:, BORDER:], logits[1][:, BORDER:])
    alone = forward(model, tokens[:, BORDER:])[0]
    np.testing.assert_allclose(logits[1][:, BORDER:], alone, atol=1e-5)


def test_documents_leak_where_the_option_is_off():
    logits = [forward(make(), two_documents(last)[0])[0] for last in (3, 9)]
    assert (logits[0][:, BORDER] != logits[1][:, BORDER]).any()


@pytest.mark.parametrize("form", ["scan", "parallel"])
def test_no_gradient_crosses_a_document_border(form):
    model = make(form=form, tie_embeddings=False)
    tokens, segment_ids = two_documents(3)

    def loss_of_b(model):
        logits, _ = model(tokens[:, :-1], segment_ids_BL=segment_ids[:, :-1])
        return losses.cross_entropy(logits, tokens[:, 1:])[:, BORDER:].sum()

    grads = quick.jit(nnx.grad(loss_of_b))(model).embedding[...]
    assert (grads[:16] == 0).all()  # A's ids
    assert (grads[SEPARATOR] == 0).all()
    assert (grads[16:30] != 0).any()


@pytest.mark.parametrize("separator_id", [None, SEPARATOR])
def test_state_carried_over_cuts_equals_one_call(separator_id):
    model = make(separator_id=separator_id)
    tokens, segment_ids = two_documents(3)
    ids = segment_ids if separator_id is None else None
    whole, _ = forward(model, tokens, ids)
    state, logits = None, []
    # Cuts at the border and one step after it, where old convolution rows remain.
    for piece in np.split(np.arange(tokens.shape[1]), [BORDER, BORDER + 1]):
        part = None if ids is None else ids[:, piece]
        out, state = forward(model, tokens[:, piece], part, state)
        logits.append(out)
    np.testing.assert_allclose(jnp.concatenate(logits, 1), whole, atol=1e-5)


def test_steps_with_document_borders_equal_the_parallel_form():
    model = make()
    tokens, segment_ids = two_documents(3)
    whole, _ = forward(model, tokens, segment_ids)
    step = quick.jit(lambda m, t, s, i: m.step(t, s, segment_ids_B=i))
    state = model.init_state(1)
    for index in range(tokens.shape[1]):
        logits, state = step(model, tokens[:, index], state, segment_ids[:, index])
        np.testing.assert_allclose(logits, whole[:, index], atol=1e-5)


def test_bfloat16_trains_on_random_tokens_and_keeps_float32_where_it_matters():
    model = make(compute_dtype=jnp.bfloat16)
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, tokens):
        loss_fn = lambda m: losses.next_token_loss(m, tokens)[0]  # noqa: E731
        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    values = [step(model, optimizer, random_tokens(i, 4, 33)) for i in range(80)]
    assert all_finite(values)
    assert all_finite(nnx.state(model, nnx.Param))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))}
    assert dtypes == {jnp.dtype(jnp.float32)}
    logits, state = forward(model, random_tokens(0, 1, 9))
    assert logits.dtype == jnp.float32
    assert {layer.ssm.dtype for layer in state.layers} == {jnp.dtype(jnp.float32)}
    assert {layer.conv.dtype for layer in state.layers} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.slow
@pytest.mark.parametrize("is_text", [False, True], ids=["random", "text"])
def test_ssm_tiny_in_bfloat16_stays_finite_for_300_steps(is_text):
    """The shape of experiments.ssm_tiny at a rate of 3e-3, the last rows long."""
    model = ssm.Mamba2LM(
        vocab_size=256,
        d_model=128,
        n_layers=2,
        head_dim=32,
        state_dim=32,
        compute_dtype=jnp.bfloat16,
        rngs=nnx.Rngs(0),
    )
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, tokens):
        compute = nnx.value_and_grad(lambda m: losses.next_token_loss(m, tokens)[0])
        loss, grads = compute(model)
        optimizer.update(model, grads)
        return loss

    text = np.frombuffer(pathlib.Path(__file__).read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    values = []
    for shape in [(4, 129)] * 297 + [(1, 4097)] * 3:
        tokens = rng.integers(0, 256, shape)
        if is_text:
            starts = rng.integers(0, len(text) - shape[1], shape[0])
            tokens = np.stack([text[s : s + shape[1]] for s in starts])
        values.append(step(model, optimizer, jnp.asarray(tokens, jnp.int32)))
    assert all_finite(values)
    assert all_finite(nnx.state(model))
    if is_text:
        assert float(values[-1]) < float(values[0]) / 2


def test_bfloat16_is_close_to_float32():
    tokens = random_tokens(5, 2, 40)
    exact = forward(make(tie_embeddings=False), tokens)[0]
    rounded = forward(make(tie_embeddings=False, compute_dtype=jnp.bfloat16), tokens)[0]
    assert (rounded != exact).any()
    assert float(jnp.max(jnp.abs(rounded - exact))) < 2e-2 * float(
        jnp.max(jnp.abs(exact))
    )


def test_long_rows_of_any_content_stay_finite():
    model = make(compute_dtype=jnp.bfloat16, chunk_size=64)
    # Decays of the strongest kind: dt of several units, A = -16.
    mixer = model.blocks[0].mixer
    mixer.dt_bias[...] = jnp.full_like(mixer.dt_bias[...], 5.0)
    mixer.A_log[...] = jnp.full_like(mixer.A_log[...], jnp.log(16.0))
    compute = quick.jit(
        nnx.value_and_grad(lambda m, tokens: losses.next_token_loss(m, tokens)[0])
    )
    for tokens in (random_tokens(6, 1, 4097), jnp.full((1, 4097), 7)):
        loss, grads = compute(model, tokens)
        assert all_finite((loss, grads))


def test_lanes_change_no_result():
    tokens = random_tokens(7, 4, 21)
    one, two = (forward(make(scan_lanes=lanes), tokens) for lanes in (1, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, two)


def test_lanes_that_do_not_divide_the_batch_are_one():
    tokens = random_tokens(7, 4, 21)
    one, three = (
        str(jax.make_jaxpr(make(scan_lanes=lanes))(tokens)) for lanes in (1, 3)
    )
    assert one == three


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"d_model": 256, "n_layers": 6}, 2_657_936),
        ({"d_model": 160, "n_layers": 4}, 751_580),
        ({"d_model": 128, "n_layers": 2, "head_dim": 32, "state_dim": 32}, 251_952),
    ],
)
def test_parameters_are_counted_without_making_them(options, count):
    model = nnx.eval_shape(
        lambda: ssm.Mamba2LM(vocab_size=256, **options, rngs=nnx.Rngs(0))
    )
    assert ssm.num_params(model) == count


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_first_loss_is_that_of_guessing(tie_embeddings):
    model = ssm.Mamba2LM(
        vocab_size=256,
        d_model=64,
        n_layers=1,
        head_dim=32,
        state_dim=16,
        tie_embeddings=tie_embeddings,
        rngs=nnx.Rngs(0),
    )
    tokens = random_tokens(8, 4, 65, high=256)
    loss, weight = quick.jit(losses.next_token_loss)(model, tokens)
    assert abs(float(loss) - np.log(256)) < 0.1
    assert float(weight) == 4 * 64


def test_decays_start_in_the_published_ranges():
    mixer = make(d_model=256, head_dim=8, n_layers=1).blocks[0].mixer
    rates = np.exp(mixer.A_log[...])
    steps = np.asarray(jax.nn.softplus(mixer.dt_bias[...]))
    assert rates.min() >= 1 - 1e-5
    assert rates.max() <= 16 + 1e-4
    assert rates.std() > 2
    assert steps.min() >= 1e-3 * 0.999
    assert steps.max() <= 0.1 * 1.001


def test_nothing_counted_is_a_loss_of_zero_and_no_update():
    model = make()
    tokens = random_tokens(9, 2, 9)
    (loss, weight), grads = quick.jit(
        nnx.value_and_grad(losses.next_token_loss, has_aux=True)
    )(model, tokens, jnp.zeros((2, 9)))
    assert (float(loss), float(weight)) == (0.0, 0.0)
    assert all(not leaf.any() for leaf in jax.tree.leaves(grads))


def test_first_token_of_a_document_is_no_target():
    model = make()
    tokens, segment_ids = two_documents(3)
    loss_fn = quick.jit(losses.next_token_loss)
    _, weight = loss_fn(model, tokens, None, segment_ids)
    assert float(weight) == tokens.shape[1] - 2


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"expand \* d_model = 32 .* head_dim = 12"):
        make(head_dim=12)
    with pytest.raises(ValueError, match=r"heads = 4 .* n_groups = 3"):
        make(n_groups=3)
