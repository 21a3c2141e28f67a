"""What surrounds a model: the parts of a run, and a whole pre-training run of them."""

import fiddle as fdl

import roxxel
from configs import tags
from roxxel import builders, optim
from roxxel.checkpoint import Checkpointer
from roxxel.data.stream import RoxxelStream
from roxxel.train.early_stopping import EarlyStopping
from roxxel.train.evaluation import Evaluation
from roxxel.train.sample import Sample
from roxxel.train.trainer import Trainer


def logger(console_every: int = 10) -> fdl.Partial[roxxel.Logger]:
    """Log and table in the work directory, a line on the console now and then."""
    return fdl.Partial(roxxel.Logger, console_every=console_every)


def checkpointer(
    max_to_keep: int = 3, best_metric: str = "eval_loss"
) -> fdl.Partial[Checkpointer]:
    """Keeps the newest checkpoints and the best by a metric."""
    return fdl.Partial(Checkpointer, max_to_keep=max_to_keep, best_metric=best_metric)


def evaluation(
    dataset: fdl.Buildable, seq_len: int = 512, batch_size: int = 8, every: int = 1000
) -> fdl.Config[Evaluation]:
    """The loss over a whole held-out set."""
    return fdl.Config(
        Evaluation,
        dataset=dataset,
        seq_len=seq_len,
        batch_size=batch_size,
        every=every,
    )


def early_stopping(
    metric: str = "eval_loss", patience: int = 5, min_delta: float = 0.0
) -> fdl.Config[EarlyStopping]:
    """Ends a run whose metric has not improved for so many evaluations."""
    return fdl.Config(
        EarlyStopping, metric=metric, patience=patience, min_delta=min_delta
    )


def sample(prompt: str = "def main(argv):\n", num_tokens: int = 400) -> fdl.Config:
    """Text at the end of a run of a byte-level model."""
    return fdl.Config(Sample, prompt=prompt, num_tokens=num_tokens)


def pretraining(
    model: fdl.Partial,
    *,
    data: str | None,
    heldout: str | None,
    seq_len: int,
    batch_size: int,
    tokens: int,
    learning_rate: float,
    evaluate_every: int = 1000,
    save_every: int = 1000,
    mesh_axes: dict[str, int] | None = None,
    seed: int = 0,
) -> fdl.Config[Trainer]:
    """A language model on shards of tokens: AdamW, warm-up and cosine.

    Args:
      model: makes the model.
      data: path or glob of the shards to train on. None takes the bytes of Python's
        own library, for a try without files.
      heldout: shards to evaluate on. None evaluates on the library's held-out bytes
        where `data` is None too, and not at all otherwise.
      seq_len: tokens of a row.
      batch_size: rows of the global batch.
      tokens: length of the run.
      learning_rate: peak.
      evaluate_every: steps between evaluations.
      save_every: steps between checkpoints.
      mesh_axes: as in `Trainer`.
      seed: of parameters and order.
    """
    stream = fdl.Config(
        RoxxelStream,
        dataset=_dataset(data, "train"),
        seq_len=seq_len,
        batch_size=batch_size,
        overlap=1,
        seed=seed,
    )
    total_steps = fdl.Config(optim.total_steps, stream=stream, tokens=tokens)
    schedule = fdl.Config(
        optim.warmup_cosine,
        peak=learning_rate,
        total_steps=total_steps,
        warmup=0.02,
    )
    config = fdl.Config(
        Trainer,
        model=model,
        optimizer=fdl.Config(optim.adamw, schedule=schedule),
        stream=stream,
        total_steps=total_steps,
        schedule=schedule,
        logger=logger(),
        checkpointer=checkpointer(),
        save_every=save_every,
        seed=seed,
    )
    if heldout is not None or data is None:
        config.evaluation = evaluation(
            _dataset(heldout, "heldout"), seq_len, batch_size, evaluate_every
        )
    if mesh_axes is not None:
        config.mesh_axes = mesh_axes
    _add_tags(config)
    return config


def _dataset(path: str | None, split: str) -> fdl.Config[roxxel.Roxxel]:
    if path is None:
        return fdl.Config(builders.python_library_sources, split=split)
    return fdl.Config(roxxel.Roxxel, filepath=path)


def _add_tags(config: fdl.Config[Trainer]) -> None:
    fdl.add_tag(config.stream, "batch_size", tags.BatchSize)
    fdl.add_tag(config.stream, "seq_len", tags.SeqLen)
    fdl.add_tag(config.schedule, "peak", tags.LearningRate)
    fdl.add_tag(config, "workdir", tags.WorkDir)
    for node in (config, config.stream):
        fdl.add_tag(node, "seed", tags.Seed)
