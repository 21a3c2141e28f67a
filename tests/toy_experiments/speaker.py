"""A tiny language model of bytes whose training data cannot be built."""

import fiddle as fdl

import roxxel
from roxxel import Roxxel, optim
from roxxel.checkpoint import Checkpointer
from roxxel.data.stream import RoxxelStream
from roxxel.models.hybrid import HybridLM
from roxxel.train.trainer import Trainer


def nowhere() -> Roxxel:
    """Data that nobody should ask for."""
    raise RuntimeError("training data were built")


@roxxel.experiment
def speaker(seed: int = 0) -> fdl.Config:
    """Both kinds of blocks, so that state and cache are in use."""
    stream = fdl.Config(
        RoxxelStream, dataset=fdl.Config(nowhere), seq_len=8, batch_size=8, overlap=1
    )
    return fdl.Config(
        Trainer,
        model=fdl.Partial(
            HybridLM,
            vocab_size=256,
            d_model=16,
            n_layers=2,
            n_heads=2,
            pattern="MA",
            state_dim=8,
            ssm_head_dim=8,
            tie_embeddings=False,
        ),
        optimizer=fdl.Config(optim.adamw, schedule=0.01),
        stream=stream,
        total_steps=30,
        checkpointer=fdl.Partial(Checkpointer, best_metric="eval_loss"),
        seed=seed,
    )
