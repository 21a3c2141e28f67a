"""Other loaders, each as its documentation shows it: shuffled host batches of rows.

`batches_NAME(folder, tokens, batch_size, width)` makes the loader's files from the
int32 file `tokens` when they are not there and yields int32 arrays [batch_size, width]
for ever; `write_NAME(folder, documents)` stores documents. What is imported need not be
installed; a peer that cannot run is named with its error.
"""

import itertools
import os
import sys
from collections.abc import Iterator

import numpy as np

READERS = (
    "memmap",
    "grain_memmap",
    "grain_array_record",
    "datasets",
    "litdata",
    "mosaicml",
    "megatron",
)
WRITERS = ("array_record", "datasets", "litdata", "mosaicml", "megatron")


def read(peer: str, place: str = "host", **options) -> Iterator:
    """The batches of `peer`, on the host or put on the first jax device."""
    batches = globals()[f"batches_{peer}"](**options)
    for batch in batches:
        batch = np.asarray(batch)
        if batch.dtype != np.int32:
            batch = batch.astype(np.int32)
        assert batch.shape == (options["batch_size"], options["width"])
        if place == "device":
            import jax

            batch = jax.block_until_ready(jax.device_put(batch))
        yield batch


def write(peer: str, folder: str, mib: int) -> Iterator:
    """Stores `mib` of documents anew at every turn."""
    import shutil

    store = globals()[f"write_{peer}"]
    documents = made_documents(mib)
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        store(folder, documents)
        yield _bytes_of(folder)


def made_documents(mib: int) -> list[np.ndarray]:
    """Documents of 900 to 1100 int32 tokens, `mib` in all."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(900, 1100, (mib << 20) // 4000)
    return [rng.integers(0, 50_000, n, dtype=np.int32) for n in lengths]


def batches_memmap(folder, tokens, batch_size, width) -> Iterator:
    """Random places, every row copied by itself, stacked.

    nanoGPT also opens the map and casts every row anew for each batch: this is faster.
    """
    data = np.memmap(tokens, np.int32, "r")
    rng = np.random.default_rng(0)
    while True:
        at = rng.integers(0, len(data) - width, batch_size)
        yield np.stack([data[i : i + width] for i in at.tolist()])


def batches_grain_memmap(folder, tokens, batch_size, width) -> Iterator:
    import grain

    rows = np.asarray(_row_view(tokens, width))
    data = grain.MapDataset.source(_Rows(rows)).shuffle(seed=0).repeat()
    yield from iter(data.batch(batch_size).to_iter_dataset(_grain_options(grain)))


def batches_grain_array_record(folder, tokens, batch_size, width) -> Iterator:
    import grain

    def make(path):
        from array_record.python.array_record_module import ArrayRecordWriter

        rows = _row_view(tokens, width)
        for first in range(0, len(rows), 8192):
            name = f"{path}/part-{first:08d}.array_record"
            writer = ArrayRecordWriter(name, "group_size:1,uncompressed")
            for row in rows[first : first + 8192]:
                writer.write(row.tobytes())
            writer.close()

    path = _made(folder, f"array_record_{width}", make)
    files = sorted(os.path.join(path, name) for name in os.listdir(path))
    source = grain.sources.ArrayRecordDataSource(files)
    data = grain.MapDataset.source(source).shuffle(seed=0).repeat()
    data = data.map(lambda raw: np.frombuffer(raw, np.int32))
    yield from iter(data.batch(batch_size).to_iter_dataset(_grain_options(grain)))


def batches_datasets(folder, tokens, batch_size, width) -> Iterator:
    import datasets

    def make(path):
        def generate():
            for row in _row_view(tokens, width):
                yield {"tokens": row}

        kind = datasets.Sequence(datasets.Value("int32"), length=width)
        made = datasets.Dataset.from_generator(
            generate, features=datasets.Features({"tokens": kind}), cache_dir=path
        )
        made.save_to_disk(f"{path}/saved")

    path = _made(folder, f"datasets_{width}", make)
    data = datasets.load_from_disk(f"{path}/saved").with_format("numpy")
    data = data.shuffle(seed=0, keep_in_memory=True)
    while True:
        for batch in data.iter(batch_size=batch_size, drop_last_batch=True):
            yield batch["tokens"]


def batches_litdata(folder, tokens, batch_size, width) -> Iterator:
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    def make(path):
        flat = np.memmap(tokens, np.int32, "r")
        write_litdata(path, [flat[i : i + 1000] for i in range(0, len(flat), 1000)])

    path = _made(folder, "litdata", make)
    data = StreamingDataset(
        path, item_loader=TokensLoader(block_size=width), shuffle=True, drop_last=True
    )
    loader = StreamingDataLoader(
        data, batch_size=batch_size, num_workers=0, drop_last=True
    )
    while True:
        for batch in loader:
            yield batch.numpy()


def batches_mosaicml(folder, tokens, batch_size, width) -> Iterator:
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    def make(path):
        columns = {"tokens": f"ndarray:int32:{width}"}
        with MDSWriter(out=path, columns=columns, size_limit=1 << 26) as writer:
            for row in _row_view(tokens, width)[: (128 << 20) // (4 * width)]:
                writer.write({"tokens": np.array(row)})

    path = _made(folder, f"mosaicml_{width}", make)
    data = StreamingDataset(
        local=path, shuffle=True, batch_size=batch_size, num_canonical_nodes=1
    )
    loader = DataLoader(data, batch_size=batch_size, num_workers=0, drop_last=True)
    while True:
        for batch in loader:
            yield batch["tokens"].numpy()


def batches_megatron(folder, tokens, batch_size, width) -> Iterator:
    """Windows over documents in a shuffled order, as its GPT data set cuts them."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    def make(path):
        flat = np.memmap(tokens, np.int32, "r")
        write_megatron(path, [flat[i : i + 1000] for i in range(0, len(flat), 1000)])

    path = _made(folder, "megatron", make)
    data = IndexedDataset(f"{path}/data", mmap=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(data))
    ends = np.cumsum(data.sequence_lengths[order], dtype=np.int64)
    samples = rng.permutation(int(ends[-1] - 1) // (width - 1))
    for first in itertools.cycle(range(0, len(samples) - batch_size, batch_size)):
        picked = samples[first : first + batch_size].tolist()
        yield np.stack([_window(data, order, ends, i, width) for i in picked])


def batches_published(folder, version, batch_size, width) -> Iterator:
    """The published roxxel unpacked at `version`, on files written by it."""
    data = _published(version)(folder)
    data.open()
    for epoch in itertools.count():
        yield from data.stream(seq_len=width, batch_size=batch_size, seed=epoch)


def write_array_record(folder, documents) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(f"{folder}/a.array_record", "group_size:1,uncompressed")
    for document in documents:
        writer.write(document.tobytes())
    writer.close()


def write_datasets(folder, documents) -> None:
    import pyarrow as pa

    ends = np.cumsum([0, *(d.size for d in documents)])
    for i in range(0, len(documents), 1000):
        part = documents[i : i + 1000]
        offsets = pa.array((ends[i : i + len(part) + 1] - ends[i]).astype(np.int32))
        column = pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(part)))
        table = pa.table({"tokens": column})
        if not i:
            sink = pa.OSFile(f"{folder}/data.arrow", "wb")
            writer = pa.ipc.new_stream(sink, table.schema)
        writer.write_table(table)
    writer.close()
    sink.close()


