"""Tags: values of one meaning, wherever they sit, set by `--fdl_tag.NAME=VALUE`.

A field gets a tag where the graph is made: `fdl.add_tag(config, "lr", LearningRate)`,
or `config.lr = LearningRate.new(1e-3)`.
"""

import fiddle as fdl


class BatchSize(fdl.Tag):
    """Rows of one global batch, over all processes."""


class SeqLen(fdl.Tag):
    """Elements of a row that are trained on."""


class LearningRate(fdl.Tag):
    """Peak of the learning rate."""


class ComputeDtype(fdl.Tag):
    """Type in which activations are computed; parameters have their own."""


class WorkDir(fdl.Tag):
    """Folder into which a run writes."""


class Seed(fdl.Tag):
    """Seed of a random sequence: initial parameters, order of the data."""
