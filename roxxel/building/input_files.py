"""The files that a source reads: found, named by their states, watched for changes."""

import glob
import os

from roxxel.building import documents
from roxxel.building.documents import Patterns
from roxxel.errors import ConfigError


class InputFiles:
    """Files with their sizes and times of last change as they are now.

    Raises:
        ConfigError: One cannot be read.
    """

    def __init__(self, paths: list[str]):
        self.paths = paths
        self.states = self._look()

    def describe(self) -> dict:
        """What is stored with the data."""
        num_bytes = sum(size for _, size, _ in self.states)
        return {"files": len(self.paths), "input_bytes": num_bytes}

    def check_unchanged(self) -> None:
        """Raises ConfigError when a file is another than it was at first."""
        for before, now in zip(self.states, self._look(), strict=True):
            if before != now:
                raise ConfigError(f"{now[0]} changed while it was read; try again.")

    def _look(self) -> list[tuple[str, int, int]]:
        try:
            return documents.states(self.paths)
        except OSError as err:
            raise ConfigError(
                f"{err.filename}: cannot be read: {err.strerror}."
            ) from err


def find(patterns: Patterns, *, in_folders: str | None = None) -> InputFiles:
    """The files that match, part2 before part10.

    `in_folders` is the pattern of the files to take where a folder is given.

    Raises:
        ConfigError: A pattern matches no file.
    """
    texts = as_list(patterns)
    if in_folders is not None:
        texts = [
            os.path.join(glob.escape(text), "**", in_folders)
            if os.path.isdir(os.path.expanduser(text))
            else text
            for text in texts
        ]
    return InputFiles(documents.find_files(texts))


def as_list(patterns: Patterns) -> list[str]:
    """The patterns as strings, one or many."""
    is_single = isinstance(patterns, str | os.PathLike)
    return [os.fspath(p) for p in ([patterns] if is_single else patterns)]
