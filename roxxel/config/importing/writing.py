"""An experiment as the text of a Python module."""

import textwrap
from typing import Any

from roxxel.config.importing.settings import Imported, Program

_MODEL_FIRST = ("vocab_size", "d_model", "n_layers", "n_heads")


def module_text(program: Program, imported: Imported, source: str) -> str:
    """The module: a config function whose values are the imported ones."""
    values = dict(imported.values)
    model = {
        name.removeprefix("model."): values.pop(name)
        for name in list(values)
        if name.startswith("model.")
    }
    model.setdefault("vocab_size", 50304)
    taken = {
        "seq_len": values.pop("stream.seq_len"),
        "batch_size": values.pop("stream.batch_size"),
        "tokens": values.pop("total_steps.tokens"),
        "learning_rate": values.pop("schedule.peak"),
        "save_every": values.pop("save_every"),
    }
    dtype = model.pop("compute_dtype")
    arguments = [f"{name}={model[name]!r}," for name in _sorted(model)]
    lines = [
        _docstring(program, imported, source),
        "",
        "import fiddle as fdl",
        "import jax.numpy as jnp",
        "",
        "import roxxel",
        "from configs import runtime",
        "from roxxel.models.transformer import TransformerLM",
        "from roxxel.train.trainer import Trainer",
        "",
        "",
        "@roxxel.experiment",
        "def imported(",
        "    data: str | None = None, heldout: str | None = None",
        ") -> fdl.Config[Trainer]:",
        f'    """The settings of {source}; `data` and `heldout` are shards."""',
        "    model = fdl.Partial(",
        "        TransformerLM,",
        *(f"        {line}" for line in arguments),
        f"        compute_dtype=jnp.{dtype},",
        "    )",
        "    config = runtime.pretraining(",
        "        model,",
        "        data=data,",
        "        heldout=heldout,",
        *(f"        {name}={value!r}," for name, value in taken.items()),
        "    )",
        *(f"    config.{path} = {value!r}" for path, value in values.items()),
        "    return config",
    ]
    return "\n".join(lines) + "\n"


def _sorted(model: dict[str, Any]) -> list[str]:
    first = [name for name in _MODEL_FIRST if name in model]
    return first + [name for name in model if name not in first]


def _docstring(program: Program, imported: Imported, source: str) -> str:
    parts = [f'"""Settings of {program.name} in {source}, as roxxel says them.', ""]
    parts += _listed("Not the same here:", list(program.remarks))
    parts += _listed("In the file, without a place here:", imported.left_out)
    parts += _listed("In the file, not known:", imported.unknown)
    return "\n".join(parts).rstrip() + '\n"""'


def _listed(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    wrapped = [
        textwrap.fill(
            line.replace("\\", "\\\\").replace('"""', "'''"),
            width=88,
            initial_indent="- ",
            subsequent_indent="  ",
        )
        for line in lines
    ]
    return [title, *wrapped, ""]
