"""A byte-level Mamba-2 language model on Python's own library: the main job.

What: 0.75 M parameters, trained with Muon on 5.7 M bytes of the interpreter's standard
  library (10 MB on CPython 3.11), scored on all of its held-out files.
Hardware: two CPU cores, about nine minutes, 1 GB of memory.
Expected: 1.58 bits per byte on CPython 3.11.7's held-out split (xz: 1.81).
Command: python -m roxxel.main --fdl_config=experiments.ssm_small
"""

import fiddle as fdl

import roxxel
from configs import tags
from roxxel import builders, optim
from roxxel.checkpoint import Checkpointer
from roxxel.data.stream import RoxxelStream
from roxxel.models.ssm import Mamba2LM
from roxxel.train.evaluation import Evaluation
from roxxel.train.sample import Sample
from roxxel.train.trainer import Trainer


@roxxel.experiment
def ssm_small(
    d_model: int = 160,
    n_layers: int = 4,
    state_dim: int = 64,
    seq_len: int = 512,
    batch_size: int = 4,
    steps: int = 2800,
    learning_rate: float = 5e-3,
    evaluate_every: int = 1400,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """Mamba-2, byte vocabulary, Muon with warm-up and cosine."""
    stream = fdl.Config(
        RoxxelStream,
        dataset=fdl.Config(builders.python_library_sources, split="train"),
        seq_len=seq_len,
        batch_size=batch_size,
        overlap=1,
        seed=seed,
    )
    total_steps = fdl.Config(optim.total_steps, stream=stream, steps=steps)
    schedule = fdl.Config(
        optim.warmup_cosine, peak=learning_rate, total_steps=total_steps
    )
    config = fdl.Config(
        Trainer,
        model=fdl.Partial(
            Mamba2LM,
            vocab_size=256,
            d_model=d_model,
            n_layers=n_layers,
            state_dim=state_dim,
        ),
        optimizer=fdl.Config(
            optim.muon,
            schedule=schedule,
            adam_scale=2.0,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        stream=stream,
        total_steps=total_steps,
        schedule=schedule,
        evaluation=fdl.Config(
            Evaluation,
            dataset=fdl.Config(builders.python_library_sources, split="heldout"),
            seq_len=seq_len,
            batch_size=4,  # the shape of a training batch: its memory is reused
            every=evaluate_every,
        ),
        sample=fdl.Config(Sample, prompt="def main(argv):\n"),
        logger=fdl.Partial(roxxel.Logger, console_every=10),
        checkpointer=fdl.Partial(Checkpointer, best_metric="eval_loss"),
        save_every=evaluate_every,
        seed=seed,
    )
    fdl.add_tag(stream, "batch_size", tags.BatchSize)
    fdl.add_tag(stream, "seq_len", tags.SeqLen)
    fdl.add_tag(schedule, "peak", tags.LearningRate)
    fdl.add_tag(config.model, "compute_dtype", tags.ComputeDtype)
    fdl.add_tag(config, "workdir", tags.WorkDir)
    for node in (stream, config):
        fdl.add_tag(node, "seed", tags.Seed)
    return config
