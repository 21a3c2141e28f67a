"""Fiddlers: changes of a whole graph, applied by `--fiddler=NAME(args)`.

Each takes the graph as `config`, changes it in place, and works on any graph: it looks
for fields by name and leaves alone what is not there.
"""

import fiddle as fdl
from fiddle import daglish

from roxxel.config import fields

# Fields that `debug` makes small, with the largest value it leaves in them.
_SMALL = {
    "d_model": 64,
    "n_layers": 2,
    "num_tokens": 32,
}
# The same for batches that are trained on. An evaluation reads the whole of its set,
# which small batches would only make slower.
_SMALL_BATCH = {"batch_size": 4, "seq_len": 64}
_CADENCES = ("every", "save_every", "log_every", "console_every")


def debug(config: fdl.Buildable, steps: int = 4) -> None:
    """Shrinks an experiment to seconds: few steps, narrow layers, short rows."""
    for node, _ in daglish.iterate(config):
        if not isinstance(node, fdl.Buildable):
            continue
        limits = dict.fromkeys(_CADENCES, max(1, steps // 2)) | _SMALL
        if "every" not in fields.names(node):
            limits |= _SMALL_BATCH
        for name, largest in limits.items():
            _lower(node, name, largest)
        _budget(node, steps)


def _budget(node: fdl.Buildable, steps: int) -> None:
    """Set the length of the run, whichever unit it was given in."""
    names = fields.names(node)
    units = [name for name in ("steps", "tokens", "epochs") if name in names]
    if "stream" not in names or "steps" not in units:
        return
    for name in units:
        setattr(node, name, steps if name == "steps" else None)


def _lower(node: fdl.Buildable, name: str, largest: int) -> None:
    """Lower a whole number that the graph sets or defaults, never raise it."""
    if name not in fields.names(node):
        return
    value = node.__arguments__.get(name, fields.default_of(node, name))
    if type(value) is int and value > largest:
        setattr(node, name, largest)
