"""`.rox` files on the command line: `python -m roxxel.rox info|verify|head|build`.

A PATH is a file, a quoted pattern such as 'wiki_*.rox' or a folder, whose data sets are
shown apart. Exit codes: 0 fine,
1 faults found by verify or a build that could not go on, 2 nothing readable there or
wrong arguments.
"""

import argparse
import json
import os
import sys
from typing import Any, NoReturn

import numpy as np

from roxxel import rox_build
from roxxel.data import checksums, modes, paths, verify
from roxxel.dataset import Roxxel
from roxxel.errors import EXIT_CONFIG, EXIT_ERROR, EXIT_OK, ConfigError
from roxxel.errors import ShardFormatError as _FormatError

_PER_LINE = 16


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # a reader that has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except (ConfigError, _FormatError, OSError, ValueError, ImportError) as err:
        message = " ".join(str(err).split())
        sys.stderr.write(f"roxxel.rox: {message}\n")
        return EXIT_CONFIG


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: OUTPUT"):
            message = "OUTPUT comes first: build OUTPUT --jsonl PATH..."
        self.exit(EXIT_CONFIG, f"{self.prog}: {message} (--help shows all)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m roxxel.rox",
        description="Shows what is in .rox files, and builds them.",
    )
    commands = parser.add_subparsers(required=True, metavar="info|verify|head|build")
    for run, text in (
        (_info, "records, elements, dtype, sizes and extension"),
        (_verify, "checks every block, index and footer; exit 1 when one is wrong"),
        (_head, "the first elements"),
    ):
        command = commands.add_parser(run.__name__[1:], help=text, description=text)
        command.add_argument("path", nargs="+", metavar="PATH")
        command.set_defaults(run=run)
        if run is _head:
            command.add_argument(
                "-n", type=_count, default=256, metavar="N", help="elements (256)"
            )
            command.add_argument(
                "--start", type=_count, default=0, metavar="I", help="first one (0)"
            )
            command.add_argument(
                "--text", action="store_true", help="decode uint8 as UTF-8"
            )
    rox_build.add(commands)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _data_sets(args: argparse.Namespace) -> list[str]:
    """The paths given; one that names several data sets as these, apart."""
    return [place for path in args.path for place in paths.apart(path)]


def _info(args: argparse.Namespace) -> int:
    for path in _data_sets(args):
        with Roxxel(path) as data:
            _write_facts(path, data)
    return EXIT_OK


def _write_facts(path: str, data: Roxxel) -> None:
    shards = modes.read_shards(data.shards)
    extension = shards[0].extension
    facts: dict[str, Any] = {
        "shards": len(shards),
        "records": len(data),
        "elements": data.num_elements,
        "dtype": data.dtype.name,
        "bytes": sum(shard.file_bytes for shard in shards),
        "complete": data.is_complete,
        "fingerprint": data.fingerprint(),
    }
    facts |= {
        name: extension[name]
        for name in (
            *("block_bytes", "item_shape", "separator", "pad"),
            *("tokenizer", "build"),
        )
        if name in extension
    }
    if extension:
        facts["metadata"] = data.metadata
    _write(path)
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value)
        _write(f"  {name:12} {text}")
    for shard in shards[:20]:
        _write(f"  {shard.path}: {shard.records} records, {shard.elements} elements")
    if len(shards) > 20:
        _write(f"  ... and {len(shards) - 20} more shards")


def _verify(args: argparse.Namespace) -> int:
    faults = 0
    for path in _data_sets(args):
        faults += _verify_path(path)
    return EXIT_ERROR if faults else EXIT_OK


def _verify_path(path: str) -> int:
    """Reports on every shard at `path` and returns the number of faults."""
    files = paths.find(path)
    if not files:
        raise paths.MissingShardsError(f"no shards at {path!r}")
    shards, faults = [], []
    for file in files:
        shard = verify.check_shard(file, faults)
        if shard is not None:
            shards.append(shard)
    for shard in shards:
        if shard.records and shard.dtype != shards[0].dtype and shards[0].records:
            faults.append(
                f"{shard.path}: dtype {shard.dtype.name}, not {shards[0].dtype.name}"
                f" as in {shards[0].path}"
            )
    if not faults and len(files) > 1 and not modes.is_complete(shards):
        faults.append(f"{path}: the write of these shards did not finish")
    for fault in faults:
        _write(f"FAULT {fault}")
    without = sum(not checksums.are_in(shard) for shard in shards)
    note = f" ({without} without checksums)" if without else ""
    _write(f"{path}: {len(files)} shards, {len(faults)} faults{note}")
    return len(faults)


def _head(args: argparse.Namespace) -> int:
    places = _data_sets(args)
    for path in places:
        if len(places) > len(args.path):
            _write(path)
        with Roxxel(path) as data:
            if args.text and data.dtype != np.uint8:
                raise ConfigError(f"{path} holds {data.dtype.name}, --text needs uint8")
            start = min(args.start, data.num_elements)
            values = data.elements(start, min(start + args.n, data.num_elements))
        if args.text:
            _write(values.tobytes().decode("utf-8", "replace").replace("\0", "\n"))
            continue
        for i in range(0, values.size, _PER_LINE):
            _write(" ".join(str(v) for v in values[i : i + _PER_LINE].tolist()))
    return EXIT_OK


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
