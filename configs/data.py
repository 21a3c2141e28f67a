"""Data sets and streams: `--fdl.stream.dataset=configs.data.rox(path='data/c4_*.rox')`.

Any builder of `roxxel.builders` works there too, for example
`roxxel.builders.text_files(patterns='notes/*.md')`.
"""

import sysconfig

import fiddle as fdl

from configs import synthetic as synthetic_data
from configs import tags
from roxxel import builders
from roxxel.data.stream import RoxxelStream
from roxxel.dataset import Roxxel


def library(split: str = "train") -> fdl.Config[Roxxel]:
    """The sources of Python's own library as bytes; there on every machine."""
    return fdl.Config(builders.python_library_sources, split=split)


def rox(path: str) -> fdl.Config[Roxxel]:
    """Shards that are there already, by path or glob; refused where there are none."""
    return fdl.Config(Roxxel, filepath=path)


def synthetic(
    vocab_size: int, num_elements: int = 65_536, seed: int = 0
) -> fdl.Config[Roxxel]:
    """Ids made out of nothing, for tests of speed and of plumbing."""
    return fdl.Config(
        synthetic_data.tokens,
        vocab_size=vocab_size,
        num_elements=num_elements,
        seed=seed,
    )


def stream(
    dataset: fdl.Buildable, seq_len: int, batch_size: int, seed: int = 0
) -> fdl.Config[RoxxelStream]:
    """Shuffled rows of a data set, each input with its target, tagged."""
    config = fdl.Config(
        RoxxelStream,
        dataset=dataset,
        seq_len=seq_len,
        batch_size=batch_size,
        overlap=1,
        seed=seed,
    )
    fdl.add_tag(config, "seq_len", tags.SeqLen)
    fdl.add_tag(config, "batch_size", tags.BatchSize)
    fdl.add_tag(config, "seed", tags.Seed)
    return config


def python_encodings(split: str = "train") -> Roxxel:
    """The `encodings` package of Python's library: tables, 1 MB, as bytes.

    Files that `python_library_sources` leaves out, so that the two do not overlap; a
    tenth of them is held out.
    """
    return builders.text_files(
        f"{sysconfig.get_path('stdlib')}/encodings/*.py",
        split=split,
        heldout_fraction=0.1,
    )
