"""`python -m roxxel.rox build OUTPUT ...`: a data set from the command line."""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from roxxel.building import engine, splits
from roxxel.building.source import Source
from roxxel.data import paths
from roxxel.dataset import Roxxel
from roxxel.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_OK, ConfigError
from roxxel.progress import format_rate, format_secs

_EXIT_INTERRUPTED = 130

_DESCRIPTION = """\
Reads one source of documents, tokenizes it in several processes and writes it to
OUTPUT, such as 'data/wiki_*.rox', where * stands for the number of a shard. The
output does not depend on the number of processes. Quote patterns, or let the shell
expand those of inputs.
"""
_EXAMPLES = """\
examples:
  python -m roxxel.rox build 'data/wiki_*.rox' --jsonl 'raw/*.jsonl.gz' --field text \\
      --tokenizer tokenizer.json --heldout 0.01 --processes 8
  python -m roxxel.rox build books.rox --text 'books/**/*.txt'
  python -m roxxel.rox build 'owt_*.rox' --nanogpt train.bin --tokenizer tiktoken:gpt2

After kill -9 or a power cut the same command with --resume goes on behind the shards
that are finished. Ctrl-C and errors remove what was made, but leave finished shards
where --resume was given, and a side of --heldout that is complete.
"""
_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}B": 1000**i for i, p in enumerate("kMGT", 1)}
_UNITS |= {f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}


