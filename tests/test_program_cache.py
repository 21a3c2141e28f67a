"""Compiled programs beside the runs: found again, bounded, and never in the way."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from roxxel.train import program_cache

SETTINGS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": 0,
}


@pytest.fixture(autouse=True)
def no_cache():
    """As in a process that nobody told of a cache; all programs are worth keeping."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def compiled(number):
    """Compiles a program that no other test has, and runs it."""
    program = jax.jit(lambda x: jnp.cumsum(jnp.sin(x) * number))
    return np.asarray(program.lower(jnp.arange(100.0)).compile()(jnp.arange(100.0)))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_programs_are_kept_beside_the_runs_and_give_the_same_numbers(tmp_path):
    with program_cache.used(".jax_cache", tmp_path / "run"):
        first = compiled(7.25)
    kept = files(tmp_path / ".jax_cache")
    assert kept
    # A folder for each kind of CPU: a program may hold instructions of only one.
    assert kept[0].parent.parent == tmp_path / ".jax_cache"
    assert kept[0].parent.name.startswith("cpu-")
    assert jax.config.values["jax_compilation_cache_dir"] is None
    jax.clear_caches()
    with program_cache.used(".jax_cache", tmp_path / "another"):
        np.testing.assert_array_equal(compiled(7.25), first)
    assert [
        path for path in files(tmp_path / ".jax_cache") if "-atime" not in str(path)
    ]


@pytest.mark.parametrize("place", ["elsewhere", None])
def test_it_can_be_moved_and_turned_off(tmp_path, place):
    given = None if place is None else tmp_path / place
    with program_cache.used(given, tmp_path / "runs" / "run"):
        compiled(8.5)
    assert bool(files(tmp_path)) == (place is not None)


def test_a_cache_that_jax_was_told_of_stays(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    with program_cache.used(".jax_cache", tmp_path / "run"):
        compiled(9.75)
    assert files(tmp_path / "own")
    assert not (tmp_path / ".jax_cache").exists()


def test_a_place_that_cannot_be_written_to_is_left_alone(tmp_path):
    (tmp_path / ".jax_cache").write_text("a file")
    with program_cache.used(".jax_cache", tmp_path / "run"):
        compiled(10.5)
    assert (tmp_path / ".jax_cache").read_text() == "a file"


def test_a_damaged_program_is_compiled_again(tmp_path):
    with program_cache.used(".jax_cache", tmp_path / "run"):
        first = compiled(11.5)
    for path in files(tmp_path / ".jax_cache"):
        path.write_bytes(path.read_bytes()[:100])
    jax.clear_caches()
    with (
        pytest.warns(UserWarning, match="Error reading persistent"),
        program_cache.used(".jax_cache", tmp_path / "run"),
    ):
        np.testing.assert_array_equal(compiled(11.5), first)


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path):
    for age, name in enumerate(["new", "middle", "old"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    program_cache.prune(tmp_path, max_bytes=250)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "middle"}
    program_cache.prune(tmp_path, max_bytes=0)
    assert not list(tmp_path.iterdir())
