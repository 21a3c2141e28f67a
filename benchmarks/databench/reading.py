"""Batches from the page cache, on the host and on devices, beside the bare gather."""

import pathlib
import statistics

import numpy as np
import peers
import turns

from roxxel import Roxxel

SHAPES = ((32, 1025), (256, 2049))
ITEM_SHAPE = (32, 32, 3)
_CHUNK = 1 << 22


def host(folder: pathlib.Path, args) -> list[dict]:
    """int32, widened uint16, rows of 64 KB, items; peers at both shapes."""
    files = _token_files(folder, args.gib, args.peer_gib)
    rows = []
    for batch_size, width in SHAPES:
        entries = _host_entries(files, batch_size, width)
        groups = [{"entries": entries}, *_peer_groups(files, batch_size, width, args)]
        rows += _compare(f"host ({batch_size}, {width})", groups, args.rounds)
    rows += _compare("rows of 64 KB", [{"entries": _wide_entries(files)}], args.rounds)
    rows += _compare("items", [{"entries": _item_entries(folder)}], args.rounds)
    return rows


def device(folder: pathlib.Path, args) -> list[dict]:
    """One CPU device and four forced ones."""
    files = _token_files(folder, args.gib, args.peer_gib)
    rows = []
    for batch_size, width in SHAPES:
        for devices in (1, 4):
            entries = _device_entries(files, batch_size, width)
            flags = f"--xla_force_host_platform_device_count={devices}"
            groups = [{"entries": entries, "env": {"XLA_FLAGS": flags}}]
            if devices == 1:
                groups += _peer_groups(files, batch_size, width, args, "device")
            title = f"{devices} device{'s' * (devices > 1)} ({batch_size}, {width})"
            rows += _compare(title, groups, args.rounds)
    return rows


def checked(folder: pathlib.Path, args) -> list[dict]:
    """All of the data once more, with every block compared with its checksum."""
    files = _token_files(folder, args.gib / 4, 0)
    common = {"module": "own", "make": "passes", "path": files["one"]}
    entries = [
        {"name": "unchecked", **common},
        {"name": "verify='lazy', first epoch", "verify": "first", **common},
        {"name": "verify='lazy', later epochs", "verify": "later", **common},
    ]
    return _compare("checksums while reading", [{"entries": entries}], args.rounds)


def _host_entries(files: dict, batch_size: int, width: int) -> list[dict]:
    stream = {"module": "own", "make": "stream", "batch_size": batch_size}
    bare = {"module": "own", "make": "take", "batch_size": batch_size, "width": width}
    return [
        {"name": "np.take", "path": files["one"], "dtype": "int32", **bare},
        {"name": "roxxel", "path": files["one"], "seq_len": width, **stream},
        {
            "name": "roxxel, overlap 1",
            "path": files["one"],
            "seq_len": width - 1,
            "overlap": 1,
            **stream,
        },
        {
            "name": "roxxel, 64 MiB shards, overlap 1",
            "path": files["many"],
            "seq_len": width - 1,
            "overlap": 1,
            **stream,
        },
        {
            "name": "np.take + astype, uint16",
            "path": files["uint16"],
            "dtype": "uint16",
            "cast": "int32",
            **bare,
        },
        {
            "name": "roxxel, uint16 as int32",
            "path": files["uint16"],
            "seq_len": width,
            **stream,
        },
    ]


def _wide_entries(files: dict) -> list[dict]:
    width = 65_536 // 4
    common = {"module": "own", "path": files["one"], "batch_size": 32}
    return [
        {"name": "memcpy", "make": "memcpy", "width": width, **common},
        {"name": "np.take", "make": "take", "dtype": "int32", "width": width, **common},
        {"name": "roxxel", "make": "stream", "seq_len": width, **common},
    ]


