"""TensorBoard event files, in `tensorboard/` of the run (extra `[tensorboard]`)."""

import os
import pathlib
import time

from roxxel import extras
from roxxel.errors import ConfigError
from roxxel.sinks import Media, Message, Metrics

try:
    import tensorboardX
except ImportError as err:
    raise extras.missing("roxxel.sinks.tensorboard", "tensorboard", err) from err

FOLDER = "tensorboard"


class TensorBoardSink:
    """Scalars, texts, histograms and images by step.

    A rewound or restarted run goes on in a new event file that tells TensorBoard to
    leave out the steps that come again.
    """

    def __init__(self, folder: str | os.PathLike | None = None):
        self._folder = None if folder is None else pathlib.Path(folder)
        self._writer: tensorboardX.SummaryWriter | None = None
        self._purge_step: int | None = None

    def attach(self, log_dir: pathlib.Path) -> None:
        """Takes `tensorboard/` in the folder of the run where none was given."""
        self._folder = self._folder or log_dir / FOLDER

    def message(self, record: Message) -> None:
        """Nothing: the text log has them."""

    def metrics(self, record: Metrics) -> None:
        """One scalar a metric."""
        writer = self._opened(record.step)
        for name, value in record.values.items():
            writer.add_scalar(name, value, record.step, walltime=record.time)

    def media(self, record: Media) -> None:
        """A text, histogram or image."""
        writer = self._opened(record.step)
        place = (record.name, record.value, record.step)
        if record.kind == "text":
            writer.add_text(*place, walltime=record.time)
        elif record.kind == "histogram":
            writer.add_histogram(*place, walltime=record.time)
        else:
            writer.add_image(*place, walltime=record.time, dataformats="HWC")

    def rewind(self, step: int) -> None:
        """Steps after `step` come again."""
        self.close()
        self._purge_step = step + 1

    def flush(self) -> None:
        """Hands the events to the operating system."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flushes and closes the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _opened(self, step: int) -> "tensorboardX.SummaryWriter":
        if self._writer is None:
            if self._folder is None:
                raise ConfigError("TensorBoardSink has no folder; give one.")
            purge = step if self._purge_step is None else self._purge_step
            # Its own names hold the second only: a writer would replace another's file.
            self._writer = tensorboardX.SummaryWriter(
                str(self._folder),
                purge_step=purge,
                filename_suffix=f".{time.time_ns()}",
            )
        return self._writer
