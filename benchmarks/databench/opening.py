"""What opening and seeking costs in a fresh process, after its imports."""

import json
import pathlib
import statistics
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
ROUNDS = 7

_HEAD = """
import json, sys, time
import numpy as np
import roxxel
from roxxel import Roxxel, RoxxelStream
import roxxel.data.stream
def anonymous():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous"):
            return int(line.split()[1]) / 1024
anonymous()
"""

_OPEN = """
path, rows = sys.argv[1], int(sys.argv[2])
before, start = anonymous(), time.perf_counter()
data = Roxxel(path)
stream = data.stream(seq_len=4, batch_size=32, start_step=int(rows / 32 * 0.8))
batch = next(stream)
seconds = time.perf_counter() - start
print(json.dumps([1e3 * seconds, anonymous() - before]))
"""

_MIXTURE = """
from roxxel import MixtureStream
paths, row = sys.argv[1:-1], int(sys.argv[-1])
before, start = anonymous(), time.perf_counter()
mix = {f"d{i}": Roxxel(path) for i, path in enumerate(paths)}
for data in mix.values():
    data.open()
opened = time.perf_counter()
weights = {name: 1 + i for i, name in enumerate(mix)}
stream = MixtureStream(mix, weights=weights, seq_len=4, batch_size=32)
batch = stream.batch(row // 32)
done = time.perf_counter()
again = MixtureStream(mix, weights=weights, seq_len=4, batch_size=32)
batch = again.batch(row // 32 + 12345)
used = time.perf_counter()
print(json.dumps([1e3 * (done - start), anonymous() - before, 1e3 * (done - opened),
    1e3 * (used - done)]))
"""


def single(folder: pathlib.Path, args) -> list[dict]:
    """Open, seek to 80 % and first batch of sparse files."""
    rows = []
    for exponent in (6, 8, 10):
        path = sparse_file(folder / f"sparse{exponent}.rox", 10**exponent)
        milliseconds, mebibytes = _medians(_HEAD + _OPEN, [path, str(10**exponent)])
        name = f"1e{exponent} rows: open, seek to 80 %, first batch"
        rows += _rows("opening", name, milliseconds, mebibytes)
    return rows


def mixture(folder: pathlib.Path, args) -> list[dict]:
    """Eight data sets of 1e8 rows each, at row 1e12 of the mixture."""
    paths = [sparse_file(folder / f"mix{i}.rox", 10**8) for i in range(8)]
    command = [*paths, str(10**12)]
    milliseconds, mebibytes, first, seek = _medians(_HEAD + _MIXTURE, command)
    name = "8 data sets: open, mix, batch at row 1e12"
    rows = _rows("mixture", name, milliseconds, mebibytes)
    for name, value in (
        ("8 open data sets, never read: mix, batch at row 1e12", first),
        ("8 data sets in use: mix, batch at row 1e12", seek),
    ):
        rows.append({"section": "mixture", "name": name, "value": value, "unit": "ms"})
    return rows


def sparse_file(path: pathlib.Path, rows: int) -> str:
    """A shard of `rows` blocks of four int32, all zero, that takes no room."""
    payload = 16 * rows
    with open(path, "wb") as file:
        file.seek(payload + 8 * (rows - 1))
        file.write(struct.pack("<q", payload))
        file.write(struct.pack("<qq8s8s", rows, payload, b"int32", b"ROXXEL02"))
    return str(path)


def _medians(code: str, arguments: list[str]) -> list[float]:
    answers = []
    for _ in range(ROUNDS + 1):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
        answers.append(json.loads(done.stdout))
    answers = answers[1:]  # the first one reads the pages of the file
    return [statistics.median(x) for x in zip(*answers, strict=True)]


def _rows(section: str, name: str, milliseconds: float, mebibytes: float) -> list:
    return [
        {"section": section, "name": name, "value": milliseconds, "unit": "ms"},
        {
            "section": section,
            "name": f"{name}: anonymous memory",
            "value": mebibytes,
            "unit": "MiB",
        },
    ]
