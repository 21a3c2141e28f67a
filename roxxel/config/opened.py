"""A finished or running run, opened to be used: its model with restored parameters.

Nothing is written into the run's folder, and no training data are built.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fiddle as fdl
from fiddle import daglish

from roxxel.config import arguments, fields, imports, resolve, run_info, start, suggest
from roxxel.config import workdir as workdir_lib
from roxxel.errors import ConfigError

if TYPE_CHECKING:
    from jax.sharding import Mesh

CHECKPOINTS = "checkpoints"


@dataclasses.dataclass(kw_only=True)
class Opened:
    """A run whose model holds the parameters of one checkpoint.

    Attributes:
      found: the experiment, with the directives of the command line.
      workdir: the folder of the run.
      model: the NNX module, its parameters on this machine's devices.
      step: completed steps of the checkpoint.
      data: what `run.json` says of the data, see `data_facts`; empty where nothing.
    """

    found: resolve.Experiment
    workdir: Path
    model: Any
    step: int
    data: dict[str, dict[str, Any]]

    def part(self, name: str) -> Any:
        """A field of the trainer, built by itself: `part("evaluation")`.

        Raises:
          ConfigError: the trainer has no such field, or it cannot be built.
        """
        return part(self.found, name)

    @property
    def trainer(self) -> Any:
        """The whole trainer, built anew at every call, with its training data."""
        return start.build(self.found)


def folder(found: resolve.Experiment, line: arguments.CommandLine) -> Path:
    """The folder of the run that a command line names by `--run` or `--workdir`.

    Raises:
      ConfigError: there is no such folder, or it holds a run of another experiment.
    """
    if line.get("run") is not None:
        return workdir_lib.choose(line.get("run"), "")
    given = line.get("workdir") or start.configured_workdir(found)
    path = workdir_lib.choose(given, found.name)
    flag = f"--workdir={given or path}"
    if not path.is_dir():
        raise ConfigError(
            f"{flag}: there is no folder {path}; expected the work directory of a run."
        )
    workdir_lib.check_same_experiment(path, found.name, found.source, flag)
    return path


def parse_checkpoint(text: str | None) -> str | int:
    """ "latest", "best" or a number of completed steps, from a flag's value.

    Raises:
      ConfigError: it is none of them.
    """
    word = (text or "latest").strip()
    if word in ("latest", "best"):
        return word
    if word.isascii() and word.isdigit():
        return int(word)
    raise ConfigError(
        f"--checkpoint={text}: expected latest, best or a number of completed steps."
    )


def open_run(
    found: resolve.Experiment,
    workdir: Path,
    *,
    checkpoint: str | int = "latest",
    mesh: "Mesh | None" = None,
) -> Opened:
    """The model of a run with the parameters of one of its checkpoints.

    Where the run kept a running mean of the weights (`ema_decay`), they are that.

    Args:
      found: the experiment that the run is of.
      workdir: its folder.
      checkpoint: "latest", "best" or a number of completed steps.
      mesh: where the parameters come to lie, as `sharding.create_on` says; None: on
        the first device.

    Raises:
      ConfigError: there is no checkpoint, or not that one, or it is of another model.
    """
    path = Path(workdir) / CHECKPOINTS
    step = _choose(_checkpointer(found, path, None), checkpoint, path)
    model = _unrestored(found, mesh)
    with _checkpointer(found, path, model) as checkpointer:
        restored = _restore(checkpointer, step, model)
    data = run_info.read(workdir).get("data")
    return Opened(
        found=found,
        workdir=Path(workdir),
        model=model,
        step=restored,
        data=data if isinstance(data, dict) else {},
    )


def reopen(run: Opened, step: int) -> None:
    """Puts the parameters of the checkpoint of `step` into the model of `run`.

    Raises:
      ConfigError: it is not there any more, or cannot be read.
    """
    path = run.workdir / CHECKPOINTS
    with _checkpointer(run.found, path, run.model) as checkpointer:
        run.step = _restore(checkpointer, step, run.model)


def part(found: resolve.Experiment, name: str) -> Any:
    """A field of an experiment's trainer, built by itself, or its default.

    Raises:
      ConfigError: the trainer has no such field, or it cannot be built.
    """
    config = found.config
    if name not in fields.names(config):
        raise ConfigError(
            f"{found.name}: {suggest.shown(config)} has no field {name!r}; expected a "
            "roxxel.train.trainer.Trainer."
        )
    value = config.__arguments__.get(name, fields.default_of(config, name))
    if value is fields.UNSET:
        raise ConfigError(f"{found.name}: {name} is not set.")
    if isinstance(value, fields.Made):
        return value.factory()
    nodes = (node for node, _ in daglish.iterate(value))
    if not any(isinstance(node, fdl.Buildable) for node in nodes):
        return value
    with start.explained(found):
        return fdl.build(value)


def _checkpointer(found: resolve.Experiment, path: Path, model: Any) -> Any:
    from roxxel.train import evaluator

    make = part(found, "checkpointer")
    rank = evaluator.declared(part(found, "best"), part(found, "early_stopping"))
    options = {"best_metric": rank.metric, "best_mode": rank.mode} if rank else {}
    return make(checkpoint_path=path, model=model, read_only=True, **options)


def _choose(checkpointer: Any, wanted: str | int, path: Path) -> int | None:
    """The step to restore; None for the newest that can be read."""
    with checkpointer:
        steps, best = checkpointer.all_steps(), checkpointer.best_step()
    flag = f"--checkpoint={wanted}"
    there = f"{path} holds {', '.join(map(str, steps))}"
    if not steps:
        raise ConfigError(
            f"{path} holds no complete checkpoint; has the run saved one?"
        )
    if wanted == "latest":
        return None
    if wanted == "best" and best is None:
        raise ConfigError(
            f"{flag}: no checkpoint has the metric that ranks them; {there}. Give "
            "latest or a step."
        )
    if wanted != "best" and wanted not in steps:
        raise ConfigError(f"{flag}: there is no such checkpoint; {there}.")
    return best if wanted == "best" else int(wanted)


def _unrestored(found: resolve.Experiment, mesh: "Mesh | None") -> Any:
    """The model without values, each of its arrays with the place where it will lie."""
    import jax
    from flax import nnx

    from roxxel import sharding

    make, seed, rules = (part(found, name) for name in ("model", "seed", "axis_rules"))
    precision = part(found, "precision")
    options = precision.model_options() if precision else {}

    def create():
        return (make(rngs=nnx.Rngs(seed), **options),)

    if mesh is not None:
        return sharding.abstract_on(mesh, create, rules)[0]
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    graphdef, state = nnx.split(nnx.eval_shape(create)[0])
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), state
    )
    return nnx.merge(graphdef, placed)


def _restore(checkpointer: Any, step: int | None, model: Any) -> int:
    """Parameters into `model`, or their running mean; the step they are of."""
    from roxxel.checkpoint import CheckpointError
    from roxxel.train import ema

    try:
        restored = checkpointer.restore(step, model_only=True, cast="widen")
        ema.restore(checkpointer.path, restored, model)
        return restored
    except CheckpointError as err:
        raise ConfigError(imports.one_line(err)) from err
