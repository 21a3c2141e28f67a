"""Weights & Biases, online or offline (extra `[wandb]`).

Metrics are plotted over their own `step`, so that a run which goes on after a restart
continues its curves.
"""

import html
import pathlib
import uuid
from typing import Any, Literal

from roxxel import extras
from roxxel.sinks import Media, Message, Metrics

try:
    import wandb
except ImportError as err:
    raise extras.missing("roxxel.sinks.wandb", "wandb", err) from err

ID_FILE = "wandb_id"


class WandbSink:
    """Scalars, texts, histograms and images of one W&B run.

    Args:
        project: The W&B project.
        name: Of the run; the folder's name by default.
        mode: "online", "offline" (files to be synchronised later) or None for what
            WANDB_MODE says.
        options: More arguments of `wandb.init`.
    """

    def __init__(
        self,
        project: str = "roxxel",
        *,
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        options: dict[str, Any] | None = None,
    ):
        self._given = dict(options or {}) | {"project": project, "mode": mode}
        self._name = name
        self._folder = pathlib.Path()
        self._run: Any = None

    def attach(self, log_dir: pathlib.Path) -> None:
        """The run's folder: W&B's files go there, and the id that resumes the run."""
        self._folder = log_dir

    def message(self, record: Message) -> None:
        """Nothing: W&B collects the console by itself."""

    def metrics(self, record: Metrics) -> None:
        """All metrics of a step at once."""
        self._opened().log(dict(record.values) | {"step": record.step})

    def media(self, record: Media) -> None:
        """A text, histogram or image."""
        if record.kind == "text":
            value = wandb.Html(_as_html(record.value), inject=False)
        elif record.kind == "histogram":
            value = wandb.Histogram(record.value.ravel())
        else:
            value = wandb.Image(record.value)
        self._opened().log({record.name: value, "step": record.step})

    def rewind(self, step: int) -> None:
        """Nothing: W&B keeps what it has; later values of a step follow."""

    def flush(self) -> None:
        """Nothing: W&B sends on its own."""

    def close(self) -> None:
        """Ends the W&B run."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _opened(self) -> Any:
        if self._run is None:
            path = self._folder / ID_FILE
            if not path.exists():
                path.write_text(uuid.uuid4().hex[:8])
            self._run = wandb.init(
                dir=str(self._folder),
                id=path.read_text().strip(),
                resume="allow",
                name=self._name or self._folder.name,
                **self._given,
            )
            self._run.define_metric("*", step_metric="step")
        return self._run


def _as_html(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"
