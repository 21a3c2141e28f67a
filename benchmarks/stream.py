"""Host batches beside a bare gather, and what opening a very large data set costs.

    python benchmarks/stream.py [--gib 2] [--rounds 9] [--dir DIR]

Part 1 writes `--gib` of int32 once as one shard and once as shards of 64 MiB, reads all
of it into the page cache, and times batches of each stream and `np.take` of the same
rows from a 2-D view of the same file into fresh arrays, turn by turn. A ratio is the
median over the rounds of (time of the bare gather) / (time of the stream).

Part 2 opens a sparse file of 10**8 rows in fresh processes: open, seek to 80 %, first
batch; time and growth of anonymous memory. Importing comes before.

DIR defaults to a temporary folder; what is written there is removed.
"""

import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from roxxel import Roxxel  # noqa: E402
from roxxel.data import order  # noqa: E402

SLICE_BYTES = 400 << 20  # read per variant and round: more than any cache holds
SHAPES = ((32, 1025), (256, 2049))

CHILD = """
import json, sys, time
import numpy as np
from roxxel import Roxxel, RoxxelStream
def anonymous():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
anonymous()
before, start = anonymous(), time.perf_counter()
data = Roxxel(sys.argv[1])
stream = data.stream(seq_len=4, batch_size=32, start_step=2_500_000)
batch = next(stream)
seconds = time.perf_counter() - start
print(json.dumps([1e3 * seconds, anonymous() - before]))
stream.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dir", default=None, help="where to write (temporary)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        measure_opening(pathlib.Path(folder), rounds=5)
        measure_batches(pathlib.Path(folder), args.gib, args.rounds)


def measure_batches(folder: pathlib.Path, gib: float, rounds: int) -> None:
    write_tokens(folder, gib)
    one, many = Roxxel(folder / "one.rox"), Roxxel(folder / "many_*.rox")
    for data in (one, many):
        touch(data)
    print(f"host batches of int32, {gib:g} GiB in the page cache, {rounds} rounds")
    print(f"{'batch':12} {'stream':32} {'Mtok/s':>8} {'ratio':>6}")
    for batch_size, width in SHAPES:
        variants = {"bare np.take": bare_gather(one, batch_size, width)}
        for name, data, overlap, prefetch in (
            ("one shard", one, 0, 0),
            ("one shard, prefetch 2", one, 0, 2),
            ("one shard, overlap 1", one, 1, 0),
            ("one shard, overlap 1, prefetch 2", one, 1, 2),
            ("64 MiB shards, overlap 1", many, 1, 0),
        ):
            variants[name] = batches_of(data, batch_size, width, overlap, prefetch)
        report(batch_size, width, variants, rounds)


def report(batch_size: int, width: int, variants: dict, rounds: int) -> None:
    count = max(1, SLICE_BYTES // (4 * batch_size * width))
    times = {name: [] for name in variants}
    for turn in range(rounds):
        for name, iterator in variants.items():
            if turn == 0:  # code paths and threads warm
                next(iterator)
            start = time.perf_counter()
            for _ in range(count):
                next(iterator)
            times[name].append((time.perf_counter() - start) / count)
    bare = times["bare np.take"]
    for name, seconds in times.items():
        ratio = statistics.median(b / s for b, s in zip(bare, seconds, strict=True))
        rate = batch_size * width / statistics.median(seconds) / 1e6
        print(
            f"({batch_size}, {width})".ljust(12), f"{name:32} {rate:8.0f} {ratio:6.2f}"
        )
    for iterator in variants.values():
        iterator.close()


def bare_gather(data: Roxxel, batch_size: int, width: int):
    """Fresh arrays of random rows, the row numbers computed beforehand."""
    path = data.shards[0]
    flat = np.asarray(np.memmap(path, np.int32, "r", shape=(data.num_elements,)))
    int(flat[::1024].sum())  # page tables filled, as those of the data sets are
    num_rows = flat.size // width
    rows = flat[: num_rows * width].reshape(num_rows, width)
    ids = order.Permutation(num_rows, 42, 0)(np.arange(num_rows))
    while True:
        for i in range(0, num_rows - batch_size, batch_size):
            yield np.take(rows, ids[i : i + batch_size], axis=0, mode="clip")


def batches_of(data: Roxxel, batch_size, width, overlap, prefetch):
    stream = data.stream(
        seq_len=width - overlap,
        batch_size=batch_size,
        overlap=overlap,
        prefetch=prefetch,
        epochs=1000,
    )
    with stream:
        yield from stream


def write_tokens(folder: pathlib.Path, gib: float) -> None:
    chunk = np.random.default_rng(0).integers(0, 50_000, 1 << 22, dtype=np.int32)
    count = max(1, round(gib * 64))  # of 16 MiB
    Roxxel(folder / "one.rox").write(chunk for _ in range(count))
    Roxxel(folder / "many_*.rox").write(
        (chunk for _ in range(count)), max_shard_bytes=64 << 20
    )


def touch(data: Roxxel) -> None:
    for start in range(0, data.num_elements, 1 << 22):
        data.elements(start, min(start + (1 << 22), data.num_elements))


def measure_opening(folder: pathlib.Path, rounds: int) -> None:
    path = folder / "sparse.rox"
    records, payload = 10**8, 16 * 10**8
    with open(path, "wb") as file:
        file.seek(payload + 8 * (records - 1))
        file.write(struct.pack("<q", payload))
        file.write(struct.pack("<qq8s8s", records, payload, b"int32", b"ROXXEL02"))
    answers = []
    for _ in range(rounds + 1):
        command = [sys.executable, "-c", CHILD, str(path)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
        answers.append(json.loads(done.stdout))
    answers = answers[1:]  # the first one reads the pages of the file
    milliseconds, mebibytes = (statistics.median(x) for x in zip(*answers, strict=True))
    print("open + seek to 80 % + first batch at 10**8 rows")
    print(f"  {milliseconds:.2f} ms, {mebibytes:.2f} MiB of anonymous memory\n")


if __name__ == "__main__":
    main()
