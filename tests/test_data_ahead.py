"""What the kernel is told: rows fetched ahead of their use, pages of past rows dropped.

Files are really evicted from the page cache and pages really counted by mincore, on
file systems where they can be; /dev/shm is none.
"""

import ctypes
import mmap
import os
import resource

import numpy as np
import pytest

from roxxel import Roxxel
from roxxel.data import drop_behind, rows
from roxxel.data.region import Region

ROW = 4096  # elements: four pages
VALUES = np.arange(4 << 20, dtype=np.int32)  # 16 MiB


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a_*.rox"
    Roxxel(path).write([VALUES], max_shard_bytes=5 << 20)
    for shard in Roxxel(path).shards:
        evict(shard)
        if resident(shard).any():
            pytest.skip("pages cannot be evicted on this file system")
    return path


def evict(path):
    """Drops the pages of a file that nobody has mapped."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def resident(path):
    """Whether each page of the file is in the page cache, bool [pages]."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    view = np.frombuffer(mapped, np.uint8)
    pages = -(-view.size // mmap.PAGESIZE)
    answer = np.zeros(pages, np.uint8)
    address = view.__array_interface__["data"][0]
    length, vector = ctypes.c_size_t(view.size), answer.ctypes.data_as(ctypes.c_void_p)
    assert libc.mincore(ctypes.c_void_p(address), length, vector) == 0
    return (answer & 1).astype(bool)


def major_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def faults_of_batch_1(path, batch_size=16):
    """Reads from the disk that batch 1 waits for one by one."""
    run = Roxxel(path).stream(ROW, batch_size, seed=5).steps(0, 8)
    next(run)
    before = major_faults()
    batch = next(run)
    faults = major_faults() - before
    assert (np.diff(batch) == 1).all()
    return faults


def test_rows_of_later_batches_are_asked_for_before_they_are_read(path, monkeypatch):
    ahead = faults_of_batch_1(path)
    for shard in Roxxel(path).shards:
        evict(shard)
    monkeypatch.setattr(Region, "will_need", lambda *_: None)
    one_by_one = faults_of_batch_1(path)
    assert one_by_one >= 16  # a row has four pages, fetched by one fault or more
    assert ahead <= one_by_one // 4


def test_only_rows_of_this_process_are_asked_for(path, monkeypatch):
    """Reading rows 0 to 3 of every batch of 16, as one process of four does."""
    asked = []
    monkeypatch.setattr(Region, "will_need", lambda _, *run: asked.append(run))
    window = Roxxel(path).locate(np.arange(1024), ROW)
    window.batch_size = 16
    for batch in range(3):
        window.read(16 * batch, 16 * batch + 4)
    at = {int(i): row for row, i in enumerate(window._at * 4)}
    wanted = [at[begin] for begin, _ in asked]
    assert len(wanted) == len(set(wanted)) >= 12  # each row once
    assert {row % 16 for row in wanted} == {0, 1, 2, 3}
    assert {end - begin for begin, end in asked} == {4 * ROW}


def test_warm_data_are_not_asked_for(path, monkeypatch):
    data = Roxxel(path)
    data.elements(0, VALUES.size)  # from the disk
    data.rows(np.arange(8), ROW)
    monkeypatch.setattr(rows, "_COLD_SECS", 60.0)  # no gather counts as cold
    for _ in range(2 * rows._COLD_READS):
        data.rows(np.arange(8), ROW)
    monkeypatch.setattr(Region, "will_need", lambda *_: pytest.fail("asked the kernel"))
    np.testing.assert_array_equal(data.rows([7], ROW)[0], VALUES[7 * ROW : 8 * ROW])


@pytest.mark.parametrize("overlap", [0, 1])
def test_pages_of_past_rows_are_dropped_when_asked(path, monkeypatch, overlap):
    monkeypatch.setattr(drop_behind, "_DROP_BYTES", 1 << 20)
    counts = {}
    for drops in (False, True):
        data = Roxxel(path, drop_behind=drops)
        stream = data.stream(ROW, 16, overlap=overlap, prefetch=0)
        seen = np.unique(np.concatenate([batch[:, 0] for batch in stream]))
        assert len(seen) == 16 * (63 if overlap else 64)
        data.close()
        counts[drops] = sum(int(resident(s).sum()) for s in data.shards)
        for shard in data.shards:
            evict(shard)
    assert counts[False] > 3500  # of 4096 pages
    assert counts[True] < 700  # the last rows, and what the kernel read around them


def test_dropped_pages_are_read_again(path, monkeypatch):
    monkeypatch.setattr(drop_behind, "_DROP_BYTES", 1)
    data = Roxxel(path, drop_behind=True, verify="lazy")
    for _ in range(3):
        got = data.rows(np.arange(1024), ROW)
        np.testing.assert_array_equal(got.reshape(-1), VALUES)
    np.testing.assert_array_equal(data.elements(5, 3 << 20), VALUES[5 : 3 << 20])
