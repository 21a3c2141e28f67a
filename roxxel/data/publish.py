"""How finished shards get their names: each whole, several at once, nothing lost."""

import contextlib
import json
import os
import re
import secrets
import socket
import stat

from roxxel.data import paths
from roxxel.errors import ConfigError

_own_parts: set[str] = set()  # made by this process
_PART = re.compile(r"\.(?P<name>.+)\.(?P<host>[^.]+)-(?P<pid>\d+)-[0-9a-f]+\.part")


def part_path(path: str) -> str:
    """A new hidden name beside `path` for a shard that is being written."""
    directory, name = os.path.split(path)
    unique = f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    part = os.path.join(directory, f".{name}.{unique}.part")
    _own_parts.add(part)
    return part


def publish_one(part: str, path: str) -> None:
    """Gives a finished shard its name, refusing to replace what is there.

    Raises:
        paths.ShardsExistError: Another writer was faster.
    """
    try:
        os.link(part, path)
    except FileExistsError as err:
        raise _appeared(path) from err
    except OSError:  # a file system without hard links
        check_free([path])
        os.rename(part, path)
    else:
        os.unlink(part)
    sync_directory(path)


def check_free(files: list[str]) -> None:
    """Refuses to go on where one of `files` is there already.

    Raises:
        paths.ShardsExistError: Another writer was faster.
    """
    for path in files:
        if os.path.lexists(path):
            raise _appeared(path)


def _appeared(path: str) -> paths.ShardsExistError:
    return paths.ShardsExistError(
        f"{path} appeared while it was being written: another writer writes the"
        " same data set. Write to another place or wait for it."
    )


def publish_all(target: paths.Target, parts: list, stale: list[str]) -> None:
    """Gives all shards their names and removes the `stale`, as one step.

    The step is written down first, so that a crash in its middle is made good by
    `finish_publishing` when the data set is next opened or written.
    `parts` are pairs of hidden name and final name.
    """
    kept = {final for _, final in parts}
    plan = {
        "moves": [[os.path.basename(p), os.path.basename(f)] for p, f in parts],
        "stale": [os.path.basename(s) for s in stale if s not in kept],
    }
    part = part_path(target.journal)
    try:
        with open(part, "w") as file:
            json.dump(plan, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target.journal)
    except BaseException:
        if not os.path.lexists(target.journal):  # else it is decided
            remove_all([part, *(p for p, _ in parts)])
        raise
    sync_directory(target.journal)
    finish_publishing(target)


def finish_publishing(target: paths.Target) -> None:
    """Completes a `publish_all` that was cut off; nothing to do as a rule."""
    try:
        with open(target.journal) as file:
            plan = json.load(file)
    except FileNotFoundError:
        return
    except ValueError as err:
        raise ConfigError(
            f"{target.journal} is damaged: expected the list of renames of a write that"
            " was cut off. Remove it, then check the data set."
        ) from err
    for part, final in plan["moves"]:
        with contextlib.suppress(FileNotFoundError):  # done before the crash
            os.replace(_beside(target, part), _beside(target, final))
    for name in plan["stale"]:
        _remove(_beside(target, name))
    sync_directory(target.journal)
    _remove(target.journal)


def remove_leftovers(target: paths.Target) -> None:
    """Removes unfinished shards of this data set whose writer has died."""
    for part in _unfinished_parts(target):
        if _writer(part)["host"] == _host() and not _is_being_written(part):
            _remove(part)


def _unfinished_parts(target: paths.Target) -> list[str]:
    """Paths of the hidden files of this data set's writes that did not finish yet."""
    parts = []
    for name in os.listdir(target.directory or "."):
        match = _PART.fullmatch(name)
        path = os.path.join(target.directory, match["name"]) if match else ""
        if match and (path == target.single or target.number(path) is not None):
            parts.append(os.path.join(target.directory, name))
    return parts


def _is_being_written(part: str) -> bool:
    """Whether the writer of a hidden file lives on this machine."""
    writer = _writer(part)
    pid = int(writer["pid"])
    if writer["host"] != _host():
        return False
    return part in _own_parts if pid == os.getpid() else _is_alive(pid)


def remove_all(files: list[str]) -> None:
    """Removes those of `files` that are there."""
    for path in files:
        _remove(path)


def remove_own(path: str, made: os.stat_result) -> None:
    """Removes the file at `path` if it is the one `made`, not another writer's."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.lstat(path), made):
            os.unlink(path)


def sync_directory(path: str) -> None:
    """Makes new names beside `path` survive a power cut."""
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse
            os.fsync(fd)
    finally:
        os.close(fd)


def _beside(target: paths.Target, name: str) -> str:
    return os.path.join(target.directory, name)


def _remove(path: str) -> None:
    """Removes a regular file; never a device such as os.devnull, even for root."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)


def _writer(part: str) -> re.Match:
    match = _PART.fullmatch(os.path.basename(part))
    assert match
    return match


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname()) or "host"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
