"""Fiddlers: changes of a whole graph, applied by `--fiddler=NAME(args)`.

Each takes the graph as `config`, changes it in place, and works on any graph: it looks
for fields by name and leaves alone what is not there.
"""

import fiddle as fdl
from fiddle import daglish

# Fields that `debug` makes small, with the largest value it leaves in them.
_SMALL = {
    "d_model": 32,
    "n_layers": 2,
    "num_layers": 2,
    "batch_size": 4,
    "seq_len": 64,
    "num_tokens": 32,
    "max_batches": 4,
}
_CADENCES = ("every", "save_every", "log_every", "evaluate_every")


def debug(config: fdl.Buildable, steps: int = 4) -> None:
    """Shrinks an experiment to seconds: few steps, narrow layers, short rows."""
    for node, _ in daglish.iterate(config):
        if not isinstance(node, fdl.Buildable):
            continue
        for name, largest in _SMALL.items():
            _lower(node, name, largest)
        for name in ("steps", "max_steps"):
            _lower(node, name, steps)
        for name in _CADENCES:
            _lower(node, name, max(1, steps // 2))


def _lower(node: fdl.Buildable, name: str, largest: int) -> None:
    """Lower a whole number that the graph sets or defaults, never raise it."""
    parameters = node.__signature_info__.parameters
    if name not in parameters and name not in node.__arguments__:
        return
    value = getattr(node, name, None)
    if type(value) is int and value > largest:
        setattr(node, name, largest)