def write_litdata(folder, documents) -> None:
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    loader = TokensLoader(block_size=1025)
    writer = BinaryWriter(folder, chunk_bytes="64MB", item_loader=loader)
    for i, document in enumerate(documents):
        writer[i] = torch.from_numpy(np.array(document))
    writer.done()
    writer.merge()


def write_mosaicml(folder, documents) -> None:
    from streaming import MDSWriter

    columns = {"tokens": "ndarray:int32"}
    with MDSWriter(out=f"{folder}/mds", columns=columns) as writer:
        for document in documents:
            writer.write({"tokens": document})


def write_megatron(folder, documents) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{folder}/data.bin", dtype=np.int32)
    for document in documents:
        builder.add_document(torch.from_numpy(np.array(document)), [document.size])
    builder.finalize(f"{folder}/data.idx")


def write_published(folder, documents, version) -> None:
    _published(version)(f"{folder}/a.rox").write(
        iter(documents), block_size=4096, separator=None
    )


def published_writes(folder: str, version: str, mib: int) -> Iterator:
    documents = made_documents(mib)
    while True:
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            os.unlink(os.path.join(folder, name))
        os.makedirs(folder, exist_ok=True)
        write_published(folder, documents, version)
        yield _bytes_of(folder)


class _Rows:
    def __init__(self, rows: np.ndarray):
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):
        return self._rows[index]


def _grain_options(grain):
    """The faster of its defaults and no threads on two cores: no threads."""
    return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def _row_view(tokens, width: int) -> np.ndarray:
    flat = np.memmap(tokens, np.int32, "r")
    return flat[: flat.size // width * width].reshape(-1, width)


def _made(folder: str, name: str, make) -> str:
    path = os.path.join(folder, name)
    if not os.path.isdir(path):
        os.makedirs(path)
        make(path)
    return path


def _window(data, order, ends, sample: int, width: int) -> np.ndarray:
    parts, at, need = [], sample * (width - 1), width
    k = int(np.searchsorted(ends, at, side="right"))
    offset = at - (int(ends[k - 1]) if k else 0)
    while need:
        length = int(ends[k]) - (int(ends[k - 1]) if k else 0)
        count = min(need, length - offset)
        parts.append(data.get(int(order[k]), offset=offset, length=count))
        need, k, offset = need - count, k + 1, 0
    return np.concatenate(parts)


def _published(version: str):
    sys.path.insert(0, version)
    from roxxel.core import Roxxel

    return Roxxel


def _bytes_of(folder: str) -> int:
    return sum(
        os.path.getsize(os.path.join(parent, name))
        for parent, _, names in os.walk(folder)
        for name in names
    )
