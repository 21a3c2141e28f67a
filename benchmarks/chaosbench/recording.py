"""Streams that write down which rows a run was given: `--fiddler=...recording.rows`.

Each process appends a line for each step to `rows.<process>.jsonl`: its process id, the
step, and a sum of each row of the global batch that lies on its devices.
"""

import json
import os
import pathlib
import zlib

import fiddle as fdl
import numpy as np

from roxxel.data.mixture_stream import MixtureStream
from roxxel.data.stream import RoxxelStream

FOLDER_VARIABLE = "ROXXEL_CHAOS_ROWS"


class _Recorded:
    def steps(self, start: int, stop: int):
        path = pathlib.Path(os.environ[FOLDER_VARIABLE])
        index = os.environ.get("ROXXEL_PROCESS_ID", "0")
        inner = super().steps(start, stop)  # type: ignore[misc]
        try:
            with open(path / f"rows.{index}.jsonl", "a", encoding="utf-8") as file:
                for step, batch in enumerate(inner, start):
                    sums = sums_of(batch)
                    line = {"pid": os.getpid(), "step": step, "rows": sums}
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    yield batch
        finally:
            inner.close()


class RecordedStream(_Recorded, RoxxelStream):
    """`RoxxelStream` that writes down what it gives."""


class RecordedMixture(_Recorded, MixtureStream):
    """`MixtureStream` that writes down what it gives."""


def rows(config: fdl.Config) -> None:
    """The run's stream becomes one that writes down its rows."""
    recorded = {RoxxelStream: RecordedStream, MixtureStream: RecordedMixture}
    fdl.update_callable(config.stream, recorded[fdl.get_callable(config.stream)])


def sums_of(batch) -> dict[str, int]:
    """CRC-32 of each row that lies in this process, by its index in the batch."""
    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    if not hasattr(tokens, "addressable_shards"):
        return _sums(0, np.asarray(tokens))
    found: dict[str, int] = {}
    for shard in tokens.addressable_shards:
        first = shard.index[0].start or 0
        found |= _sums(first, np.asarray(shard.data))
    return found


def _sums(first: int, rows: np.ndarray) -> dict[str, int]:
    return {
        str(first + i): zlib.crc32(np.ascontiguousarray(row))
        for i, row in enumerate(rows)
    }
