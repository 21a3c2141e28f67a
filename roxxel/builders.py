"""Data set builders: text in, a `Roxxel` of UTF-8 bytes (uint8) out.

A data set is built with a progress bar the first time, into $ROXXEL_CACHE or
~/.cache/roxxel, and found there again by a hash of inputs and options. Processes that
ask for the same one at once build it once. Both sides of a split are built together.

Documents are joined by a separator, which stands between them only. Empty texts and
lines are left out; empty source files of the library are not.
"""

import hashlib
import importlib.util
import os
import pathlib
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence

from roxxel.building import cache, documents, splits
from roxxel.building.documents import Patterns
from roxxel.dataset import Roxxel
from roxxel.errors import ConfigError
from roxxel.progress import Progress

_CODE_VERSION = 1  # another one builds anew; raise it when the bytes would differ
_ERRORS = ("strict", "replace", "ignore")
_KB = 1000

_LIBRARY_SKIPPED_FOLDERS = {
    "site-packages", "dist-packages", "test", "tests", "idle_test",
}  # fmt: skip
_LIBRARY_HELDOUT_ONE_IN = 20


def python_library_sources(
    split: str = "train",
    *,
    cache_dir: str | os.PathLike | None = None,
    root: str | os.PathLike | None = None,
) -> Roxxel:
    """The `*.py` files of the running interpreter's own standard library.

    Without site-packages, dist-packages, test folders, `encodings/` (tables that
    repeat each other) and `_sysconfigdata*`; in path order, joined by a NUL byte. A
    file is held out if the first 8 hex digits of the SHA-256 of its path relative to
    the library, as a number, divide by 20. CPython 3.11.7 has 10,158,709 bytes to
    train on (578 files) and 508,969 held out (33 files); other versions have other
    files, so keep `metadata["content_sha256"]` with every score.

    Args:
        split: "train" or "heldout".
        cache_dir: The data cache; $ROXXEL_CACHE or ~/.cache/roxxel by default.
        root: Another folder to take for the standard library.

    Raises:
        ConfigError: No source file is there, or the cache cannot be written to.
    """
    splits.check_split(split)
    library = pathlib.Path(root or sysconfig.get_path("stdlib"))
    files = _library_files(library)
    if not files:
        raise ConfigError(
            f"no *.py file under {library}: this Python has no sources of its standard "
            "library; give root= or use text_files."
        )
    metadata = {
        "builder": "python_library_sources",
        "files": len(files),
        "content_sha256": _library_hash(library, files),
    }
    if root is None:
        metadata["python"] = platform.python_version()

    def read() -> Iterator[splits.Document]:
        with Progress(len(files), "python_library_sources", "files") as bar:
            for name in files:
                yield _source_text(library / name), _is_heldout_source(name)
                bar.update()

    def build(folder: pathlib.Path) -> dict:
        return splits.write(folder, read(), separator=b"\0", metadata=metadata)

    output = splits.Output(
        split=split, heldout_fraction=1 / _LIBRARY_HELDOUT_ONE_IN, cache_dir=cache_dir
    )
    key = {"version": _CODE_VERSION} | metadata
    return _open_side("python_library_sources", key, build, output)


def text_files(
    patterns: Patterns,
    *,
    unit: str = "file",
    encoding: str = "utf-8",
    errors: str = "strict",
    separator: str | bytes = "\0",
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
) -> Roxxel:
    """The text of files (.gz, .bz2 and .xz decompressed), in path order by number.

    With `unit="file"` a document is a file as it is, line ends included, and held in
    memory one at a time; with `unit="line"` it is a line without its end.

    Args:
        patterns: A glob (`**` for any folders), a path, or a list of them.
        unit: "file" or "line".
        encoding: Of the files; the data set is UTF-8 always.
        errors: What to do with text that does not decode: "strict" refuses with file
            and line, "replace" and "ignore" go on.
        separator: Between documents.
        split: "train" or "heldout" with a `heldout_fraction`, else None.
        heldout_fraction: Expected share of documents held out, chosen by a hash of
            their content: the same text is on the same side wherever it stands.
        cache_dir: The data cache; $ROXXEL_CACHE or ~/.cache/roxxel by default.

    Raises:
        ConfigError: An option is wrong, no file matches, or text does not decode.
    """
    if unit not in ("file", "line"):
        raise ConfigError(f"unit is {unit!r}, expected 'file' or 'line'.")
    _check_codec(encoding, errors)
    options = {"unit": unit, "encoding": encoding, "errors": errors}

    def read(files: Sequence[str], on_read: Callable[[int], None]) -> Iterator[bytes]:
        return documents.text_documents(files, **options, on_read=on_read)

    output = splits.Output(
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
    )
    return _from_files("text_files", patterns, options, output, read)


