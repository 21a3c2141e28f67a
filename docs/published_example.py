"""Data, stream, logging and checkpoints by hand, without the experiment framework.

    python docs/published_example.py

Run it again and it goes on where it stopped: at the next unread batch after a kill, at
the end after the end. Files go to the working directory: `wiki_*.rox`, `run_delta/`
and `checkpoints/`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from roxxel import Logger, Roxxel
from roxxel.checkpoint import Checkpointer

GLOBAL_SEED = 42
BATCH_SIZE = 32
SEQ_LEN = 1024
EPOCHS = 3
LR = 3e-4
SAVE_EVERY = 100
VOCAB, WIDTH = 10000, 256


def token_generator():
    """Tokenized documents: integer ids, as numpy or jax arrays."""
    for _ in range(1000):
        yield jnp.arange(128, dtype=jnp.int32)


class SimpleSSM(nnx.Module):
    """Stands for a model; `x` is [batch, length] int32, the logits [.., VOCAB]."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.linear = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, x):
        """Logits of the next token at every position."""
        return self.linear(self.embed(x))


@nnx.jit
def train_step(model, optimizer, batch):
    """One update; returns the loss, which stays on the device."""

    def loss_fn(model):
        logits, targets = model(batch[:, :-1]), batch[:, 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return losses.mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def main():
    """Writes the data once, then trains from the last checkpoint to the end."""
    # mode="skip": complete shards that are there already are used as they are.
    Roxxel("./wiki_*.rox").write(
        token_generator(),
        block_size=4096,
        max_shard_bytes=1024**3,
        separator=None,
        mode="skip",
    )
    mesh = Mesh(np.array(jax.devices()), axis_names=("data",))
    data_sharding = NamedSharding(mesh, P("data", None))

    with Logger(log_dir="run_delta") as logger, Roxxel("./wiki_*.rox") as dataset:
        total_steps = EPOCHS * dataset.estimate_steps(SEQ_LEN, BATCH_SIZE)
        model = SimpleSSM(nnx.Rngs(GLOBAL_SEED))
        schedule = optax.warmup_cosine_decay_schedule(
            init_value=1e-7,
            peak_value=LR,
            warmup_steps=int(total_steps * 0.05),
            decay_steps=total_steps,
        )
        tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

        with Checkpointer("./checkpoints", model, optimizer) as checkpointer:
            start_step = checkpointer.restore()  # completed steps; 0 the first time
            logger.log_message(f"Starting at step {start_step} of {total_steps}")
            # One stream over all epochs, each in an order of its own.
            stream = dataset.stream(
                seq_len=SEQ_LEN,
                batch_size=BATCH_SIZE,
                seed=GLOBAL_SEED,
                start_step=start_step,
                epochs=EPOCHS,
                mesh=mesh,
                data_sharding=data_sharding,
            )
            logger.log_message(f"{len(stream)} steps remaining")
            for step, batch in enumerate(stream, start=start_step + 1):
                loss = train_step(model, optimizer, batch)
                # Device values: fetched by the logger's thread, not waited for here.
                logger.log_metrics_summary(step=step, loss=loss, ppl=jnp.exp(loss))
                if step % SAVE_EVERY == 0 or step == total_steps:
                    checkpointer.save(step, metrics_dict={"loss": loss})


if __name__ == "__main__":
    main()
