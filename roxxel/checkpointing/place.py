"""Where the checkpoints are: an absolute path, checked before anything is written."""

import os
import pathlib

from roxxel.errors import ConfigError


def resolve(path: str | os.PathLike, *, writable: bool) -> pathlib.Path:
    """Absolute form of `path` (`~` expanded), checked and not created.

    Raises:
      ConfigError: a file is in the way, or the place cannot be written.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigError(f"checkpoint_path must be a path, got {path!r}.")
    text = os.fsdecode(path)
    if "://" in text:
        raise ConfigError(
            f"checkpoint_path {text!r} is a URL; expected a directory. Mount the "
            "bucket (for example with gcsfuse) and give the mounted path."
        )
    root = pathlib.Path(os.path.abspath(os.path.expanduser(text)))
    existing = root
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(f"checkpoint_path {root}: {existing} is not a directory.")
    needed = os.R_OK | os.X_OK | (os.W_OK if writable else 0)
    if not os.access(existing, needed):
        wanted = "written" if writable else "read"
        raise ConfigError(
            f"checkpoint_path {root}: {existing} cannot be {wanted} by this user. "
            "Choose another directory or change its permissions."
        )
    return root
