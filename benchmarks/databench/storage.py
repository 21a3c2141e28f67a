"""Writing, bytes on disk, building from text, and reading from a cold disk."""

import concurrent.futures
import os
import pathlib
import statistics
import time

import numpy as np
import peers
import turns

from roxxel import Roxxel

COLD_ROWS = 8000  # of every contestant and round


def write(folder: pathlib.Path, args) -> list[dict]:
    """Documents of about 1,000 int32 tokens beside `tofile` of one array."""
    ways = ("tofile", "concatenate + tofile", "arrays", "separator", "shards", "bytes")
    own = [
        {
            "name": way if "tofile" in way else f"roxxel, {way}",
            "module": "own",
            "make": "write",
            "way": way,
            "mib": args.mib,
            "folder": str(folder / "own"),
        }
        for way in ways
    ]
    groups = [{"entries": [entry]} for entry in own]
    groups += _writing_peers(folder, args)
    with turns.started(groups) as workers:
        seconds = turns.measure(workers, max(3, args.rounds // 2), slice_secs=0.1)
        failed = {k: v for worker in workers for k, v in worker.failed.items()}
    rows = [
        {
            "section": f"writing {args.mib} MiB",
            "name": name,
            "ms": 1e3 * statistics.median(taken),
            "limit": "tofile",
            "ratio": turns.ratio(seconds["tofile"], taken),
        }
        for name, taken in seconds.items()
    ]
    return rows + [
        {"section": "writing", "name": k, "failed": failed[k]} for k in failed
    ]


def disk(folder: pathlib.Path, args) -> list[dict]:
    """Bytes of the files by bytes of the tokens, block size 4096."""
    documents = peers.made_documents(args.mib)
    payload = sum(document.nbytes for document in documents)
    rows = []
    for name, location, options in (
        ("one shard", "disk.rox", {}),
        ("64 MiB shards", "disk_*.rox", {"max_shard_bytes": 64 << 20}),
    ):
        data = Roxxel(folder / location).write(documents, block_size=4096, **options)
        size = sum(os.path.getsize(path) for path in data.shards)
        rows.append(
            {"section": "bytes on disk", "name": name, "value": size / payload}
            | {"unit": "of the payload"}
        )
    return rows


def build(folder: pathlib.Path, args) -> list[dict]:
    """Text to bytes, one process."""
    from roxxel import builders

    rng = np.random.default_rng(0)
    words = rng.integers(97, 123, (args.mib << 20) // 8, dtype=np.uint8)
    source = folder / "text"
    source.mkdir()
    for i in range(8):
        rng.shuffle(words)
        (source / f"{i}.txt").write_bytes(words.tobytes())
    size = 8 * words.size
    taken = []
    for i in range(3):
        start = time.perf_counter()
        data = builders.text_files(str(source / "*.txt"), cache_dir=folder / f"c{i}")
        data.open()
        taken.append(time.perf_counter() - start)
    rate = size / statistics.median(taken) / 1e6
    name = f"text_files, {size >> 20} MiB of text to bytes"
    return [{"section": "building", "name": name, "value": rate, "unit": "MB/s"}]


def cold(folder: pathlib.Path, args) -> list[dict]:
    """Random rows of a file that is not in the page cache, beside plain faults."""
    path = folder / "cold.rox"
    chunk = np.random.default_rng(0).integers(0, 50_000, 1 << 24, dtype=np.int32)
    Roxxel(path).write(chunk for _ in range(round(args.cold_gib * 16)))
    rows = []
    for row_bytes in (4096, 65536):
        found: dict[str, list[float]] = {}
        for turn in range(3):
            for name, rate in _cold_rates(str(path), row_bytes, turn):
                found.setdefault(name, []).append(rate)
        rows += [
            {
                "section": f"cold disk, rows of {row_bytes >> 10} KiB",
                "name": name,
                "value": statistics.median(rates),
                "unit": "MB/s",
            }
            for name, rates in found.items()
        ]
    return rows


def _writing_peers(folder: pathlib.Path, args) -> list[dict]:
    if not args.peers_python:
        return []
    entries = [
        {"name": peer, "module": "peers", "make": "write", "peer": peer}
        | {"mib": args.mib, "folder": str(folder / peer)}
        for peer in peers.WRITERS
    ]
    for version in args.published:
        name = f"published {pathlib.Path(version).name}"
        entries.append(
            {"name": name, "module": "peers", "make": "published_writes"}
            | {"version": version, "mib": args.mib, "folder": str(folder / name)}
        )
    return [{"entries": [e], "python": args.peers_python} for e in entries]


def _cold_rates(path: str, row_bytes: int, turn: int):
    """MB/s of each way, on rows that nobody has read before."""
    width = row_bytes // 4
    count = Roxxel(path).num_elements // width
    yield "sequential read", _sequential(path, turn)
    few = max(8, (256 << 10) // row_bytes)
    ids = np.random.default_rng(100 + turn).integers(0, count, few)
    _evict(path)
    rows = np.memmap(path, np.int32, "r", shape=(count, width))
    start = time.perf_counter()
    for i in ids.tolist():
        rows[i].copy()
    yield "plain page faults", few * row_bytes / (time.perf_counter() - start) / 1e6
    del rows
    yield "pread by 16 threads", _threads(path, row_bytes, turn)
    _evict(path)
    batches = COLD_ROWS // 32
    data = Roxxel(path)
    start = time.perf_counter()
    for _ in data.stream(width, 32, seed=turn).steps(0, batches):
        pass
    seconds = time.perf_counter() - start
    yield "roxxel, batches of 32", batches * 32 * row_bytes / seconds / 1e6
    data.close()


def _threads(path: str, row_bytes: int, turn: int) -> float:
    """What the storage gives for random rows in parallel, in MB/s."""
    _evict(path)
    count = COLD_ROWS // 4
    rows = os.path.getsize(path) // row_bytes
    at = np.random.default_rng(200 + turn).integers(0, rows, count) * row_bytes
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        start = time.perf_counter()
        read = sum(pool.map(lambda i: len(os.pread(fd, row_bytes, i)), at.tolist()))
        seconds = time.perf_counter() - start
    os.close(fd)
    return read / seconds / 1e6


def _sequential(path: str, turn: int) -> float:
    _evict(path)
    size = 256 << 20
    buffer = bytearray(8 << 20)
    with open(path, "rb", buffering=0) as file:
        file.seek(turn * size)
        start = time.perf_counter()
        done = 0
        while done < size:
            done += file.readinto(buffer)
        return done / (time.perf_counter() - start) / 1e6


def _evict(path: str) -> None:
    """Drops the file from the page cache; nothing of it may be mapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
