"""Batches on meshes: equal on any number of devices and processes, own rows only."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from roxxel import ConfigError, Roxxel


class CountingRoxxel(Roxxel):
    """Keeps the ids of all rows that were read."""

    def locate(self, row_ids, *args):
        window = super().locate(row_ids, *args)
        return CountingWindow(self, window, row_ids)


class CountingWindow:
    def __init__(self, data, window, row_ids):
        self.data, self.window, self.row_ids = data, window, row_ids

    def read(self, start, stop):
        read = self.row_ids[start:stop].tolist()
        self.data.read = [*getattr(self.data, "read", []), *read]
        return self.window.read(start, stop)


@pytest.fixture
def data(tmp_path):
    values = np.arange(4000, dtype=np.int32)
    path = tmp_path / "d_*.rox"
    Roxxel(path).write([values], block_size=64, max_shard_bytes=3000)
    return CountingRoxxel(path)


def mesh_of(*shape, axes=("data",)):
    devices = jax.devices()[: int(np.prod(shape))]
    return Mesh(np.array(devices).reshape(shape), axes)


def assert_same(batch, host):
    assert isinstance(batch, jax.Array)
    assert batch.dtype == host.dtype
    np.testing.assert_array_equal(np.asarray(batch), host)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_batches_are_equal_on_any_number_of_devices(data, count):
    host = data.stream(31, 8, overlap=1)
    mesh = mesh_of(count)
    sharding = NamedSharding(mesh, PartitionSpec("data", None))
    streams = [
        data.stream(31, 8, overlap=1, mesh=mesh, data_sharding=sharding),
        data.stream(31, 8, overlap=1, mesh=mesh),
        data.stream(31, 8, overlap=1, data_sharding=sharding),
        data.stream(31, 8, overlap=1, mesh=mesh, data_sharding=PartitionSpec("data")),
        host.place(mesh),
    ]
    for stream in streams:
        assert stream.sharding.is_equivalent_to(sharding, 2)
        assert_same(stream.batch(3), host.batch(3))
    for batch, expected in zip(streams[0], host, strict=True):
        assert batch.sharding == sharding
        assert_same(batch, expected)


@pytest.mark.parametrize(
    ("shape", "axes", "spec"),
    [
        ((2, 4), ("data", "seq"), PartitionSpec("data", "seq")),
        ((2, 4), ("data", "seq"), PartitionSpec(None, "seq")),
        ((2, 2, 2), ("a", "b", "c"), PartitionSpec(("a", "b"), "c")),
        ((2, 4), ("data", "model"), PartitionSpec("data")),  # copies along model
        ((8,), ("data",), PartitionSpec()),  # eight copies
    ],
)
def test_meshes_of_several_axes(data, shape, axes, spec):
    host = data.stream(30, 8, overlap=2)
    mesh = mesh_of(*shape, axes=axes)
    placed = data.stream(30, 8, overlap=2, mesh=mesh, data_sharding=spec)
    data.read = []
    assert_same(placed.batch(5), host.batch(5))
    rows = data.read[:8]  # the host's own batch is read behind it
    assert len(set(rows)) == 8
    assert len(data.read) == 16  # each row once for all its copies and pieces


def test_placement_on_one_device_and_on_all(data):
    host = data.stream(31, 8)
    one = data.stream(31, 8, data_sharding=SingleDeviceSharding(jax.devices()[3]))
    assert_same(one.batch(0), host.batch(0))
    assert one.batch(0).devices() == {jax.devices()[3]}
    everywhere = host.place()
    assert len(everywhere.batch(0).devices()) == 8
    assert_same(next(everywhere), next(host))
    assert len(host.place()) == len(host)  # goes on where the stream stands
    host.close()
    everywhere.close()


@pytest.mark.parametrize(
    ("batch_size", "options", "words"),
    [
        (10, {}, "batch 10 not divisible by 4 devices on axis data"),
        (2, {}, "batch 2 not divisible by 4 devices on axis data"),
        (8, {"data_sharding": PartitionSpec(None, "data")}, r"row of 31 .* axis data"),
        (8, {"data_sharding": PartitionSpec("rows")}, "does not go with the mesh"),
        (8, {"data_sharding": "data"}, "must be a jax sharding"),
        (8, {"data_sharding": PartitionSpec("data", None, None)}, "has 3 dimensions"),
        (0, {}, "batch_size must be .* got 0"),
        (8.0, {}, "got 8.0"),
    ],
)
def test_what_does_not_divide_is_refused_before_reading(
    data, batch_size, options, words
):
    with pytest.raises(ConfigError, match=words):
        data.stream(31, batch_size, mesh=mesh_of(4), **options)
    assert not hasattr(data, "read")
    data.stream(31, 8, mesh=mesh_of(4))


def test_a_spec_without_mesh_and_two_meshes_are_refused(data):
    with pytest.raises(ConfigError, match="PartitionSpec with mesh="):
        data.stream(31, 8, data_sharding=PartitionSpec("data"))
    other = NamedSharding(mesh_of(2), PartitionSpec("data"))
    with pytest.raises(ConfigError, match="give one of them"):
        data.stream(31, 8, mesh=mesh_of(4), data_sharding=other)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_kept_device_batches_never_change(tmp_path, overlap, dtype):
    # the CPU client shares memory with the host: no buffer may be used again
    path = tmp_path / "a.rox"
    Roxxel(path).write([(np.arange(4000) % 256).astype(dtype)])
    data = Roxxel(path)
    stream = data.stream(16, 8, overlap=overlap, mesh=mesh_of(2))
    kept = next(stream)
    copy = np.array(kept)
    for _ in range(20):
        next(stream)
    with open(path, "r+b") as file:
        file.write(b"\xff" * 4000)
    stream.close()
    data.close()
    np.testing.assert_array_equal(np.asarray(kept), copy)


def test_values_of_64_bits_do_not_reach_a_device_cut(tmp_path):
    wide = Roxxel(tmp_path / "w.rox").write([np.array([2**32 + 5, 2**31, 1, 2])])
    with pytest.raises(ConfigError, match="int64 need jax_enable_x64"):
        wide.stream(4, 1, dtype="int64", mesh=mesh_of(1))
    fits = Roxxel(tmp_path / "f.rox").write([np.array([2**31 - 1, -(2**31), 1, 2])])
    batch = fits.stream(4, 1, mesh=mesh_of(1)).batch(0)
    assert np.asarray(batch).tolist() == [[2**31 - 1, -(2**31), 1, 2]]
    floats = Roxxel(tmp_path / "g.rox").write([np.array([0.1] * 4)])
    with pytest.raises(ConfigError, match="float64 need jax_enable_x64"):
        floats.stream(4, 1, mesh=mesh_of(1))
    with jax.enable_x64(True):
        stream = wide.stream(4, 1, dtype="int64", mesh=mesh_of(1), prefetch=0)
        assert np.asarray(next(stream)).tolist() == [[2**32 + 5, 2**31, 1, 2]]
        threaded = wide.stream(4, 1, dtype="int64", mesh=mesh_of(1), prefetch=1)
        # x64 holds in this thread only: refused on the other, not cut
        with pytest.raises(ConfigError, match="int64 need jax_enable_x64"):
            next(threaded)


PROCESS = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from roxxel import Roxxel

rank, port, location = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_num_cpu_devices", 2)

read = []

class CountingRoxxel(Roxxel):
    def locate(self, row_ids, *args):
        self.window, self.row_ids = super().locate(row_ids, *args), row_ids
        return self
    def read(self, start, stop):
        read.extend(self.row_ids[start:stop].tolist())
        return self.window.read(start, stop)

data = CountingRoxxel(location).open()
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
devices = np.array(jax.devices())
assert len(devices) == 4
for mesh, spec in [
    (Mesh(devices, ("data",)), P("data", None)),
    (Mesh(devices.reshape(2, 2), ("data", "seq")), P("data", "seq")),
    (Mesh(devices.reshape(2, 2).T, ("data", "seq")), P("data", "seq")),
]:
    read.clear()
    stream = data.stream(31, 8, overlap=1, seed=5, mesh=mesh, data_sharding=spec)
    host = Roxxel(location).stream(31, 8, overlap=1, seed=5)
    owned = set()
    for step in range(4):
        batch, expected = next(stream), host.batch(step)
        for shard in batch.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])
            owned |= {(step, r) for r in range(*shard.index[0].indices(8))}
    total = jax.jit(lambda x: x.sum())(batch)
    assert int(total) == int(expected.sum())
    stream.close()
    ahead = len(read) - len(owned)  # read ahead: whole batches of own rows
    assert ahead % (len(owned) // 4) == 0 and ahead <= 3 * len(owned) // 4, ahead
    firsts = [int(expected[r, 0]) // 31 for s, r in owned if s == 3]
    mine = len(owned) // 4
    assert sorted(firsts) == sorted(read[3 * mine : 4 * mine])
    with open(f"{sys.argv[4]}/{rank}.txt", "a") as file:  # gloo writes to stdout
        print(mine, file=file)
"""


def test_two_processes_see_the_same_batches_and_read_their_own_rows(
    data, repo_root, tmp_path
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(repo_root), "JAX_PLATFORMS": "cpu"}
    location = str(tmp_path / "d_*.rox")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(port), location, tmp_path],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        answers = [child.communicate(timeout=120) for child in children]
    finally:
        for child in children:
            child.kill()
    for rank, (_, err) in enumerate(answers):
        assert children[rank].returncode == 0, err[-2000:]
        # rows over processes; rows over processes; every row on both processes
        assert (tmp_path / f"{rank}.txt").read_text().split() == ["4", "4", "8"]


def test_batches_are_made_ahead_on_devices_only_by_default(data):
    host = data.stream(31, 8)
    assert host.prefetch == 0
    assert host.place(mesh_of(2)).prefetch == 2
    assert data.stream(31, 8, prefetch=5).place(mesh_of(2)).prefetch == 5
    assert data.stream(31, 8, prefetch=0).place(mesh_of(2)).prefetch == 0
