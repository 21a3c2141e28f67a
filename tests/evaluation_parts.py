"""What the evaluation tests and their child processes share."""

import functools

import jax
import numpy as np
from flax import nnx

from roxxel import sharding
from roxxel.dataset import Roxxel
from roxxel.models.losses import next_token_loss
from roxxel.models.ssm import Mamba2LM
from roxxel.train.evaluation import Evaluation, evaluate, make_eval_step
from tests.tiny import Bigram

NUM_ELEMENTS = 1003
MODELS = {
    "bigram": Bigram,
    "mamba2": functools.partial(
        Mamba2LM, vocab_size=16, d_model=16, n_layers=1, state_dim=8, head_dim=8
    ),
}


def held_out(path) -> Roxxel:
    """Ids below 16 of which the half follows from the one before."""
    rox = Roxxel(str(path))
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 16, NUM_ELEMENTS)
    ids[1::2] = (ids[::2][: len(ids[1::2])] + 1) % 16
    return rox.write([ids.astype(np.uint8)], mode="skip")


def numbers(rox: Roxxel, model: str, batch_size: int, axes=None, seq_len: int = 24):
    """The metrics of a fresh model over the whole set, on a mesh of all devices."""
    mesh = sharding.make_mesh(axes or {"data": -1})
    (built,) = sharding.create_on(mesh, lambda: (MODELS[model](rngs=nnx.Rngs(0)),))
    evaluation = Evaluation(dataset=rox, seq_len=seq_len, batch_size=batch_size)
    leaves = jax.tree.leaves(nnx.state(built))
    return evaluate(evaluation, make_eval_step(built, next_token_loss), leaves, mesh)
