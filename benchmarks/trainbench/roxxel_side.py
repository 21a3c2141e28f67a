"""roxxel's whole training step: forward, backward, clipping, AdamW.

    python -m trainbench.roxxel_side '{"model": "ssm", "sizes": {...}, ...}'

Keys: `model` (ssm, transformer or hybrid), `sizes` (arguments of the model),
`batch_size`, `seq_len`, `loss` ("train" for a step, "head" for the loss and its
gradients alone with `pieces` true or false).
"""

import json
import sys

from trainbench import sides

from roxxel.allocator import restart_with_kept_memory


def train_step(options):
    import jax
    import optax
    from flax import nnx

    from roxxel import optim
    from roxxel.models.hybrid import HybridLM
    from roxxel.models.losses import next_token_loss
    from roxxel.models.ssm import Mamba2LM, num_params
    from roxxel.models.transformer import TransformerLM
    from roxxel.train.step import make_train_step

    classes = {"ssm": Mamba2LM, "transformer": TransformerLM, "hybrid": HybridLM}
    model = classes[options["model"]](**options["sizes"], rngs=nnx.Rngs(0))
    schedule = optax.constant_schedule(1e-3)
    tx = optim.adamw(schedule=schedule, weight_decay=0.1, clip_norm=1.0)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    step = make_train_step(model, optimizer, next_token_loss, schedule=schedule)
    leaves = step.leaves(model, optimizer)
    shape = (options["batch_size"], options["seq_len"] + 1)
    tokens = jax.random.randint(
        jax.random.key(1), shape, 0, options["sizes"]["vocab_size"]
    )
    count = num_params(model)
    del model, optimizer
    program = step.compile(leaves, tokens)

    def run():
        nonlocal leaves
        leaves, metrics = program(leaves, tokens)
        metrics["loss"].block_until_ready()

    return run, count, program.memory_analysis().temp_size_in_bytes


def head_loss(options):
    """Loss of a head of `vocab_size`, whole logits or in pieces, with gradients."""
    import jax
    import jax.numpy as jnp

    from roxxel.models import head_loss, losses

    rows, length = options["batch_size"], options["seq_len"]
    vocab_size, width = options["vocab_size"], options["d_model"]
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (rows, length, width))
    head = jax.random.normal(keys[1], (vocab_size, width)) * width**-0.5
    targets = jax.random.randint(keys[2], (rows, length), 0, vocab_size)

    def in_pieces(hidden, head):
        return head_loss.mean_cross_entropy(
            hidden,
            head,
            targets,
            None,
            vocab_size=vocab_size,
            dtype=jnp.float32,
            piece_size=options["pieces"],
        )[0]

    def whole(hidden, head):
        return losses.mean_cross_entropy(hidden @ head.T, targets)[0]

    loss = in_pieces if options["pieces"] else whole
    grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(hidden, head)
    grad = grad.compile()
    temporaries = grad.memory_analysis().temp_size_in_bytes
    return lambda: jax.block_until_ready(grad(hidden, head)), head.size, temporaries


def main():
    options = json.loads(sys.argv[1])
    make = head_loss if options.get("loss") == "head" else train_step
    sides.serve(*make(options))


if __name__ == "__main__":
    restart_with_kept_memory()
    main()
