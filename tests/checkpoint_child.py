"""Processes for test_checkpoint_processes.py: `checkpoint_child.py CASE PATH ...`."""

import concurrent.futures
import concurrent.futures.thread as thread_pools
import os
import queue
import resource
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from roxxel.checkpoint import Checkpointer, CheckpointError


class Big(nnx.Module):
    """108 MB that do not compress."""

    def __init__(self, parts=27):
        keys = jax.random.split(jax.random.key(0), parts)
        self.w = nnx.List([nnx.Param(jax.random.normal(k, (1000, 1000))) for k in keys])


def four_saves_then_fall_off_the_end(path):
    checkpointer = Checkpointer(path, Big(), max_to_keep=4)
    for step in range(4):
        checkpointer.save(step)


def sys_exit(path):
    Checkpointer(path, Big()).save(1)
    sys.exit(0)


def exception(path):
    checkpointer = Checkpointer(path, Big())
    checkpointer.save(1)
    raise RuntimeError("the user's own")


def exception_in_a_logger_block(path):
    from roxxel.logger import Logger

    with Logger(log_dir=os.path.join(path, "log")):
        Checkpointer(path, Big()).save(1)
        raise RuntimeError("the user's own")


def thread_that_outlives_main(path):
    checkpointer = Checkpointer(path, Big())
    main_is_over = threading.main_thread().join

    def work():
        checkpointer.save(1)
        main_is_over(timeout=0.5)
        checkpointer.save(2)

    threading.Thread(target=work).start()


def pool_worker(path):
    checkpointer = Checkpointer(path, Big())
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(checkpointer.save, 1).result()


def pool_worker_born_at_exit(path):
    """A pool starts its worker while the threads to wait for are being listed."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    listed = threading.enumerate

    def late():
        pool.submit(int)
        return listed()

    Checkpointer(path, Big()).save(1)
    threading.enumerate = late


def pool_worker_listed_late(path):
    """A worker runs before its pool has listed it, as between two lines of Python's."""
    queues, sleeping = thread_pools._threads_queues, queue.SimpleQueue()
    worker = threading.Thread(target=sleeping.get)
    Checkpointer(path, Big()).save(1)
    worker.start()

    def waited_for():
        frame = sys._current_frames().get(threading.main_thread().ident)
        while frame and frame.f_code.co_name != "_join_user_threads":
            frame = frame.f_back
        return frame

    def list_it():
        while not waited_for():
            time.sleep(0.01)
        queues[worker] = sleeping

    threading.Thread(target=list_it, daemon=True).start()


def _full_disk_at_step_2(path):
    checkpointer = Checkpointer(path, Big(2), max_to_keep=1)
    checkpointer.save(1)
    checkpointer.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    checkpointer.save(2)
    return checkpointer


def full_disk_then_save(path):
    _full_disk_at_step_2(path).save(3)


def full_disk_then_close(path):
    with _full_disk_at_step_2(path):
        pass


def full_disk_then_own_exception(path):
    with _full_disk_at_step_2(path):
        raise RuntimeError("the user's own")


def full_disk_then_fall_off_the_end(path):
    _full_disk_at_step_2(path)


def full_disk_then_space_again(path):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    checkpointer = Checkpointer(path, Big(2), max_to_keep=1)
    checkpointer.save(1)
    checkpointer.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    checkpointer.save(2)
    with pytest.raises(CheckpointError, match="step 2"):
        checkpointer.wait()
    assert checkpointer.all_steps() == [1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    checkpointer.save(3)
    checkpointer.close()
    # Writes of step 2 may still run in the background and leave a hidden folder.
    assert [name for name in os.listdir(path) if name.isdecimal()] == ["3"]


def no_permission(path):
    os.setuid(65534)
    for place in (path, os.path.join(path, "below")):
        try:
            Checkpointer(place)
        except ValueError as err:
            print(err)
    assert Checkpointer(path, Big(1), read_only=True).restore() == 1


def no_backend(path):
    from jax._src import xla_bridge

    for step in Checkpointer(path, read_only=True).all_steps():
        print(step)
    Checkpointer(os.path.join(path, "new")).close()
    assert not xla_bridge.backends_are_initialized()


def _pair():
    """A model with a replicated, a sharded and a process-local array."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))

    def put(value, *spec):
        sharding = jax.NamedSharding(mesh, jax.P(*spec))
        return jax.make_array_from_callback(
            value.shape, sharding, lambda index: value[index]
        )

    model = nnx.Dict(
        sharded=nnx.Param(put(np.arange(32.0).reshape(8, 4), "data")),
        replicated=nnx.Param(put(np.arange(3.0))),
        local=nnx.Param(jnp.arange(5.0)),
    )
    return model, put(np.float32(0.5))


def two_processes(path, index, port):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index))
    assert jax.device_count() == 4
    model, loss = _pair()
    checkpointer = Checkpointer(path, model, max_to_keep=2)
    assert checkpointer.restore() == 0
    double = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)
    for step in range(1, 4):
        checkpointer.save(step, {"loss": loss}, position={"step": step})
        nnx.update(model, double(nnx.state(model)))
    fresh, _ = _pair()
    checkpointer = Checkpointer(path, fresh)
    assert checkpointer.restore(2) == 2
    assert checkpointer.restore() == 3
    for shard in fresh.sharded.get_value().addressable_shards:
        expected = np.arange(32.0).reshape(8, 4)[shard.index] * 4
        np.testing.assert_array_equal(shard.data, expected)
    np.testing.assert_array_equal(fresh.local.get_value(), np.arange(5.0) * 4)
    fresh.extra = nnx.Param(jnp.ones(2))
    try:
        Checkpointer(path, fresh).restore()
    except ValueError as err:
        print(err)
    checkpointer.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
