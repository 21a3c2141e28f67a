"""Fiddlers: changes of a whole graph, applied by `--fiddler=NAME(args)`.

Each takes the graph as `config`, changes it in place, and works on any graph: it looks
for fields by name and leaves alone what is not there.
"""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import jax.numpy as jnp
from fiddle import daglish

from configs import data
from roxxel import optim
from roxxel.config import fields
from roxxel.data.phases import Phase
from roxxel.errors import ConfigError

# Fields that `debug` makes small, with the largest value it leaves in them.
_SMALL = {
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 2,
    "n_kv_heads": 1,
    "head_dim": 32,
    "ssm_head_dim": 32,
    "n_groups": 1,
    "d_ff": 128,
    "state_dim": 16,
    "num_tokens": 32,
}
# The same for batches that are trained on, and for those of an evaluation: it reads the
# whole of its set, which small batches make slower.
_SMALL_BATCH = {"batch_size": 4, "seq_len": 64}
_SMALL_EVALUATION = {"batch_size": 16, "seq_len": 128}
_CADENCES = ("every", "save_every", "log_every", "console_every")
_LENGTHS = ("steps", "tokens", "epochs", "fraction", "flops", "minutes")
_LENGTHS += ("tokens_per_param",)
_SYNTHETIC_TOKENS = {"train": 65_536, "heldout": 4096}
_SYNTHETIC_BATCHES = 4  # that a stream's data hold at least


def debug(config: fdl.Buildable, steps: int = 4) -> None:
    """Shrinks an experiment to seconds: few steps, narrow layers, short rows."""
    phases = [node for node in _nodes(config) if fdl.get_callable(node) is Phase]
    lengths = [phase.__arguments__.get("seq_len") or 0 for phase in phases]
    for node in _nodes(config):
        limits = dict.fromkeys(_CADENCES, max(1, steps // 2)) | _SMALL
        is_evaluation = "every" in fields.names(node)
        limits |= _SMALL_EVALUATION if is_evaluation else _SMALL_BATCH
        for name, largest in limits.items():
            _lower(node, name, largest)
        if "mix" in fields.names(node):
            _set(node, "tokens", None)
        if "stream" in fields.names(node) and "steps" in fields.names(node):
            _budget(node, None if phases else steps)
    for index, phase in enumerate(phases):
        # All phases stay, in as many steps as there are; the last takes what is left.
        if lengths[index]:  # they grow as they did
            longest = _SMALL_BATCH["seq_len"]
            phase.seq_len = max(1, longest * lengths[index] // max(lengths))
        before = steps * index // len(phases)
        _budget(phase, max(1, steps * (index + 1) // len(phases) - before))


def bf16(config: fdl.Buildable) -> None:
    """Computes in bfloat16; parameters, norms and losses stay float32."""
    for node in _nodes(config):
        _set(node, "compute_dtype", jnp.bfloat16)


def fsdp(config: fdl.Buildable, groups: int = 1) -> None:
    """Shards parameters and optimizer state over all devices, or over groups of them.

    Each of the `groups` holds the whole state; batches are shared out over all. On pods
    groups of at most 64 devices send least (docs/performance.md, "What TPUs allow").
    """
    for node in _nodes(config):
        _set(node, "mesh_axes", {"data": groups, "fsdp": -1})


def profile(config: fdl.Buildable, steps: int = 20) -> None:
    """Stops after a few steps; traces the last half of them to WORKDIR/profile.

    WORKDIR/profile.txt tells where their time went. The first steps compile; the
    schedule stays.
    """
    config.stop_after = steps
    config.profile = f"{steps // 2}:{steps}"


def synthetic_data(config: fdl.Buildable) -> None:
    """Replaces every data set by a small one made out of nothing: no files needed."""
    vocab_size = _vocab_size(config)
    least = max(map(_batch_elements, _nodes(config)), default=0)
    train = max(_SYNTHETIC_TOKENS["train"], _SYNTHETIC_BATCHES * least)
    seed = 0
    for node in _nodes(config):
        if "dataset" in fields.names(node) and not _is_task(node):
            is_heldout = "every" in fields.names(node)
            size = _SYNTHETIC_TOKENS["heldout"] if is_heldout else train
            node.dataset = data.synthetic(vocab_size, num_elements=size, seed=seed)
            seed += 1
        if "mix" in fields.names(node):
            node.mix = {
                name: data.synthetic(vocab_size, num_elements=train, seed=seed + number)
                for number, name in enumerate(node.mix)
            }
            seed += len(node.mix)


def adamw(config: fdl.Buildable, weight_decay: float = 0.1) -> None:
    """Trains with AdamW, on the schedule that is there."""
    config.optimizer = fdl.Config(
        optim.adamw, schedule=config.schedule, weight_decay=weight_decay
    )


def muon(
    config: fdl.Buildable, weight_decay: float = 0.1, adam_scale: float = 2.0
) -> None:
    """Trains matrices with Muon and the rest with AdamW, on the schedule there is."""
    config.optimizer = fdl.Config(
        optim.muon,
        schedule=config.schedule,
        weight_decay=weight_decay,
        adam_scale=adam_scale,
    )


def _nodes(config: fdl.Buildable) -> Iterator[fdl.Buildable]:
    """Every node of a graph once."""
    found = {id(n): n for n, _ in daglish.iterate(config) if _is_node(n)}
    yield from found.values()


def _is_task(node: fdl.Buildable) -> bool:
    """Whether the rows of an evaluation are generated: no data to replace."""
    dataset = node.__arguments__.get("dataset")
    return isinstance(dataset, fdl.Buildable) and "task" in fields.names(dataset)


def _is_node(value: Any) -> bool:
    return isinstance(value, fdl.Buildable)


def _budget(node: fdl.Buildable, steps: int | None) -> None:
    """Set a length in steps, whichever unit it was given in; None: no length here."""
    for name in _LENGTHS:
        _set(node, name, steps if name == "steps" else None)


def _set(node: fdl.Buildable, name: str, value: Any) -> None:
    """Set a field where the node has it and it is not so already."""
    if name not in fields.names(node):
        return
    if node.__arguments__.get(name, fields.default_of(node, name)) != value:
        setattr(node, name, value)


def _lower(node: fdl.Buildable, name: str, largest: int) -> None:
    """Lower a whole number that the graph sets or defaults, never raise it."""
    if name not in fields.names(node):
        return
    value = node.__arguments__.get(name, fields.default_of(node, name))
    if type(value) is int and value > largest:
        setattr(node, name, largest)


def _vocab_size(config: fdl.Buildable) -> int:
    for node in _nodes(config):
        value = node.__arguments__.get("vocab_size")
        if type(value) is int:
            return value
    raise ConfigError("synthetic_data: no node has a vocab_size to make data for.")


def _batch_elements(node: fdl.Buildable) -> int:
    """Elements of one batch that a node trains on, or 0."""
    names = fields.names(node)
    if "every" in names or not {"batch_size", "seq_len"} <= set(names):
        return 0
    sizes = [
        node.__arguments__.get(name, fields.default_of(node, name))
        for name in ("batch_size", "seq_len")
    ]
    return sizes[0] * sizes[1] if all(type(size) is int for size in sizes) else 0
