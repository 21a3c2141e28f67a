"""A trainer whose steps are traced; the fiddler `profile` puts it into a graph."""

import pathlib
from typing import Any

import jax

from roxxel.train.trainer import Trainer


class ProfiledTrainer(Trainer):
    """A `Trainer` that writes a profile of its run to `WORKDIR/profile`.

    The trace grows with the steps; `stop_after` keeps them few.
    """

    def run(self, workdir: pathlib.Path, run_info: dict[str, Any] | None = None) -> int:
        """Runs as `Trainer.run` does, traced."""
        workdir = pathlib.Path(workdir)
        with jax.profiler.trace(str(workdir / "profile")):
            return super().run(workdir, run_info)
