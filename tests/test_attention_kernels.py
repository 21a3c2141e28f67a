"""The TPU's fused attention, interpreted, against the plain one; who takes which."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roxxel import sharding
from roxxel.models import documents
from roxxel.models.attention_kernels import Causal, check
from roxxel.models.attention_parts import attend


def inputs(length=256, dtype=jnp.float32):
    """Queries of 4 heads, keys and values of 2, and two documents a row."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(1, length, heads, 64) for heads in (4, 2, 2)]
    q, k, v = (
        jax.random.normal(key, s, dtype) for key, s in zip(keys, shapes, strict=True)
    )
    runs_BL = (jnp.arange(length) >= 90).astype(jnp.int32)[None]
    return (q, k, v), runs_BL


@pytest.mark.parametrize(
    ("window", "has_documents"), [(None, False), (None, True), (40, True)]
)
def test_the_fused_kernel_equals_the_plain_attention(window, has_documents):
    qkv, runs_BL = inputs()
    where = documents.locate(runs_BL if has_documents else None, 256, None)
    fused = Causal(choice="flash", window=window, interpret=True)(*qkv, where)
    plain = Causal(choice="plain", window=window)(*qkv, where)
    np.testing.assert_allclose(fused, plain, atol=2e-5)


@pytest.mark.slow
def test_gradients_of_the_fused_kernel_equal_those_of_the_plain_attention():
    qkv, runs_BL = inputs()
    where = documents.locate(runs_BL, 256, None)

    def loss(qkv, **options):
        return jnp.sum(jnp.sin(Causal(window=40, **options)(*qkv, where)))

    fused = jax.grad(loss)(qkv, choice="flash", interpret=True)
    plain = jax.grad(loss)(qkv, choice="plain")
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize(
    ("platform", "length", "dtype", "documents_", "kernel"),
    [
        ("tpu", 256, jnp.float32, True, "splash"),
        ("tpu", 200, jnp.float32, False, None),  # no whole blocks
        ("gpu", 200, jnp.bfloat16, False, "cudnn"),
        ("gpu", 200, jnp.bfloat16, True, None),  # a mask would be made whole
        ("gpu", 200, jnp.float32, False, None),
        ("cpu", 256, jnp.bfloat16, False, None),
    ],
)
def test_auto_takes_the_platforms_kernel_where_it_fits(
    platform, length, dtype, documents_, kernel
):
    (q, k, _), runs_BL = inputs(length, dtype)
    where = documents.locate(runs_BL if documents_ else None, length, None)
    assert Causal(platform=platform).kernel(q, k, where) == kernel
    assert Causal(platform=platform, choice="plain").kernel(q, k, where) is None
    if kernel is None:
        with pytest.raises(ValueError, match=f"attention='flash': {platform} has no"):
            Causal(platform=platform, choice="flash").kernel(q, k, where)


def test_another_choice_is_refused():
    with pytest.raises(ValueError, match="must be one of 'auto', 'plain', 'flash'"):
        check("fast")


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 200])
def test_the_fused_kernel_on_parts_of_heads_and_sequence(window):
    (q, k, v), runs_BL = inputs(512)
    where = documents.locate(runs_BL, 512, None)
    mesh = sharding.make_mesh({"tensor": 2, "context": 2}, jax.devices()[:4])
    placed = sharding.Placed(mesh, sharding.DEFAULT_RULES)
    fused = Causal(choice="flash", window=window, interpret=True)
    run = jax.jit(lambda q, k, v: attend(fused, q, k, v, where, placed))
    plain = Causal(choice="plain", window=window)(q, k, v, where)
    np.testing.assert_allclose(run(q, k, v), plain, atol=2e-5)