def jsonl(
    patterns: Patterns,
    *,
    field: str = "text",
    errors: str = "strict",
    separator: str | bytes = "\0",
    split: str | None = None,
    heldout_fraction: float = 0.0,
    cache_dir: str | os.PathLike | None = None,
) -> Roxxel:
    """A string of the JSON object on each line of files; blank lines are skipped.

    Args:
        patterns: As in `text_files`, compressed files too.
        field: Name of the field that holds the text.
        errors: As in `text_files`, for bytes and for halves of surrogate pairs.
        separator: Between documents.
        split: As in `text_files`.
        heldout_fraction: As in `text_files`.
        cache_dir: The data cache; $ROXXEL_CACHE or ~/.cache/roxxel by default.

    Raises:
        ConfigError: An option is wrong, no file matches, or a line is no JSON object
            with that field; names file and line.
    """
    _check_codec("utf-8", errors)
    options = {"field": field, "errors": errors}

    def read(files: Sequence[str], on_read: Callable[[int], None]) -> Iterator[bytes]:
        return documents.json_documents(files, **options, on_read=on_read)

    output = splits.Output(
        separator=separator,
        split=split,
        heldout_fraction=heldout_fraction,
        cache_dir=cache_dir,
    )
    return _from_files("jsonl", patterns, options, output, read)


def _from_files(
    builder: str,
    patterns: Patterns,
    options: dict,
    output: splits.Output,
    read: Callable[[Sequence[str], documents.OnRead], Iterable[bytes]],
) -> Roxxel:
    """The data set of the documents that `read` yields from the files that match."""
    files = documents.find_files(patterns)
    states = documents.states(files)
    num_bytes = sum(size for _, size, _ in states)

    def build(folder: pathlib.Path) -> dict:
        with Progress(-(-2 * num_bytes // _KB), builder, "kB") as bar:
            content = documents.content_hash(files, lambda n: bar.set(n // _KB))
            texts = read(files, lambda n: bar.set((num_bytes + n) // _KB))
            info = splits.write(
                folder,
                output.divide(texts),
                separator=output.separator_bytes,
                metadata={
                    "builder": builder,
                    "files": len(files),
                    "content_hash": content,
                }
                | options,
                side=splits.TRAIN if output.heldout_fraction else splits.ALL,
            )
        if documents.states(files) != states:
            raise ConfigError(
                f"{builder}: a file changed while it was read; try again."
            )
        return info

    key = {
        "version": _CODE_VERSION,
        "inputs": states,
        "options": options,
        "separator": output.separator_bytes.hex(),
        "heldout_fraction": output.heldout_fraction,
    }
    return _open_side(builder, key, build, output)


def _open_side(
    builder: str,
    key: dict,
    build: Callable[[pathlib.Path], dict],
    output: splits.Output,
) -> Roxxel:
    folder, counts = cache.find_or_build(
        builder, key, build, cache_dir=output.cache_dir
    )
    if not counts[output.side]["documents"]:
        others = sum(side["documents"] for side in counts.values())
        raise ConfigError(
            f"{builder}: none of the {others} documents with text falls into "
            f"{output.side!r} (heldout_fraction={output.heldout_fraction})."
        )
    return Roxxel(splits.pattern(folder, output.side))


def _library_files(library: pathlib.Path) -> list[str]:
    """Paths relative to `library`, with `/`, sorted folder by folder."""
    found: list[str] = []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [n for n in subfolders if n not in _LIBRARY_SKIPPED_FOLDERS]
        relative = pathlib.Path(folder).relative_to(library)
        if relative == pathlib.Path("."):
            subfolders[:] = [name for name in subfolders if name != "encodings"]
        found += [
            (relative / name).as_posix()
            for name in names
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    return sorted(found, key=lambda path: path.split("/"))


def _library_hash(library: pathlib.Path, files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        content = hashlib.sha256(_source_text(library / name))
        digest.update(f"{name}\0{content.hexdigest()}\n".encode())
    return digest.hexdigest()


def _source_text(path: pathlib.Path) -> bytes:
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


def _is_heldout_source(path: str) -> bool:
    return splits.first_hash_bits(path.encode()) % _LIBRARY_HELDOUT_ONE_IN == 0


def _check_codec(encoding: str, errors: str) -> None:
    try:
        "x".encode(encoding)  # refuses the likes of base64, as looking it up does not
    except LookupError as err:
        raise ConfigError(f"encoding is {encoding!r}: {err}.") from err
    if errors not in _ERRORS:
        raise ConfigError(f"errors is {errors!r}, expected one of {_ERRORS}.")
