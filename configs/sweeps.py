"""Sweeps as functions: `python -m launch.sweep --sweep_config=configs.sweeps.NAME`.

Each returns a list of overrides, one dict a trial: from a path of the graph, or a whole
flag such as `--fdl_tag.LearningRate`, to a value. Together with `--sweep.PATH=...` each
of them meets each value. Plain Python is enough here: nothing of roxxel is imported.
"""

_LEARNING_RATE = "--fdl_tag.LearningRate"


def learning_rates(
    low: float = 1e-3, high: float = 1e-2, count: int = 5
) -> list[dict[str, object]]:
    """Peaks of the learning rate at equal ratios, both ends included."""
    if count < 2:
        return [{_LEARNING_RATE: low}]
    ratio = (high / low) ** (1 / (count - 1))
    return [{_LEARNING_RATE: f"{low * ratio**i:.4g}"} for i in range(count)]


def seeds(count: int = 3, first: int = 0) -> list[dict[str, object]]:
    """The same run with other initial parameters and another order of the data."""
    return [{"--fdl_tag.Seed": first + i} for i in range(count)]


def batch_sizes(
    smallest: int = 4, count: int = 3, learning_rate: float = 1e-3
) -> list[dict[str, object]]:
    """Doubled batches, the learning rate growing with the square root of the size.

    The rule for Adam of Malladi et al. 2022 (arXiv:2205.10287).
    """
    return [
        {
            "--fdl_tag.BatchSize": smallest * 2**i,
            _LEARNING_RATE: f"{learning_rate * 2 ** (i / 2):.4g}",
        }
        for i in range(count)
    ]


def widths(
    smallest: int = 64, count: int = 3, learning_rate: float = 4e-3
) -> list[dict[str, object]]:
    """Doubled widths, the learning rate falling with the width, as muP has it for Adam.

    Yang et al. 2022 (arXiv:2203.03466), table 3, without its scaled initial values.
    """
    return [
        {
            "model.d_model": smallest * 2**i,
            _LEARNING_RATE: f"{learning_rate / 2**i:.4g}",
        }
        for i in range(count)
    ]
