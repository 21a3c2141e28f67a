"""A minimal hand-written JAX training loop of the Transformer: the limit for ours.

Plain functions over a dict, optax for AdamW, jax.nn.dot_product_attention; no modules,
no metrics, no checks. Sizes as `roxxel_side.py`.
"""

import json
import sys

from trainbench import sides

from roxxel.allocator import restart_with_kept_memory


def main():
    import jax
    import jax.numpy as jnp
    import optax

    options = json.loads(sys.argv[1])
    sizes = options["sizes"]
    width, heads, inner = sizes["d_model"], sizes["n_heads"], sizes["d_ff"]
    head_dim = width // heads
    keys = iter(jax.random.split(jax.random.key(0), 100))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) * rows**-0.5

    params = {
        "embed": jax.random.normal(next(keys), (sizes["vocab_size"], width)) * 0.02,
        "norm": jnp.ones(width),
        "blocks": [
            {
                "norm1": jnp.ones(width),
                "norm2": jnp.ones(width),
                "qkv": matrix(width, 3 * width),
                "out": matrix(width, width),
                "gate_up": matrix(width, 2 * inner),
                "down": matrix(inner, width),
            }
            for _ in range(sizes["n_layers"])
        ],
    }

    def norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale

    def rotate(x):
        half = head_dim // 2
        rates = 10000.0 ** (-jnp.arange(half) / half)
        angles = jnp.arange(x.shape[1])[:, None] * rates
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def loss_fn(params, tokens):
        x = params["embed"][tokens[:, :-1]]
        for block in params["blocks"]:
            qkv = norm(x, block["norm1"]) @ block["qkv"]
            q, k, v = jnp.split(qkv.reshape(*x.shape[:2], 3 * heads, head_dim), 3, 2)
            y = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + y.reshape(x.shape) @ block["out"]
            gate, up = jnp.split(norm(x, block["norm2"]) @ block["gate_up"], 2, -1)
            x = x + (jax.nn.silu(gate) * up) @ block["down"]
        logits = norm(x, params["norm"]) @ params["embed"].T
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            logits, tokens[:, 1:]
        ).mean()

    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=0.1)
    )
    state = tx.init(params)
    shape = (options["batch_size"], options["seq_len"] + 1)
    tokens = jax.random.randint(jax.random.key(1), shape, 0, sizes["vocab_size"])

    @jax.jit
    def update(params, state):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    def step():
        nonlocal params, state
        params, state, loss = update(params, state)
        loss.block_until_ready()

    sides.serve(step, sum(leaf.size for leaf in jax.tree.leaves(params)))


if __name__ == "__main__":
    restart_with_kept_memory()
    main()
