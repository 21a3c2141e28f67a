"""Compiled programs that outlive a run: jax's persistent cache, beside the runs.

A run that starts again, or another one of the same shapes, need not compile. Programs
for a CPU hold instructions of the machine that made them, which jax's key does not say:
each kind of CPU has a folder of its own. What the folder holds beyond `MAX_BYTES` is
removed at the beginning of a run, that not used for the longest time first.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
from collections.abc import Generator

import jax
from absl import logging
from jax.experimental.compilation_cache import compilation_cache

MAX_BYTES = 4 * 2**30


@contextlib.contextmanager
def used(place: str | os.PathLike | None, workdir: pathlib.Path) -> Generator[None]:
    """Programs compiled in the block are kept in `place`, and found there again.

    A folder that jax was told already (JAX_COMPILATION_CACHE_DIR) stays. A place that
    cannot be written to is left alone, with a warning.

    Args:
      place: a folder, relative to that which holds `workdir`; None: none.
      workdir: of the run.
    """
    if place is None or jax.config.values["jax_compilation_cache_dir"]:
        yield
        return
    folder = workdir.absolute().parent / pathlib.Path(place).expanduser() / _machine()
    if not _is_usable(folder):
        logging.warning("compiled programs are not kept: %s is not writable", folder)
        yield
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


def prune(folder: pathlib.Path, max_bytes: int = MAX_BYTES) -> None:
    """Removes files until at most `max_bytes` are left; races are of no harm."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            stat = path.stat()
            found.append((max(stat.st_atime, stat.st_mtime), stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= max_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


def _is_usable(folder: pathlib.Path) -> bool:
    """jax makes the folder with the first program that it writes."""
    try:
        if folder.is_dir() and jax.process_index() == 0:
            prune(folder)
        there = next(path for path in (folder, *folder.parents) if path.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:
        return False


def _machine() -> str:
    """A name for what programs depend on beside jax's own key."""
    backend = jax.default_backend()
    if backend != "cpu":
        return backend
    facts = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        marks = ("flags", "Features", "model name")
        facts += sorted({line.strip() for line in file if line.startswith(marks)})
    return f"cpu-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"
