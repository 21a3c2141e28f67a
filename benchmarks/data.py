"""The data engine beside the limits of the machine and beside other loaders.

    python benchmarks/data.py [--only read,device,...] [--json FILE]
        [--peers-python PYTHON] [--published FOLDER ...]

Sections: read (host batches from the page cache), device (placed on one and four CPU
devices), checked (checksums while reading), open, mixture (seeking), write, disk,
build, cold (a disk whose pages were dropped). A ratio is the median over interleaved
rounds of (time of the bare limit) / (time of the contestant), the bare limit being the
first line of its section. `--peers-python` is a Python that has loaders to compare with
(grain, array_record, datasets, litdata, mosaicml-streaming, megatron-core: those that
are there run, in a process each, stopped while it is not their turn); `--published`
names folders with unpacked wheels of published versions. Peers read `--peer-gib`,
roxxel `--gib`.

Files go to `--dir` (a RAM disk where there is one) and `--disk` (a real disk, for the
cold reads); what is written is removed.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "databench")]

import opening  # noqa: E402
import reading  # noqa: E402
import storage  # noqa: E402

RAM_DISK = "/dev/shm"
SECTIONS = {
    "read": reading.host,
    "device": reading.device,
    "checked": reading.checked,
    "open": opening.single,
    "mixture": opening.mixture,
    "write": storage.write,
    "disk": storage.disk,
    "build": storage.build,
    "cold": storage.cold,
}
ON_DISK = ("open", "mixture", "cold")


def main() -> None:
    # Gigabytes in memory must not outlive a benchmark that is ended early.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args = _parse()
    rows = []
    for name in args.only:
        base = args.disk if name in ON_DISK else args.dir
        with tempfile.TemporaryDirectory(dir=base) as folder:
            found = SECTIONS[name](pathlib.Path(folder), args)
        for row in found:
            print(_line(row), flush=True)
        rows += found
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=_names, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gib", type=float, default=2.0, help="of int32 that is read")
    parser.add_argument("--peer-gib", type=float, default=0.5)
    parser.add_argument("--cold-gib", type=float, default=8.0)
    parser.add_argument("--mib", type=int, default=256, help="of int32 that is written")
    parser.add_argument("--peers-python", default=None)
    parser.add_argument("--published", nargs="*", default=[])
    parser.add_argument("--dir", default=RAM_DISK if os.path.isdir(RAM_DISK) else None)
    parser.add_argument("--disk", default=None)
    parser.add_argument("--json", default=None)
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"{name!r}: one of {', '.join(SECTIONS)}")
    return names


def _line(row: dict) -> str:
    start = f"{row['section']:26} {row['name']:46}"
    if "failed" in row:
        return f"{start} -- {row['failed']}"
    if "ratio" in row:
        return f"{start} {row['ms']:9.3f} ms  {row['ratio']:7.3f} of {row['limit']}"
    return f"{start} {row['value']:9.4g} {row['unit']}"


if __name__ == "__main__":
    main()
