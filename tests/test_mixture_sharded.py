"""Mixtures and aligned data sets on meshes and over processes: the same batches."""

import contextlib
import dataclasses
import functools
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roxxel import AlignedStream, ConfigError, MixtureStream, Phase, Roxxel

ELEMENTS = {"a": 9000, "b": 4000, "c": 2000}
WEIGHTS = {"a": 3, "b": 5, "c": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    for i, (name, count) in enumerate(ELEMENTS.items()):
        values = np.arange(count, dtype=np.int32) + 10_000 * i
        path = folder / f"{name}_*.rox"
        Roxxel(path).write([values], block_size=64, max_shard_bytes=1500)
    images = np.arange(50 * 12, dtype=np.uint16).reshape(50, 3, 4)
    Roxxel(folder / "i.rox").write(images, item_shape=(3, 4))
    return folder


def mixed(folder, batch_size=8, **options):
    return MixtureStream(
        {name: Roxxel(folder / f"{name}_*.rox") for name in ELEMENTS},
        weights=WEIGHTS,
        phases=[Phase(steps=4, seq_len=3), Phase(seq_len=6, batch_size=batch_size * 2)],
        batch_size=batch_size,
        overlap=1,
        **options,
    )


def aligned(folder, **options):
    data = {"image": Roxxel(folder / "i.rox"), "text": Roxxel(folder / "a_*.rox")}
    return AlignedStream(data, seq_len=17, overlap=1, batch_size=8, rows=50, **options)


def mesh_of(*shape, axes=("data",)):
    devices = jax.devices()[: int(np.prod(shape))]
    return Mesh(np.array(devices).reshape(shape), axes)


@pytest.mark.parametrize("count", range(1, 9))
def test_batches_are_equal_on_any_number_of_devices(folder, count):
    host = mixed(folder, batch_size=840)  # 840 divides by all
    placed = host.place(mesh_of(count))
    for step in (0, 3, 4, 5):
        batch, expected = placed.batch(step), host.batch(step)
        assert batch.dtype == expected.dtype
        assert len(batch.sharding.device_set) == count
        np.testing.assert_array_equal(np.asarray(batch), expected)


@pytest.mark.parametrize("prefetch", range(5))
def test_batches_are_equal_with_any_prefetch(folder, prefetch):
    expected = list(mixed(folder).steps(0, 12))
    mesh = mesh_of(2, 4, axes=("data", "fsdp"))
    spec = PartitionSpec(("data", "fsdp"))
    for options in ({}, {"mesh": mesh, "data_sharding": spec}):
        stream = mixed(folder, prefetch=prefetch, **options)
        got = []
        for start, stop in ((0, 3), (3, 7), (7, 12)):  # from one phase into the next
            with contextlib.closing(stream.steps(start, stop)) as run:
                got += [np.asarray(batch) for batch in run]
        for batch, wanted in zip(got, expected, strict=True):
            np.testing.assert_array_equal(batch, wanted)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_processes_reads_the_parts_of_a_batch(folder, count):
    """Processes differ in the rows that they ask for and in nothing else."""
    stream = mixed(folder)
    batches = stream._runner().__self__

    def part_of(rank):
        places = [
            functools.partial(own_rows, rank=rank, num_rows=leg.batch_size // count)
            for leg in stream._legs
        ]
        return dataclasses.replace(batches, places=places).run(0, 10)

    def own_rows(read, begin, *, rank, num_rows):
        return read(begin + rank * num_rows, begin + (rank + 1) * num_rows)

    parts = [part_of(rank) for rank in range(count)]
    for got, wanted in zip(zip(*parts, strict=True), stream.steps(0, 10), strict=True):
        np.testing.assert_array_equal(np.concatenate(got), wanted)


def test_placement_goes_on_where_the_stream_stands(folder):
    host = mixed(folder)
    for _ in range(3):
        next(host)
    placed = host.place(mesh_of(4))
    assert (placed.start_step, placed.prefetch, host.prefetch) == (3, 2, 0)
    assert placed.sharding.mesh == mesh_of(4)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(next(placed)), next(host))
    placed.close()
    everywhere = mixed(folder).place()
    assert len(everywhere.batch(4).sharding.device_set) == 8


def test_a_phase_that_does_not_divide_is_refused(folder):
    words = "batch 6 not divisible by 4 devices on axis data"
    with pytest.raises(ConfigError, match=words):
        MixtureStream(
            {"a": Roxxel(folder / "a_*.rox")},
            phases=[Phase(steps=1), Phase(batch_size=6)],
            seq_len=3,
            mesh=mesh_of(4),
        )


def test_aligned_arrays_are_placed_alike_or_each_in_its_way(folder):
    host = aligned(folder)
    mesh = mesh_of(4, 2, axes=("data", "x"))
    by_name = {"image": PartitionSpec("data", None, "x"), "text": PartitionSpec("data")}
    for options in (
        {"mesh": mesh},
        {"mesh": mesh, "data_sharding": PartitionSpec("data")},
        {"mesh": mesh, "data_sharding": by_name},
        {"data_sharding": NamedSharding(mesh, PartitionSpec("data"))},
    ):
        stream = aligned(folder, **options)
        assert set(stream.sharding) == {"image", "text"}
        for batch, expected in zip(stream, host.steps(0, 6), strict=True):
            assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
                k: (v.shape, v.dtype) for k, v in expected.items()
            }
            for name in batch:
                assert batch[name].sharding == stream.sharding[name]
                np.testing.assert_array_equal(np.asarray(batch[name]), expected[name])
    words = "item dimension of 3 not divisible by 4 devices on axis data"
    wrong = {"image": PartitionSpec(None, "data"), "text": PartitionSpec("data")}
    with pytest.raises(ConfigError, match=words):
        aligned(folder, mesh=mesh, data_sharding=wrong)


PROCESS = """
import pathlib
import sys
import jax
import numpy as np

rank, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
from tests import test_mixture_sharded as shared

assert len(jax.devices()) == 4
mesh = shared.mesh_of(4)
streams = [shared.mixed(folder), shared.aligned(folder)]
for host in [*streams, shared.mixed(folder, exhaustion="stop", batch_size=256)]:
    count, stop = 0, min(12, host.planned_steps or host.steps_per_epoch)
    for step, batch in enumerate(host.place(mesh).steps(0, stop)):
        expected = host.batch(step)
        arrays = batch.items() if isinstance(batch, dict) else [(None, batch)]
        for name, array in arrays:
            whole = expected if name is None else expected[name]
            assert array.shape == whole.shape
            for part in array.addressable_shards:
                np.testing.assert_array_equal(np.asarray(part.data), whole[part.index])
            total = jax.jit(lambda x: x.sum())(array)
            assert int(total) == int(whole.sum())
        count += 1
    assert count == stop
    with open(folder / f"{rank}.txt", "a") as file:  # gloo writes to stdout
        print(count, file=file)
"""


def test_two_processes_see_the_same_batches(folder, repo_root):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(repo_root), "JAX_PLATFORMS": "cpu"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(port), str(folder)],
            env=environment,
            cwd=repo_root,
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
        assert (folder / f"{rank}.txt").read_text().split() == ["12", "6", "5"]