def add(commands: Any) -> None:
    """Adds the command to the subparsers of `roxxel.rox`."""
    parser = commands.add_parser(
        "build",
        help="a data set from text, JSON lines, Parquet, arrays or token files",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("output", metavar="OUTPUT", help="'NAME_*.rox' or NAME.rox")
    _add_sources(parser)
    _add_source_options(parser)
    _add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Builds and says what was built; progress goes to standard error."""
    started = time.monotonic()
    options = _options(args)
    output = os.fspath(options.output or "")
    paths.write_target(output, numbered=True)
    _check_writable(output)
    source = _source(args)
    try:
        data, counts = engine.run(source, options)
    except KeyboardInterrupt:
        sys.stderr.write(f"roxxel.rox: interrupted; {_left(options)}\n")
        return _EXIT_INTERRUPTED
    except paths.ShardsExistError as err:
        sys.stderr.write(f"roxxel.rox: {_without_modes(str(err))}\n")
        return EXIT_CONFIG
    except (RuntimeError, OSError) as err:
        if isinstance(err, ConfigError):
            raise
        sys.stderr.write(f"roxxel.rox: {' '.join(str(err).split())}\n")
        return EXIT_ERROR
    _report(args.output, data, options, counts, time.monotonic() - started)
    return EXIT_OK


def _left(options: engine.Options) -> str:
    """What an interrupted build has left, and how to go on."""
    output = os.fspath(options.output or "")
    places = [splits.location(output, side) for side in options.sides]
    if options.mode == "new" and any(paths.find(place) for place in places):
        return "finished shards are left; the same command with --resume goes on"
    return "nothing half-built is left"


def _without_modes(message: str) -> str:
    """The message of `Roxxel.write` with what there is to choose from here."""
    first, found, choices = message.partition(". Pass mode=")
    if not found:
        return message
    if "move it away" in choices:
        return f"{first}: give --overwrite, or move it away."
    appends = ", --append" if "'append'" in choices else ""
    return f"{first}: give --overwrite{appends} or --resume."


def _check_writable(output: str) -> None:
    """Refuses a folder where nothing can be written, by its name as it was given.

    Raises:
        ConfigError: It is a file, or no file can be made in it or above it.
    """
    folder = os.path.dirname(output) or "."
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder) or "."
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as err:
        raise ConfigError(
            f"{output} cannot be written: no file can be made in {folder}"
            f" ({os.strerror(err.errno or 0)}); choose another place"
        ) from err


def _add_sources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("source (one of them)")
    one = group.add_mutually_exclusive_group(required=True)
    for name, (what, _, _) in _SOURCES.items():
        one.add_argument(f"--{name}", nargs="+", metavar="PATH", help=what)


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of the source")
    for name, (kind, metavar, what) in _SOURCE_OPTIONS.items():
        owners = ", ".join(
            f"--{s}" for s, (_, _, own) in _SOURCES.items() if name in own
        )
        group.add_argument(
            f"--{name}", type=kind, metavar=metavar, help=f"{owners}: {what}"
        )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("of the data set").add_argument
    add(
        "--tokenizer",
        metavar="NAME",
        help="bytes, tiktoken:NAME, tokenizer.json, *.model, *.tiktoken or a folder;"
        " bytes by default. Of token ids: the one that made them",
    )
    add(
        "--separator",
        type=_separator,
        metavar="N|TEXT|none",
        help="follows every document: an id, or text that names a token (\\n, \\t and"
        " \\xNN are understood); by default the tokenizer's own, NUL for bytes",
    )
    add(
        "--heldout",
        type=float,
        default=0.0,
        metavar="F",
        help="share of documents held out, by a hash of their content: writes"
        " NAME_train_*.rox and NAME_heldout_*.rox",
    )
    add("--processes", type=int, default=1, metavar="N", help="1 by default")
    add("--dtype", help="of the elements; the smallest for the vocabulary by default")
    add(
        "--max_shard_bytes",
        type=_size,
        metavar="SIZE",
        help="such as 500MB or 1GiB; 1GiB by default where OUTPUT has a *",
    )
    mode = parser.add_argument_group(
        "where OUTPUT is there"
    ).add_mutually_exclusive_group()
    mode.add_argument("--resume", action="store_true", help="go on where it stopped")
    mode.add_argument("--overwrite", action="store_true", help="replace it at the end")
    mode.add_argument("--append", action="store_true", help="add to it")


def _options(args: argparse.Namespace) -> engine.Options:
    mode = "overwrite" if args.overwrite else "append" if args.append else "new"
    return engine.Options(
        tokenizer=args.tokenizer,
        separator=args.separator,
        heldout_fraction=args.heldout,
        output=args.output,
        processes=args.processes,
        dtype=args.dtype,
        max_shard_bytes=args.max_shard_bytes,
        mode=mode,
        resume=args.resume,
    )


def _source(args: argparse.Namespace) -> Source:
    name = next(name for name in _SOURCES if getattr(args, name) is not None)
    _, make, own = _SOURCES[name]
    given = {
        option: value
        for option in _SOURCE_OPTIONS
        if (value := getattr(args, option)) is not None
    }
    for option in given:
        if option not in own:
            takes = ", ".join(f"--{o}" for o in own) or "none"
            raise ConfigError(
                f"--{option} does not go with --{name}; options of that: {takes}"
            )
    return make(getattr(args, name), **given)


def _text(inputs: list[str], **options: Any) -> Source:
    from roxxel.building.text import TextSource

    return TextSource(inputs, **options)


def _jsonl(inputs: list[str], **options: Any) -> Source:
    from roxxel.building.text import JsonSource

    return JsonSource(inputs, **options)


def _parquet(inputs: list[str], **options: Any) -> Source:
    from roxxel.building.parquet import ParquetSource

    return ParquetSource(inputs, **options)


def _hf(inputs: list[str], **options: Any) -> Source:
    from roxxel.building.huggingface import HuggingFaceSource

    return HuggingFaceSource(inputs[0] if len(inputs) == 1 else inputs, **options)


def _nanogpt(inputs: list[str], **options: Any) -> Source:
    from roxxel.building.nanogpt import BinSource

    return BinSource(inputs, **options)


def _megatron(inputs: list[str]) -> Source:
    from roxxel.building.megatron import MegatronSource

    return MegatronSource(inputs)


def _arrays(inputs: list[str]) -> Source:
    from roxxel.building.arrays import ArraySource

    return ArraySource(inputs)


# option -> type, metavar, what it is
_SOURCE_OPTIONS: dict[str, tuple[Callable, str, str]] = {
    "unit": (str, "file|line", "what a document is; file by default"),
    "encoding": (str, "NAME", "of the files; utf-8 by default"),
    "errors": (str, "KIND", "strict, replace or ignore what does not decode"),
    "field": (str, "NAME", "that holds the text; text by default"),
    "column": (str, "NAME", "of text or token ids; text by default"),
    "data_split": (str, "NAME", "which member of a dict of data sets"),
    "end_of_text": (int, "ID", "that ends documents, in which it stays"),
    "stored_dtype": (str, "DTYPE", "of files without a header; uint16 by default"),
}

# source -> what it is, what makes it, its options
_SOURCES: dict[str, tuple[str, Callable[..., Source], tuple[str, ...]]] = {
    "text": ("text files, .gz, .bz2, .xz too", _text, ("unit", "encoding", "errors")),
    "jsonl": ("an object a line, compressed too", _jsonl, ("field", "errors")),
    "parquet": ("Parquet files or folders", _parquet, ("column",)),
    "hf": ("Hugging Face data set, saved", _hf, ("column", "data_split")),
    "nanogpt": (
        "nanoGPT and llm.c .bin files",
        _nanogpt,
        ("end_of_text", "stored_dtype"),
    ),
    "megatron": ("prefixes of .idx and .bin pairs", _megatron, ()),
    "arrays": (".npy and .npz files of token ids", _arrays, ()),
}


def _separator(text: str) -> Any:
    if text == "none":
        return ""
    if re.fullmatch(r"\d+", text):
        return int(text)
    if "\\" not in text:
        return text
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as err:
        raise argparse.ArgumentTypeError(f"{text!r}: {err.reason}") from err


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([A-Za-z]*)", text)
    units = {name.lower(): size for name, size in _UNITS.items()}
    if not match or match[2].lower() not in units:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size, expected such as 500MB, 1GiB or 1000000"
        )
    return int(float(match[1]) * units[match[2].lower()])


def _report(
    output: str,
    data: Roxxel,
    options: engine.Options,
    counts: splits.Counts,
    secs: float,
) -> None:
    """A line for each side that was written, and a last one for all of it."""
    if not counts:
        sys.stdout.write(f"{output}: complete already, nothing was written\n")
        return
    num_bytes = 0
    for side, count in counts.items():
        place = splits.location(output, side)
        with Roxxel(place) as written:
            size = sum(os.path.getsize(path) for path in written.shards)
            facts = _facts(count, size, f", {written.dtype.name}")
        num_bytes += size
        if len(counts) > 1:
            sys.stdout.write(f"{place}: {facts}\n")
    total = {
        name: sum(count[name] for count in counts.values())
        for name in ("documents", "elements")
    }
    rate = format_rate(total["elements"] / secs if secs else 0)
    facts = _facts(total, num_bytes, f", {data.dtype.name}")
    sys.stdout.write(
        f"{output}: {facts}, {rate} elements/s, took {format_secs(secs)}\n"
    )


def _facts(count: dict[str, int], num_bytes: int, more: str) -> str:
    return (
        f"{count['documents']:,} documents, {count['elements']:,} elements,"
        f" {num_bytes:,} bytes{more}"
    )
