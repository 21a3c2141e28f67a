"""A data set in other loaders and in worker processes: map-style, forked, spawned."""

import pickle

import numpy as np
import pytest

from roxxel import Roxxel, ShardFormatError

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 4, 3)).astype(np.uint8)


@pytest.fixture
def images(tmp_path):
    data = Roxxel(tmp_path / "i_*.rox")
    return data.write(IMAGES, item_shape=(4, 3), max_shard_bytes=1200)


@pytest.fixture
def blocks(tmp_path):
    values = np.arange(1000, dtype=np.int32)
    return Roxxel(tmp_path / "b_*.rox").write([values], block_size=64)


@pytest.fixture
def ragged(tmp_path):
    files = [bytes(range(n)) for n in (3, 0, 9, 1)]
    return Roxxel(tmp_path / "r_*.rox").write(files, item_shape=(None,))


@pytest.mark.parametrize("kind", ["images", "blocks", "ragged"])
def test_many_records_at_once(request, kind):
    data = request.getfixturevalue(kind)
    ids = [2, 0, -1, 2, np.int64(1), len(data) - 1]
    got = data.__getitems__(ids)
    assert isinstance(got, list)
    for record, i in zip(got, ids, strict=True):
        np.testing.assert_array_equal(record, data[int(i)])
        assert record.shape == data[int(i)].shape
        assert record.dtype == data.dtype
    assert data.__getitems__([]) == []
    for wrong in ([0, len(data)], [-len(data) - 1]):
        with pytest.raises(IndexError, match=f"of {len(data)} in"):
            data.__getitems__(wrong)
    assert [r.tolist() for r in data] == [
        r.tolist() for r in data[:]
    ]  # IndexError ends


def test_many_records_are_checked_when_asked(images, tmp_path):
    path = sorted(tmp_path.iterdir())[0]
    raw = bytearray(path.read_bytes())
    raw[30] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ShardFormatError, match="do not match their checksums"):
        Roxxel(tmp_path / "i_*.rox", verify="lazy").__getitems__([2, 30])


WORKERS = """
import multiprocessing, sys
import numpy as np
from roxxel import Roxxel

def sums(data, ids):
    stream = data.stream(batch_size=8, seed=5)
    return [int(x.sum()) for x in data.__getitems__(ids)], next(stream).tolist()

if __name__ == "__main__":
    data = Roxxel("i_*.rox")
    data[0]  # opened, one shard mapped, the others not
    expected = sums(Roxxel("i_*.rox"), range(40))
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            answers = pool.starmap(sums, [(data, range(40))] * 4)
        assert answers == [expected] * 4, method
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(sums(data, range(40))))
    child.start()  # the open object itself, not a copy
    assert queue.get() == expected
    child.join()
    print(child.exitcode)
"""


def test_forked_and_spawned_processes_read_the_same(images, tmp_path, run_python):
    (tmp_path / "workers.py").write_text(WORKERS)
    done = run_python("workers.py")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_open_data_set_is_pickled_as_its_place(images):
    images[0]
    raw = pickle.dumps(images)
    assert len(raw) < 500
    np.testing.assert_array_equal(pickle.loads(raw)[7], IMAGES[7])


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_torch_loads_batches(images, method):
    torch_data = pytest.importorskip("torch.utils.data", reason="torch is not there")
    images[0]  # open when it goes to the workers
    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    loader = torch_data.DataLoader(images, batch_size=8, **workers)
    got = np.concatenate([batch.numpy() for batch in loader])
    np.testing.assert_array_equal(got, IMAGES)
    if method not in (None, "fork"):
        return  # starting the workers takes seconds
    shuffled = torch_data.DataLoader(images, batch_size=8, shuffle=True, **workers)
    got = np.concatenate([batch.numpy() for batch in shuffled])
    assert sorted(x.tobytes() for x in got) == sorted(x.tobytes() for x in IMAGES)


def test_torch_asks_for_many_records_at_once(images, monkeypatch):
    torch_data = pytest.importorskip("torch.utils.data", reason="torch is not there")
    asked = []
    many = Roxxel.__getitems__

    def noted(self, indices):
        asked.append(list(indices))
        return many(self, indices)

    monkeypatch.setattr(Roxxel, "__getitems__", noted)
    batches = list(torch_data.DataLoader(images, batch_size=32))
    assert asked == [list(range(32)), list(range(32, 40))]
    assert [tuple(batch.shape) for batch in batches] == [(32, 4, 3), (8, 4, 3)]


def test_grain_reads_it_as_a_source(images):
    grain = pytest.importorskip("grain", reason="grain is not there")
    assert isinstance(images, grain.sources.RandomAccessDataSource)
    dataset = grain.MapDataset.source(images).shuffle(seed=3).batch(8)
    got = np.concatenate([dataset[i] for i in range(len(dataset))])
    assert sorted(x.tobytes() for x in got) == sorted(x.tobytes() for x in IMAGES)


def test_grain_resumes_where_it_stopped(images):
    grain = pytest.importorskip("grain", reason="grain is not there")
    dataset = grain.MapDataset.source(images).shuffle(seed=3).repeat(2).batch(8)
    iterator = iter(dataset.to_iter_dataset())
    seen = [next(iterator) for _ in range(3)]
    state = iterator.get_state()
    rest = list(iterator)
    again = iter(dataset.to_iter_dataset())
    again.set_state(state)
    for got, expected in zip(again, rest, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert len(seen) + len(rest) == 2 * 40 // 8


@pytest.mark.parametrize("workers", [0, 2])
def test_grain_loads_batches(images, run_python, tmp_path, workers):
    pytest.importorskip("grain", reason="grain is not there")
    script = f"""
import grain
import numpy as np
from absl import flags
from roxxel import Roxxel

if __name__ == "__main__":
    flags.FLAGS(["loads"])  # the workers of grain read flags
    data = Roxxel("i_*.rox")
    sampler = grain.samplers.IndexSampler(
        len(data), shuffle=True, seed=1, num_epochs=1,
        shard_options=grain.sharding.NoSharding(),
    )
    loader = grain.DataLoader(
        data_source=data, sampler=sampler, worker_count={workers},
        operations=[grain.transforms.Batch(8)],
    )
    rows = np.concatenate(list(loader))
    print(rows.shape, len(set(x.tobytes() for x in rows)))
"""
    (tmp_path / "loads.py").write_text(script)
    done = run_python("loads.py")
    assert done.stdout == "(40, 4, 3) 40\n", done.stderr
