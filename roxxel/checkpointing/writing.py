"""One write at a time, in the background, through Orbax."""

import pathlib
import threading
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from roxxel.checkpointing import exits, files, state


class Writer:
    """Writes steps of one directory; the lead process completes and prunes them."""

    def __init__(self, root: pathlib.Path, keep: files.Keep):
        self.root = root
        self._keep = keep
        self._orbax: ocp.AsyncCheckpointer | None = None
        self._thread: threading.Thread | None = None
        self._number = 0
        self._error: BaseException | None = None

    def start(self, number: int, record: dict, arrays: dict[str, Any]) -> None:
        """Starts writing `arrays`, which nobody changes from now on.

        `wait` comes first: it reports on the write before. What Orbax does before it
        writes (folders, a plan of the files) happens in the background too, unless
        arrays are still to be copied from an accelerator, or processes must call it
        in the same order.

        Raises:
          CheckpointError: the write could not be started.
        """
        assert self._thread is None
        self._number = number
        at_once = jax.process_count() > 1 or not state.is_in_host_memory(arrays)
        if at_once:
            try:
                self._begin(number, arrays)
            except Exception as err:
                raise self._failure(number, err) from err
        lead = jax.process_index() == 0
        self._thread = threading.Thread(
            target=self._write,
            args=(number, None if at_once else arrays, record if lead else None),
            name=f"checkpoint-{number}",
        )
        exits.track(self)
        self._thread.start()

    def _begin(self, number: int, arrays: dict[str, Any]) -> None:
        """Has Orbax write; other processes wait in its `save` for the lead."""
        orbax = self._opened()
        if jax.process_index() == 0:
            files.clean(self.root)
        orbax.save(
            files.staging(self.root, number),
            args=ocp.args.Composite(state=ocp.args.PyTreeSave(arrays)),
            force=True,
        )

    def _opened(self) -> ocp.AsyncCheckpointer:
        """Made at the first save only: it asks jax for the processes."""
        if self._orbax is None:
            handler = ocp.PyTreeCheckpointHandler()
            composite = ocp.CompositeCheckpointHandler(state=handler)
            self._orbax = ocp.AsyncCheckpointer(composite)
        return self._orbax

    def _write(self, number: int, arrays: dict | None, record: dict | None) -> None:
        try:
            if arrays is not None:
                self._begin(number, arrays)
            self._opened().wait_until_finished()
            if record is not None:
                files.commit(self.root, number, record)
                files.prune(self.root, self._keep)
        except BaseException as err:
            self._error = err

    def wait(self) -> None:
        """Waits for the write in progress, also for that of another writer here.

        Raises:
          CheckpointError: its own write failed; names the step. Raised once.
        """
        for writer in exits.pending():
            if writer.root == self.root:
                writer.join()
        self._thread = None
        exits.untrack(self)
        error, self._error = self._error, None
        if error is not None:
            raise self._failure(self._number, error) from error

    def join(self) -> None:
        """Waits for the write in progress and leaves its outcome to `wait`."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _failure(self, number: int, error: BaseException) -> files.CheckpointError:
        return files.CheckpointError(
            f"checkpoint of step {number} was not written to {self.root}: "
            f"{type(error).__name__}: {error}"
        )

    def close(self) -> None:
        """Waits, then lets go of Orbax's threads.

        Raises:
          CheckpointError: the last write failed.
        """
        try:
            self.wait()
        finally:
            orbax, self._orbax = self._orbax, None
            if orbax is not None:
                self._close(orbax)

    def _close(self, orbax: ocp.AsyncCheckpointer) -> None:
        try:
            orbax.close()
        except Exception as err:  # its own notes of a write that failed
            raise self._failure(self._number, err) from err


def report_instead_of_raising(close) -> None:
    """Calls `close` while another error is on its way out, which must not be hidden."""
    try:
        close()
    except files.CheckpointError as err:
        logging.error("%s", err)
