"""A run without jax for the tests of sweeps: real logger, real signals, a checkpoint.

`--fdl_config=sweep_toy.toy`. Its loss falls to `(width - 3)^2 + log10(peak / 1e-2)^2`.
"""

import dataclasses
import json
import math
import os
import pathlib
import signal
import time
from typing import Any

import fiddle as fdl

import roxxel
from configs import tags
from roxxel.errors import EXIT_OK, EXIT_RESTART, ConfigError, DivergedError


@dataclasses.dataclass(kw_only=True)
class Toy:
    """Counts steps. `starts.txt` gets a line for each process that trained."""

    peak: float = 1e-2
    width: int = 3
    total_steps: int = 20
    ending: str = "ok"
    step_secs: float = 0.0
    stop_after: int | None = None

    def run(self, workdir: pathlib.Path, run_info: dict[str, Any]) -> int:
        if self.ending == "config":
            raise ConfigError("the data set is empty")
        if self.ending == "crashes":
            raise RuntimeError("boom")
        saved = workdir / "saved.json"
        start = json.loads(saved.read_text())["step"] if saved.exists() else 0
        last = min(self.total_steps, self.stop_after or self.total_steps)
        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
        with roxxel.Logger(log_dir=workdir) as logger:
            if start >= last:
                return EXIT_OK
            with open(workdir / "starts.txt", "a") as file:
                file.write(f"{start} {os.environ.get('NPROC')}\n")
            logger.rewind(start)
            done = self._train(start, last, saved, logger, told)
        if done < last:
            return EXIT_RESTART
        if done == self.total_steps:
            summary = {"steps": done, "eval_loss": self._loss(done)}
            (workdir / "summary.json").write_text(json.dumps(summary))
        return EXIT_OK

    def _train(self, start, last, saved, logger, told) -> int:
        for step in range(start + 1, last + 1):
            if told:
                return step - 1
            time.sleep(self.step_secs)  # what the work of a step takes
            logger.log_metrics_summary(step, loss=self._loss(step))
            logger.flush()
            part = saved.with_suffix(".part")
            part.write_text(json.dumps({"step": step}))
            part.replace(saved)
            self._end_at(step, workdir=saved.parent)
        return last

    def _end_at(self, step: int, *, workdir: pathlib.Path) -> None:
        if step != self.total_steps // 2:
            return
        marker = workdir / "crashed.txt"
        if self.ending == "diverges":
            raise DivergedError(f"step {step} is not finite")
        if self.ending == "crashes_once" and not marker.exists():
            marker.write_text("")
            raise RuntimeError("boom")

    def _loss(self, step: int) -> float:
        best = (self.width - 3) ** 2 + math.log10(self.peak / 1e-2) ** 2
        return best + 1 / step


@roxxel.experiment(name="sweep_toy")
def toy(steps: int = 20) -> fdl.Config[Toy]:
    """A run without jax."""
    config = fdl.Config(Toy, total_steps=steps)
    fdl.add_tag(config, "peak", tags.LearningRate)
    return config
