"""A folder of built data sets: each is built once, and is complete when it is there.

    <cache>/<name>-<key>/        a data set and `build.json`
    <cache>/.<name>-<key>.lock   held while it is built; the others wait
    <cache>/.<name>-<key>.building-*   left by a killed build, removed by the next

The key is a hash of what went in and how, so that another process or host with the
same inputs and options finds the same folder.
"""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Generator
from typing import IO

from absl import logging

from roxxel.data import reading_only
from roxxel.errors import ConfigError

INFO_FILE = "build.json"
_KEY_DIGITS = 16


def find_or_build(
    name: str,
    key: object,
    build: Callable[[pathlib.Path], dict],
    *,
    cache_dir: str | os.PathLike | None = None,
) -> tuple[pathlib.Path, dict]:
    """The folder of the data set and what is known of it, built if it is missing.

    Args:
        name: Start of the folder's name.
        key: Inputs, options and code version, as plain JSON values.
        build: Fills an empty folder and returns plain JSON values to keep beside it.
        cache_dir: The cache; $ROXXEL_CACHE or ~/.cache/roxxel by default.

    Raises:
        ConfigError: The data set is not there and the cache cannot be written to.
    """
    cache = cache_folder(cache_dir)
    folder = cache / f"{name}-{fingerprint(key)}"
    if not folder.is_dir():
        reading_only.check(f"{name}: not built yet; training builds it in {folder}.")
        with _cache_errors(cache), _locked(cache / f".{folder.name}.lock") as is_alone:
            if not folder.is_dir():
                _build(folder, build, is_alone=is_alone)
    return folder, json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))


def cache_folder(cache_dir: str | os.PathLike | None = None) -> pathlib.Path:
    """`cache_dir`, else $ROXXEL_CACHE, else ~/.cache/roxxel."""
    chosen = cache_dir or os.environ.get("ROXXEL_CACHE") or "~/.cache/roxxel"
    return pathlib.Path(chosen).expanduser().absolute()


def fingerprint(key: object) -> str:
    """Short hash of plain JSON values."""
    text = json.dumps(key, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def _build(
    folder: pathlib.Path, build: Callable[[pathlib.Path], dict], *, is_alone: bool
) -> None:
    prefix = f".{folder.name}.building-"
    if is_alone:
        for stale in folder.parent.glob(f"{prefix}*"):
            shutil.rmtree(stale, ignore_errors=True)
    temporary = folder.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        info = build(temporary)
        _write_durably(temporary / INFO_FILE, json.dumps(info, indent=2))
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: pathlib.Path, folder: pathlib.Path) -> None:
    try:
        temporary.rename(folder)
    except OSError as err:  # a host without the lock was faster: its folder is the same
        if err.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Generator[bool]:
    """Waits for the lock at `path`; False if the file system has no locks.

    Without locks two processes may build the same data set: the first to finish wins,
    and both read the same.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        yield _lock(file, path.stem[1:])


def _lock(file: IO[str], what: str) -> bool:
    import fcntl  # not on every system; only builds need it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logging.warning("%s: another process builds it; waiting.", what)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _cache_errors(cache: pathlib.Path) -> Generator[None]:
    try:
        yield
    except OSError as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(
            f"data cache {cache} cannot be written to: {err}. Choose another folder "
            "with cache_dir= or $ROXXEL_CACHE."
        ) from err


def _write_durably(path: pathlib.Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
