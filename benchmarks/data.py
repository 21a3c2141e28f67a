"""Writing beside `tofile`, checking beside reading, items beside a bare gather.

    python benchmarks/data.py [--mib 256] [--rounds 7] [--dir DIR]

All ratios are medians over rounds in which the things compared take turns. DIR defaults
to a RAM disk where there is one, else to a temporary folder; what is written there is
removed. Checksums are always on. `zlib_ng` is used where it is installed, and named.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from roxxel import Roxxel  # noqa: E402
from roxxel.data import checksums  # noqa: E402

RAM_DISK = "/dev/shm"
ITEM_SHAPE = (32, 32, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", default=RAM_DISK if os.path.isdir(RAM_DISK) else None)
    args = parser.parse_args()
    print(f"checksums by {checksums.crc32.__module__}")
    for measure in (measure_writing, measure_checking, measure_items):
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            measure(pathlib.Path(folder), args.mib << 20, args.rounds)


def measure_writing(folder: pathlib.Path, size: int, rounds: int) -> None:
    """Documents of about 1,000 int32; the bare way is one array, there already."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(900, 1100, size // 4000)
    documents = [rng.integers(0, 50_000, n).astype(np.int32) for n in lengths]
    text = [document.tobytes() for document in documents]
    flat = np.concatenate(documents)

    def bare() -> None:
        with open(folder / "bare.bin", "wb") as file:
            flat.tofile(file)
            os.fsync(file.fileno())

    def joined() -> None:
        np.concatenate(documents).tofile(folder / "bare.bin")

    ways = {
        "tofile": bare,
        "concatenate + tofile": joined,
        "write, arrays": lambda: Roxxel(folder / "a.rox").write(documents),
        "write, separator": lambda: Roxxel(folder / "a.rox").write(
            documents, separator=0
        ),
        "write, shards of 64 MiB": lambda: Roxxel(folder / "a_*.rox").write(
            documents, max_shard_bytes=64 << 20
        ),
        "write, bytes": lambda: Roxxel(folder / "a.rox").write(text),
    }
    report("writing", turns(ways, rounds, lambda: clear(folder)), flat.nbytes)
    Roxxel(folder / "a.rox").write(documents)
    ratio = (folder / "a.rox").stat().st_size / flat.nbytes
    print(f"  bytes on disk / payload: {ratio:.4f}\n")


def measure_checking(folder: pathlib.Path, size: int, rounds: int) -> None:
    """All of the data read in batches: unchecked, checked, and checked before."""
    values = np.random.default_rng(0).integers(0, 50_000, size // 4, dtype=np.int32)
    plain = Roxxel(folder / "a.rox").write([values])
    checked = Roxxel(folder / "a.rox", verify="lazy")

    def read(data: Roxxel) -> None:
        for _ in data.stream(1024, batch_size=32, overlap=1):
            pass

    def first() -> None:
        checked.close()
        read(checked)

    (shard,) = (checksums.rox_format.read_shard(path) for path in plain.shards)
    ways = {
        "stream": lambda: read(plain),
        "verify='lazy', first epoch": first,
        "verify='lazy', later": lambda: read(checked),
        "rox verify": lambda: list(checksums.faults(shard)),
    }
    report("checking", turns(ways, rounds, lambda: None), values.nbytes)
    print()


def measure_items(folder: pathlib.Path, size: int, rounds: int) -> None:
    """Images of uint8 [32, 32, 3] in batches of 256."""
    count = size // int(np.prod(ITEM_SHAPE))
    images = np.random.default_rng(0).integers(0, 256, (count, *ITEM_SHAPE), np.uint8)
    data = Roxxel(folder / "a.rox").write(images, item_shape=ITEM_SHAPE)
    mapped = np.memmap(folder / "a.rox", np.uint8, "r", 0, images.shape)
    order = np.random.default_rng(1).permutation(count)

    def bare() -> None:
        for i in range(0, count - 255, 256):
            np.take(mapped, order[i : i + 256], axis=0, mode="clip")

    def stream() -> None:
        for _ in data.stream(batch_size=256):
            pass

    ways = {
        "np.take": bare,
        "stream": stream,
        "__getitems__": lambda: [
            data.__getitems__(order[i : i + 256]) for i in range(0, count - 255, 256)
        ],
    }
    report("items", turns(ways, rounds, lambda: None), images.nbytes)


def turns(
    ways: dict[str, Callable], rounds: int, after: Callable
) -> dict[str, list[float]]:
    """Seconds of each way, one of each a round; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if i:
                seconds[name].append(time.perf_counter() - start)
            after()
    return seconds


def report(title: str, seconds: dict[str, list[float]], size: int) -> None:
    first = next(iter(seconds.values()))
    print(f"{title}: {size >> 20} MiB, ratio to the first line")
    for name, taken in seconds.items():
        speed = size / statistics.median(taken) / 1e6
        ratio = statistics.median(a / b for a, b in zip(first, taken, strict=True))
        print(f"  {name:28} {speed:8.0f} MB/s  {ratio:6.3f}")


def clear(folder: pathlib.Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


if __name__ == "__main__":
    main()
