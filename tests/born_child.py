"""A process for test_born_sharded.py: `born_child.py FOLDER`.

Makes a state and saves it; started again, makes it and restores it.

Prints bytes of the whole state, of one block's parameters, and by how much the most
that the process ever held grew.
"""

import gc
import json
import pathlib
import re
import sys

import jax
import optax
from flax import nnx

from roxxel import sharding
from roxxel.checkpoint import Checkpointer
from roxxel.models.transformer import TransformerLM

LARGE = {"vocab_size": 4096, "d_model": 512, "n_layers": 8, "n_heads": 8, "d_ff": 1536}
SMALL = {"vocab_size": 128, "d_model": 64, "n_layers": 1, "n_heads": 1, "d_ff": 64}


def modules(sizes):
    def create():
        model = TransformerLM(**sizes, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    return create


def held(kind):
    """Bytes of this process now ("VmRSS"), or the most since `forget` ("VmHWM")."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+)", status).group(1)) * 1024


def forget():
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def size(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def grown(mesh, sizes, path):
    """Bytes more at most, from before the state is made until it is restored.

    Nothing is restored where nothing was saved.
    """
    create = modules(sizes)
    graphdef = nnx.graphdef(sharding.abstract_on(mesh, create))
    program = sharding.creation(mesh, create).lower().compile()
    forget()
    before = held("VmRSS")
    state = jax.block_until_ready(program())
    with Checkpointer(path, *nnx.merge(graphdef, state)) as checkpointer:
        del state
        restored = checkpointer.restore(release=True)
        grew = held("VmHWM") - before
        if not restored:
            checkpointer.save(1)
    return restored, grew


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = sharding.make_mesh({"fsdp": 8})
    model, _ = abstract = sharding.abstract_on(mesh, modules(LARGE))
    for sizes in (SMALL, LARGE):  # the first for what is loaded once
        step, grew = grown(
            mesh, sizes, pathlib.Path(sys.argv[1]) / str(sizes["d_model"])
        )
    facts = {"state": size(nnx.state(abstract)), "grew": grew, "restored": step}
    print(json.dumps(facts | {"block": size(nnx.state(model.blocks[0]))}))
