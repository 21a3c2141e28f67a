"""A run of seconds with every part real: data, model, optimizer, checkpoints, logs."""

import fiddle as fdl
import numpy as np
import optax

import roxxel
from roxxel import Roxxel, optim
from roxxel.building import cache
from roxxel.checkpoint import Checkpointer
from roxxel.data.stream import RoxxelStream
from roxxel.train.evaluation import Evaluation
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram
from toy_experiments.basic import Peak, Width


def numbers(seed: int = 0, count: int = 2000, cache_dir: str = "cache") -> Roxxel:
    """Random ids below 16, built once."""

    def build(folder) -> dict:
        ids = np.random.default_rng(seed).integers(0, 16, count).astype(np.uint8)
        Roxxel(folder / "all_*.rox").write(
            [ids],
            max_shard_bytes=1800,
            block_size=100,
            metadata={"tokenizer": "digits"},
        )
        return {}

    key = {"seed": seed, "count": count}
    folder, _ = cache.find_or_build("numbers", key, build, cache_dir=cache_dir)
    return Roxxel(folder / "all_*.rox")


def written(path: str = "own/ids_*.rox") -> Roxxel:
    """Ids in a place of their own, written where they are missing."""
    return Roxxel(path).write([np.arange(900, dtype=np.uint8) % 16], mode="skip")


def small(width: int = 16) -> fdl.Partial:
    """A model as a fragment."""
    return fdl.Partial(Bigram, vocab_size=width)


@roxxel.experiment
def tiny_run(steps: int = 30, batch_size: int = 8, peak: float = 0.05) -> fdl.Config:
    """A bigram table on random digits."""
    stream = fdl.Config(
        RoxxelStream,
        dataset=fdl.Config(numbers),
        seq_len=8,
        batch_size=batch_size,
        overlap=1,
    )
    total = fdl.Config(optim.total_steps, stream=stream, steps=steps)
    schedule = fdl.Config(optim.warmup_cosine, peak=peak, total_steps=total)
    config = fdl.Config(
        Trainer,
        model=fdl.Partial(Bigram),
        optimizer=fdl.Config(optim.adamw, schedule=schedule),
        stream=stream,
        total_steps=total,
        schedule=schedule,
        evaluation=fdl.Config(
            Evaluation, dataset=fdl.Config(numbers, seed=1), seq_len=8, every=10
        ),
        checkpointer=fdl.Partial(Checkpointer),
        logger=fdl.Partial(roxxel.Logger),
        save_every=10,
    )
    fdl.add_tag(stream, "batch_size", Width)
    fdl.add_tag(schedule, "peak", Peak)
    return config


@roxxel.experiment
def odd_schedule() -> fdl.Config:
    """A schedule of plain Optax, without any facts about itself."""
    config = tiny_run()
    config.schedule = fdl.Config(
        optax.warmup_cosine_decay_schedule,
        init_value=0.0,
        peak_value=0.1,
        warmup_steps=7,
        decay_steps=config.total_steps,
    )
    config.optimizer = fdl.Config(optax.adam, config.schedule)
    return config


@roxxel.experiment
def two_phases() -> fdl.Config:
    """Two data sets, and rows that grow in the second phase."""
    config = tiny_run()
    stream = fdl.Config(
        roxxel.MixtureStream,
        mix={"a": fdl.Config(numbers), "b": fdl.Config(numbers, seed=2)},
        weights={"a": 3.0, "b": 1.0},
        phases=[
            fdl.Config(roxxel.Phase, steps=10, batch_size=8, seq_len=8),
            fdl.Config(roxxel.Phase, steps=5, batch_size=12, seq_len=16),
        ],
        overlap=1,
    )
    config.stream = config.total_steps.stream = stream
    config.total_steps.steps = None
    return config


@roxxel.experiment
def mamba_1b() -> fdl.Config:
    """A big model, for its shapes."""
    from roxxel.models.ssm import Mamba2LM

    config = tiny_run()
    config.model = fdl.Partial(
        Mamba2LM, vocab_size=50_304, d_model=2048, n_layers=48, state_dim=128
    )
    return config
