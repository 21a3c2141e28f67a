"""`ledger.jsonl`: what a run leaves out of its data, for all starts of it.

A line for each decision, appended and flushed to the disk before the run goes on:

    {"step": 57, "batch": 56, "left_out": [3], "policy": "rewind", "reason": ...,
     "rows": [{"position": 3, "shard": ..., "offset": ..., "document": ...}, ...]}

`left_out` are places in the batch, or "all": then that step makes no update. All other
rows keep their places: nothing moves up. A later line of the same batch replaces an
earlier one; a last line that a kill cut off is passed over.
"""

import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from roxxel.train.step import LeftOut

FILE_NAME = "ledger.jsonl"


class Ledger:
    """The ledger of a work directory; only the lead process reads and writes it."""

    def __init__(self, workdir: pathlib.Path):
        self._path = workdir / FILE_NAME
        self._entries = _from_lead(_read(self._path))

    def left_out(self, batch: int) -> LeftOut:
        """What is left out of a batch; the batch of the first step is 0."""
        found: LeftOut = None
        for entry in self._entries:
            if entry["batch"] == batch:
                out = entry["left_out"]
                found = out if out == "all" else tuple(out)
        return found

    def count(self, policy: str, first_batch: int) -> int:
        """Decisions of a policy about this batch and later ones."""
        return sum(
            entry["policy"] == policy and entry["batch"] >= first_batch
            for entry in self._entries
        )

    def append(self, entry: dict[str, Any]) -> None:
        """Notes a decision, which all processes have made alike."""
        self._entries.append(entry)
        if jax.process_index():
            return
        text = json.dumps(entry) + "\n"
        before = self._path.read_bytes() if self._path.exists() else b""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(text if before.endswith(b"\n") or not before else "\n" + text)
            file.flush()
            os.fsync(file.fileno())

    def __len__(self) -> int:
        return len(self._entries)


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
    if jax.process_index() or not path.exists():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            entries.append(entry | {"batch": int(entry["batch"])})
        except (ValueError, KeyError, TypeError):
            continue
    return entries


def _from_lead(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lead's entries on every process."""
    if jax.process_count() == 1:
        return entries
    from jax.experimental import multihost_utils

    text = np.frombuffer(json.dumps(entries).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.asarray(len(text), np.int32)))
    sent = np.zeros(size, np.uint8)
    if not jax.process_index():
        sent[:] = text
    received = np.asarray(multihost_utils.broadcast_one_to_all(sent))
    return json.loads(bytes(received))
