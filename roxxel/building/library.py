"""The sources of the Python library as a data set, byte for byte as documented."""

import hashlib
import importlib.util
import os
import pathlib
import platform
import sysconfig
from collections.abc import Iterable, Iterator

import numpy as np

from roxxel.building import cache, encode, engine, splits
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.progress import Progress

_NAME = "python_library_sources"
_CODE_VERSION = 1  # another one builds anew; raise it when the bytes would differ
_HELDOUT_ONE_IN = 20
_MAX_SHARD_BYTES = 1 << 30
_SKIPPED_FOLDERS = {
    "site-packages", "dist-packages", "test", "tests", "idle_test",
}  # fmt: skip


def build(
    split: str, cache_dir: str | os.PathLike | None, root: str | os.PathLike | None
) -> Roxxel:
    """See `roxxel.builders.python_library_sources`."""
    splits.check_split(split)
    library = pathlib.Path(root or sysconfig.get_path("stdlib"))
    files = _find(library)
    if not files:
        raise ConfigError(
            f"no *.py file under {library}: this Python has no sources of its standard "
            "library; give root= or use text_files."
        )
    metadata = {
        "builder": _NAME,
        "files": len(files),
        "content_sha256": _content_hash(library, files),
    }
    if root is None:
        metadata["python"] = platform.python_version()

    def write(folder: pathlib.Path) -> dict:
        return splits.write(
            _pieces(library, files),
            {
                side: splits.pattern(folder, side)
                for side in (splits.TRAIN, splits.HELDOUT)
            },
            separator=np.empty(0, np.uint8),
            dtype=np.dtype(np.uint8),
            metadata=metadata,
            spool_dir=folder,
            max_shard_bytes=_MAX_SHARD_BYTES,
        )

    key = {"version": _CODE_VERSION} | metadata
    folder, counts = cache.find_or_build(_NAME, key, write, cache_dir=cache_dir)
    engine.check_filled(_NAME, counts, split, 1 / _HELDOUT_ONE_IN)
    return Roxxel(splits.pattern(folder, split))


def _pieces(library: pathlib.Path, files: list[str]) -> Iterator[encode.Piece]:
    """Each file, a NUL byte before all but the first of its side."""
    are_begun = [False, False]
    nothing = encode.Joined(np.empty(0, np.uint8), 0)
    with Progress(len(files), _NAME, "files") as bar:
        for name in files:
            is_held = encode.first_hash_bits(name.encode()) % _HELDOUT_ONE_IN == 0
            text = b"\0" * are_begun[is_held] + _text(library / name)
            are_begun[is_held] = True
            joined = encode.Joined(np.frombuffer(text, np.uint8), 1)
            sides = (nothing, joined) if is_held else (joined, nothing)
            yield encode.Piece(*sides)
            bar.update()


def _find(library: pathlib.Path) -> list[str]:
    """Paths relative to `library`, with `/`, sorted folder by folder."""
    found: list[str] = []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [n for n in subfolders if n not in _SKIPPED_FOLDERS]
        relative = pathlib.Path(folder).relative_to(library)
        if relative == pathlib.Path("."):
            subfolders[:] = [name for name in subfolders if name != "encodings"]
        found += [
            (relative / name).as_posix()
            for name in names
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    return sorted(found, key=lambda path: path.split("/"))


def _content_hash(library: pathlib.Path, files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        content = hashlib.sha256(_text(library / name))
        digest.update(f"{name}\0{content.hexdigest()}\n".encode())
    return digest.hexdigest()


def _text(path: pathlib.Path) -> bytes:
    """The source in UTF-8, whatever coding it declares."""
    try:
        text = path.read_bytes()
    except OSError as err:
        raise ConfigError(f"{path}: cannot be read: {err.strerror}.") from err
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return importlib.util.decode_source(text).encode("utf-8")
    return text
