"""Logging that never waits for a device and loses nothing when the process ends.

    with Logger(log_dir="run_delta") as logger:
        logger.log_message("starting")
        logger.log_metrics_summary(step=1, loss=loss)  # loss may still be computing

Written to `log_dir` by the lead process: `roxxel_system.log` (messages with their
time) and `roxxel_metrics.csv` (one row a step), see `roxxel.sinks`.
"""

import os
import pathlib
import time
import traceback
from collections.abc import Iterable
from typing import Any

import numpy as np

from roxxel.errors import EXIT_RESTART, ConfigError
from roxxel.sinks import EXCEPTION, LEVELS, Sink, attach, lifetime, values
from roxxel.sinks.background import Background
from roxxel.sinks.console import ConsoleSink
from roxxel.sinks.csv import FILE_NAME as METRICS_FILE
from roxxel.sinks.csv import CsvSink
from roxxel.sinks.textlog import FILE_NAME as SYSTEM_FILE
from roxxel.sinks.textlog import TextLogSink
from roxxel.sinks.worker import Worker, tell_stderr


class Logger:
    """Messages and metrics of a run, written by a thread of their own.

    Works with or without `with`; without, the records still reach the files at
    interpreter exit. A second Logger on the same folder takes it over: the first is
    closed. In processes other than the lead the calls do nothing, but an exception
    that leaves the with-block is written to standard error and to
    `roxxel_error_process_<i>.log`. In a forked child they do nothing at all.

    Args:
        log_dir: Folder of the files, created if missing.
        console: Whether messages and metrics are also printed to standard output.
        console_every: Metrics of every n-th step are printed (0: none); the CSV has
            every step.
        sinks: More places for records to go, each on a thread of its own.
        drain_timeout_secs: How long `flush` and `close` wait for a device that
            delivers nothing before they give up and say what is lost.

    Raises:
        ConfigError: `log_dir` cannot be created or written to.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        *,
        console: bool = True,
        console_every: int = 1,
        sinks: Iterable[Sink] = (),
        drain_timeout_secs: float = 60.0,
    ):
        if console_every < 0:
            raise ConfigError(f"console_every must be 0 or more, got {console_every}.")
        self.log_dir = pathlib.Path(log_dir).expanduser().absolute()
        self._console_every = console_every if console else None
        self._extra_sinks = tuple(sinks)
        self._drain_timeout_secs = drain_timeout_secs
        self._pid = os.getpid()
        self._worker: Worker | None = None
        self._is_lead: bool | None = None  # known for sure at the first record
        self._closed = False
        self._saw_device_value = False
        self._earlier_exception = lifetime.uncaught_exception()
        if lifetime.process_index() == 0:
            _make_folder(self.log_dir)
            self._worker = Worker(self._make_sinks)  # now: the first record is cheap
        self._key = os.path.realpath(self.log_dir)
        lifetime.enter(self._key, self)

    def __enter__(self) -> "Logger":
        return self

    def __exit__(self, exc_type: object, exc: BaseException | None, tb: object) -> None:
        try:
            if exc is not None and not self._closed:
                self._log_exception(exc)
        finally:
            self.close()

    def log_message(self, text: Any, *args: Any, level: str = "info") -> None:
        """Logs `text`, or `text % args`; device values in `args` are not waited for.

        Args:
            text: The message. An object other than a string is turned into one on
                the worker.
            *args: Values for the `%` places of `text`.
            level: debug, info, warning or error.
        """
        if level not in LEVELS:
            raise ValueError(
                f"level is {level!r}, expected one of {', '.join(LEVELS)}."
            )
        worker = self._writer()
        if worker is None:
            return
        if args and not values.holds_device_value(args):
            text, args = _format_now(text, args)
        elif isinstance(text, dict | list | tuple | np.ndarray):
            text = text if values.holds_device_value(text) else str(text)
        self._note_device_values((text, *args))
        worker.message(time.time(), level, text, args)

    def log_metrics_summary(
        self, step: Any, loss: Any = None, ppl: Any = None, **metrics: Any
    ) -> None:
        """Logs the metrics after `step` completed steps; None means no value.

        Values are numbers or 0-d arrays. Those of a device may still be computing:
        the call returns at once. Calls for one step share a CSV row.

        Args:
            step: Completed steps, counted on over epochs and restarts.
            loss: Mean loss in nats. A mean over nothing is nan, and written as nan.
            ppl: Perplexity, the column `perplexity`; exp(loss) if left out, inf
                where that overflows.
            **metrics: Any others, by column name.

        Raises:
            ValueError: A value is not one number, or the step not an integer.
        """
        step = values.accept_step(step)
        given = {"loss": loss, "perplexity": ppl}
        for name, value in metrics.items():
            _check_name(name, taken=ppl is not None)
            given[name] = value
        numbers = {
            name: values.accept(name, value)
            for name, value in given.items()
            if value is not None
        }
        worker = self._writer()
        if worker is not None:
            self._note_device_values((step, *numbers.values()))
            worker.metrics(time.time(), step, numbers)

    def log_text(self, step: Any, name: str, text: str) -> None:
        """Gives a text of a step, such as a sample, to the sinks that show texts."""
        self._log_media(step, "text", name, text)

    def log_histogram(self, step: Any, name: str, numbers: Any) -> None:
        """Gives the distribution of an array to the sinks that show histograms."""
        self._log_media(step, "histogram", name, numbers)

    def log_image(self, step: Any, name: str, pixels: Any) -> None:
        """Gives an image to the sinks that show images.

        `pixels` is [height, width] or [height, width, 1 | 3 | 4], uint8 or floats in
        [0, 1].
        """
        self._log_media(step, "image", name, pixels)

    def _log_media(self, step: Any, kind: str, name: str, value: Any) -> None:
        step = values.accept_step(step)
        _check_name(name, taken=False)
        worker = self._writer()
        if worker is None:
            return
        if isinstance(value, np.ndarray | list | tuple):
            value = np.array(value)  # a copy: the caller may change its array
        self._note_device_values((step, value))
        worker.media(time.time(), step, kind, name, value)

    def rewind(self, step: Any) -> None:
        """Drops the metrics after `step`: the run was restored there and goes on.

        Without it, the first metrics of a new process at step s replace all rows of
        the file from s on.
        """
        step = values.accept_step(step)
        worker = self._writer()
        if worker is not None:
            worker.rewind(step)

    def flush(self) -> None:
        """Waits until everything logged so far is with the operating system."""
        if self._worker is not None and self._pid == os.getpid():
            self._warn_of_loss(self._worker.flush(self._drain_timeout_secs))

    def close(self) -> None:
        """Writes everything and ends the thread; may be called again."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        try:
            if self._worker is not None:
                self._warn_of_loss(self._worker.stop(self._drain_timeout_secs))
        finally:
            lifetime.leave(self._key, self)

    def drain_before_death(self, cause: str) -> None:
        """Logs `cause` and writes everything; the process is about to be killed."""
        if self._worker is not None and self._pid == os.getpid():
            self._worker.message(time.time(), "warning", f"stopped by {cause}", ())
            self.flush()

    def at_exit(self) -> None:
        """Logs the exception that ended the program, if one did, and closes."""
        if self._pid != os.getpid():
            return
        uncaught = lifetime.uncaught_exception()
        if uncaught is not None and uncaught is not self._earlier_exception:
            self._log_exception(uncaught)
        self.close()

    def _writer(self) -> Worker | None:
        """The worker, started with the first record; None if nothing is written."""
        if self._closed:
            raise RuntimeError(
                f"the Logger of {self.log_dir} is closed (by close(), its with-block "
                "or a newer Logger on the same folder): nothing can be logged."
            )
        if self._pid != os.getpid():
            return None
        if self._is_lead is None:
            self._is_lead = lifetime.process_index() == 0
        if not self._is_lead:
            return None
        if self._worker is None:
            self._worker = Worker(self._make_sinks)
        return self._worker

    def _make_sinks(self) -> list[Sink]:
        sinks: list[Sink] = [
            TextLogSink(self.log_dir / SYSTEM_FILE),
            CsvSink(self.log_dir / METRICS_FILE),
        ]
        if self._console_every is not None:
            sinks.append(ConsoleSink(every=self._console_every))
        attach(self._extra_sinks, self.log_dir)
        return [*sinks, *map(Background, self._extra_sinks)]

    def _note_device_values(self, given: tuple) -> None:
        if not self._saw_device_value and values.holds_device_value(given):
            self._saw_device_value = True
            lifetime.hook_exit()

    def _log_exception(self, exc: BaseException) -> None:
        text = _describe(exc)
        worker = self._writer()
        if worker is not None:
            worker.message(time.time(), EXCEPTION, text, ())
        elif self._pid == os.getpid() and not isinstance(exc, SystemExit):
            self._write_error_file(text)

    def _write_error_file(self, text: str) -> None:
        index = lifetime.process_index()
        tell_stderr(f"[process {index}] {text}\n")
        path = self.log_dir / f"roxxel_error_process_{index}.log"
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError as err:
            tell_stderr(f"[process {index}] {path} could not be written: {err}\n")

    def _warn_of_loss(self, is_complete: bool) -> None:
        if not is_complete and self._worker is not None:
            tell_stderr(
                f"roxxel.Logger: gave up after {self._drain_timeout_secs:g} s without "
                f"progress; {self._worker.pending()} records are not in "
                f"{self.log_dir}.\n"
            )


def _format_now(text: Any, args: tuple) -> tuple[Any, tuple]:
    """Formatted in the caller: its lists may change before the worker reads them."""
    try:
        return str(text) % args, ()
    except Exception:
        return text, args  # the worker logs both, unformatted


def _describe(exc: BaseException) -> str:
    if isinstance(exc, SystemExit):
        return f"exit with code {exc.code!r}"
    if getattr(exc, "exit_code", None) == EXIT_RESTART:
        return f"{type(exc).__name__}: {exc}"
    lines = traceback.format_exception(exc)
    return f"stopped by {type(exc).__name__}\n{''.join(lines)}".rstrip("\n")


def _check_name(name: str, *, taken: bool) -> None:
    if not name.isprintable() or not name:
        raise ValueError(f"metric name {name!r} is empty or holds control characters.")
    if name == "perplexity" and taken:
        raise ValueError("both ppl= and perplexity= were given: they are one column.")


def _make_folder(path: pathlib.Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ConfigError(
            f"log_dir {path} cannot be created: {err.strerror or err}."
        ) from err
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"log_dir {path} cannot be written to: permission denied.")
