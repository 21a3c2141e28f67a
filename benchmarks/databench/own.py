"""The bare limits and roxxel's own streams, as iterators that never end."""

import os
import pathlib
import shutil
import sys
from collections.abc import Iterator

import numpy as np
import peers

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from roxxel import Roxxel

EPOCHS = 10**6


def take(path: str, dtype: str, batch_size: int, width: int, cast=None) -> Iterator:
    """Fresh arrays of random rows of a file of tokens; row numbers made beforehand."""
    rows, ids = _rows(path, dtype, width)
    while True:
        for i in range(0, len(ids) - batch_size + 1, batch_size):
            batch = np.take(rows, ids[i : i + batch_size], axis=0, mode="clip")
            yield batch if cast is None else batch.astype(cast)


def memcpy(path: str, batch_size: int, width: int) -> Iterator:
    """Fresh copies of runs of memory, one behind the other."""
    source = np.arange((256 << 20) // 4, dtype=np.int32)
    size = batch_size * width
    while True:
        for i in range(0, source.size - size + 1, size):
            yield source[i : i + size].copy()


def stream(
    path: str, batch_size: int, seq_len: int, overlap: int = 0, **options
) -> Iterator:
    """Host batches, as a user gets them by default."""
    data = touched(Roxxel(path, **options))
    yield from data.stream(seq_len, batch_size, overlap=overlap, epochs=EPOCHS)


def passes(path: str, verify: str | None = None) -> Iterator:
    """A whole pass over the data at every turn, by batches of (32, 1025)."""
    data = Roxxel(path, verify="lazy" if verify else None)
    while True:
        if verify == "first":
            data.close()  # what was checked is forgotten
        for _ in data.stream(1024, 32, overlap=1):
            pass
        yield


def items(path: str, batch_size: int) -> Iterator:
    yield from touched(Roxxel(path)).stream(batch_size=batch_size, epochs=EPOCHS)


def take_placed(path: str, dtype: str, batch_size: int, width: int) -> Iterator:
    """The bare gather and one `device_put` onto all devices."""
    import jax

    sharding = _sharding()
    for batch in take(path, dtype, batch_size, width):
        yield jax.block_until_ready(jax.device_put(batch, sharding))


def stream_placed(
    path: str, batch_size: int, seq_len: int, overlap: int = 0, by_steps: bool = False
) -> Iterator:
    """Batches on all devices by iterating, or by `steps()` as the trainer does."""
    import jax

    data = touched(Roxxel(path))
    placed = data.stream(seq_len, batch_size, overlap=overlap, epochs=EPOCHS).place()
    for batch in placed.steps(0, 10**9) if by_steps else placed:
        yield jax.block_until_ready(batch)


def write(folder: str, mib: int, way: str) -> Iterator:
    """Stores documents of about 1,000 tokens anew at every turn."""
    documents = peers.made_documents(mib)
    flat = np.concatenate(documents)
    text = [document.tobytes() for document in documents] if way == "bytes" else []
    where = pathlib.Path(folder)

    def tofile() -> None:
        with open(where / "bare.bin", "wb") as file:
            flat.tofile(file)
            os.fsync(file.fileno())

    one, many = Roxxel(where / "a.rox"), Roxxel(where / "a_*.rox")
    ways = {
        "tofile": tofile,
        "concatenate + tofile": lambda: np.concatenate(documents).tofile(where / "b"),
        "arrays": lambda: one.write(documents),
        "separator": lambda: one.write(documents, separator=0),
        "shards": lambda: many.write(documents, max_shard_bytes=64 << 20),
        "bytes": lambda: one.write(text),
    }
    while True:
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        ways[way]()
        yield


def touched(data: Roxxel) -> Roxxel:
    """`data` with page tables filled, as they are behind the first epoch."""
    for start in range(0, data.num_elements, 1 << 22):
        data.elements(start, min(start + (1 << 22), data.num_elements))
    return data


def _sharding():
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", None))


def _rows(path: str, dtype: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    count = Roxxel(path).num_elements
    flat = np.asarray(np.memmap(path, dtype, "r", shape=(count,)))
    int(flat[::512].sum())  # page tables filled, as those of the streams
    rows = flat[: flat.size // width * width].reshape(-1, width)
    return rows, np.random.default_rng(1).permutation(len(rows))
