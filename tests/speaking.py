"""A run of `toy_experiments.speaker` as its folder would be after training."""

import fiddle as fdl
import jax
import jax.numpy as jnp
from flax import nnx
from toy_experiments.speaker import speaker

from roxxel.checkpoint import Checkpointer
from roxxel.config import arguments, record, resolve, run_info

NAME = "--fdl_config=toy_experiments.speaker.speaker"


def make_run(folder, *, data=None):
    """Two checkpoints: step 10 is the best, step 20 the latest."""
    found = resolve.experiment(arguments.parse([NAME]))
    folder.mkdir()
    info = run_info.collect(argv=[], experiment=found.name, source="", workdir=folder)
    record.write(found, folder, info | {"data": data or {}}, None)
    model = make_model()
    with Checkpointer(folder / "checkpoints", model) as checkpointer:
        checkpointer.save(10, {"eval_loss": 1.0})
        model.embedding[...] = -model.embedding[...]
        checkpointer.save(20, {"eval_loss": 2.0})
    return folder


def make_model():
    """The model of step 10, which writes letters."""
    model = fdl.build(speaker().model)(rngs=nnx.Rngs(0))
    model.embedding[...] = jax.random.normal(jax.random.key(1), (256, 16))
    is_letter = (jnp.arange(256) >= 97) & (jnp.arange(256) < 123)
    heads = jax.random.normal(jax.random.key(2), (256, 16))
    model.head[...] = jnp.where(is_letter[:, None], heads, 0.0)
    return model
