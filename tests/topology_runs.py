"""A run that takes seconds, and writes down the rows that it was given."""

import fiddle as fdl
import optax

import roxxel
from benchmarks.chaosbench.recording import RecordedStream
from configs import synthetic
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram

STEPS = 12


@roxxel.experiment
def bigram() -> fdl.Config[Trainer]:
    """16,384 parameters, 12 steps of 8 rows of 16 ids."""
    stream = fdl.Config(
        RecordedStream,
        dataset=fdl.Config(synthetic.tokens, vocab_size=128, num_elements=4096, seed=3),
        seq_len=16,
        batch_size=8,
        overlap=1,
    )
    return fdl.Config(
        Trainer,
        model=fdl.Partial(Bigram, vocab_size=128),
        optimizer=fdl.Config(optax.adamw, 1e-2),
        stream=stream,
        total_steps=STEPS,
        save_every=None,
    )