def _item_entries(folder: pathlib.Path) -> list[dict]:
    path = folder / "items.rox"
    size = int(np.prod(ITEM_SHAPE))
    if not path.exists():
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, ((256 << 20) // size, *ITEM_SHAPE), np.uint8)
        Roxxel(path).write(images, item_shape=ITEM_SHAPE)
    common = {"module": "own", "path": str(path), "batch_size": 256}
    return [
        {"name": "np.take", "make": "take", "dtype": "uint8", "width": size, **common},
        {"name": "roxxel, items of uint8 [32, 32, 3]", "make": "items", **common},
    ]


def _device_entries(files: dict, batch_size: int, width: int) -> list[dict]:
    common = {"module": "own", "path": files["one"], "batch_size": batch_size}
    placed = {"make": "stream_placed", "seq_len": width, **common}
    return [
        {
            "name": "np.take + device_put",
            "make": "take_placed",
            "dtype": "int32",
            "width": width,
            **common,
        },
        {"name": "roxxel, place()", **placed},
        {"name": "roxxel, place().steps()", "by_steps": True, **placed},
        {
            "name": "roxxel, place(), overlap 1",
            **placed | {"seq_len": width - 1},
            "overlap": 1,
        },
    ]


def _peer_groups(
    files: dict, batch_size: int, width: int, args, place: str = "host"
) -> list[dict]:
    """Each peer in a process of its own, run by the Python that has it."""
    if not args.peers_python:
        return []
    common = {"module": "peers", "batch_size": batch_size, "width": width}
    groups = [
        [{"name": peer, "make": "read", "peer": peer, "place": place, **common}]
        for peer in peers.READERS
    ]
    for (entry,) in groups:
        entry |= {"folder": files["peers"], "tokens": files["tokens"]}
    for version in args.published:
        name = f"published {pathlib.Path(version).name}"
        entry = {"name": name, "make": "read", "peer": "published", "place": place}
        groups.append([entry | common | {"version": version, "folder": files["small"]}])
    return [{"entries": group, "python": args.peers_python} for group in groups]


def _compare(title: str, groups: list[dict], rounds: int) -> list[dict]:
    """Ratios to the first contestant, the bare limit; uint16 to its own limit."""
    with turns.started(groups) as workers:
        seconds = turns.measure(workers, rounds)
        failed = {k: v for worker in workers for k, v in worker.failed.items()}
    names = list(seconds)
    rows = []
    for name, taken in seconds.items():
        limit = names[0]
        if "uint16" in name:
            limit = next(n for n in names if n.startswith("np.take + astype"))
        rows.append(
            {
                "section": title,
                "name": name,
                "ms": 1e3 * statistics.median(taken),
                "limit": limit,
                "ratio": turns.ratio(seconds[limit], taken),
            }
        )
    return rows + [
        {"section": title, "name": name, "failed": why} for name, why in failed.items()
    ]


def _token_files(folder: pathlib.Path, gib: float, peer_gib: float) -> dict[str, str]:
    """Written once a run: as one shard, as shards of 64 MiB, as uint16, for peers."""
    files = {
        "one": folder / "one.rox",
        "many": folder / "many_*.rox",
        "uint16": folder / "uint16.rox",
        "small": folder / "small.rox",
        "tokens": folder / "tokens.bin",
        "peers": folder / "peers",
    }
    if not files["one"].exists():
        chunk = np.random.default_rng(0).integers(0, 50_000, _CHUNK, dtype=np.int32)
        count = max(1, round(gib * 64))  # of 16 MiB
        Roxxel(files["one"]).write(chunk for _ in range(count))
        Roxxel(files["many"]).write(
            (chunk for _ in range(count)), max_shard_bytes=64 << 20
        )
        short = chunk.astype(np.uint16)
        Roxxel(files["uint16"]).write(short for _ in range(count))
        few = max(1, round(peer_gib * 64))
        Roxxel(files["small"]).write(chunk for _ in range(few))
        with open(files["tokens"], "wb") as file:
            for _ in range(few):
                chunk.tofile(file)
        files["peers"].mkdir()
    return {name: str(path) for name, path in files.items()}
