"""Elements of a part on their way from a worker to the writer: a file for each side.

The files lie beside the output, so that a part of any size passes through the page
cache and never through memory.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Generator, Iterable
from typing import BinaryIO

import numpy as np

from roxxel.building.encode import Joined, Piece
from roxxel.building.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Spooled:
    """Paths, documents and bytes of text of the kept side and of the one held out."""

    paths: tuple[str, str]
    documents: tuple[int, int]
    num_bytes: tuple[int, int]

    def read(self, dtype: np.dtype) -> Piece:
        """The elements, mapped; their files lose their names."""
        kept, held = (
            Joined(_take(path, count, dtype), count, num_bytes)
            for path, count, num_bytes in zip(
                self.paths, self.documents, self.num_bytes, strict=True
            )
        )
        return Piece(kept, held)


@contextlib.contextmanager
def folder(beside: str | os.PathLike) -> Generator[str]:
    """A hidden folder in `beside` while it is needed; those of killed builds go."""
    host = re.sub(r"\W", "_", socket.gethostname())
    owned = re.compile(rf"\.spool-{host}-(\d+)-.*")
    for name in os.listdir(beside):
        match = owned.fullmatch(name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(os.path.join(beside, name), ignore_errors=True)
    prefix = f".spool-{host}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=beside) as made:
        yield made


def write(pieces: Iterable[Piece], recipe: Recipe, path: str) -> Spooled:
    """Joins all `pieces` of a part in files that start with `path`."""
    targets = (f"{path}.kept", f"{path}.held")
    counts, num_bytes = [0, 0], [0, 0]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(target, "wb", 0)) for target in targets]
        for piece in pieces:
            for side, joined in enumerate((piece.kept, piece.held)):
                if joined.documents:
                    if counts[side]:
                        _write_all(files[side], recipe.separator)
                    _write_all(files[side], joined.elements)
                    counts[side] += joined.documents
                    num_bytes[side] += joined.num_bytes
    return Spooled(targets, (counts[0], counts[1]), (num_bytes[0], num_bytes[1]))


def _write_all(file: BinaryIO, elements: np.ndarray) -> None:
    view = np.ascontiguousarray(elements).view(np.uint8).data
    while view.nbytes:
        view = view[file.write(view) :]


def _take(path: str, documents: int, dtype: np.dtype) -> np.ndarray:
    try:
        return np.memmap(path, dtype, "r") if documents else np.empty(0, dtype)
    finally:
        os.unlink(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
