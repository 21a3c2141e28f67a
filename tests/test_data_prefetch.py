"""Items in order: made ahead for a busy consumer, by the consumer when it is idle."""

import threading

import numpy as np
import pytest

from roxxel.data import prefetch
from roxxel.data.prefetch import Prefetcher


def recorded(count, makers):
    for i in range(count):
        makers.append(threading.current_thread().name)
        yield i


@pytest.mark.parametrize("worth_secs", [0.0, 60.0, 2e-5])
@pytest.mark.parametrize("depth", [1, 3])
def test_items_come_once_and_in_order(monkeypatch, worth_secs, depth):
    monkeypatch.setattr(prefetch, "_WORTH_SECS", worth_secs)
    run = Prefetcher(iter(range(3000)), depth)
    assert list(run) == list(range(3000))
    with pytest.raises(StopIteration):
        next(run)


def test_a_busy_consumer_finds_items_made_ahead(monkeypatch):
    monkeypatch.setattr(prefetch, "_WORTH_SECS", -1.0)  # a thread is always worth it
    makers, made = [], threading.Event()

    def source():
        for i in recorded(8, makers):
            if i == 3:
                made.set()
            yield i

    run = Prefetcher(source(), 4)
    assert made.wait(60)  # four of them without anybody asking
    assert [next(run) for _ in range(4)] == [0, 1, 2, 3]
    assert set(makers[:4]) == {"roxxel-prefetch"}
    assert list(run) == [4, 5, 6, 7]


def test_an_idle_consumer_makes_items_itself(monkeypatch):
    monkeypatch.setattr(prefetch, "_WORTH_SECS", 1e9)  # a thread is never worth it
    makers = []
    run = Prefetcher(recorded(200, makers), 2)
    assert list(run) == list(range(200))
    here = threading.current_thread().name
    assert makers[5:] == [here] * 195  # the thread makes a few before the first call


def test_no_more_than_depth_items_are_made_ahead(monkeypatch):
    monkeypatch.setattr(prefetch, "_WORTH_SECS", -1.0)
    ahead, taken = [], 0

    def source():
        for i in range(500):
            ahead.append(i - taken)
            yield i

    for item in Prefetcher(source(), 3):
        taken = item + 1
    assert max(ahead) <= 3


@pytest.mark.parametrize("worth_secs", [-1.0, 1e9])
def test_an_error_comes_in_its_place(monkeypatch, worth_secs):
    monkeypatch.setattr(prefetch, "_WORTH_SECS", worth_secs)

    def source():
        yield from range(5)
        raise OSError("gone")

    run = Prefetcher(source(), 2)
    assert [next(run) for _ in range(5)] == list(range(5))
    with pytest.raises(OSError, match="gone"):
        next(run)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(run)


def test_many_threads_take_each_item_once():
    run, taken = Prefetcher(iter(range(2000)), 2), [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(run)) for mine in taken
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(np.concatenate(taken).tolist()) == list(range(2000))
