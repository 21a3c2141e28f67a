"""Writes that were cut off: `resume=True`, a full disk, a second writer."""

import contextlib
import errno
import itertools
import os
import pathlib
import signal
import subprocess

import numpy as np
import pytest

from roxxel import ConfigError, Roxxel, ShardFormatError
from roxxel.data import publish, shard_sink, writer

OPTIONS = {"block_size": 400, "max_shard_bytes": 2000, "separator": -1}
DOCUMENTS = [np.full(150 + i % 70, i, np.int32) for i in range(60)]


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch):
    monkeypatch.setattr(writer, "_BUFFER_BYTES", 400)  # shards come one by one


@pytest.fixture
def expected(tmp_path):
    """Names and bytes of the shards of a write that was not cut off."""
    folder = tmp_path / "whole"
    Roxxel(folder / "w_*.rox").write(DOCUMENTS, **OPTIONS)
    return contents(folder)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def failing(stop, documents=DOCUMENTS):
    yield from documents[:stop]
    raise OSError(f"source broke at {stop}")


def cut_off(folder, stop, **changes):
    folder.mkdir(exist_ok=True)
    data = Roxxel(folder / "w_*.rox")
    with pytest.raises(OSError, match=f"^source broke at {stop}$"):
        data.write(failing(stop), **OPTIONS | changes, resume=True)
    return data


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 30, 59, 60])
def test_a_resumed_write_makes_the_same_bytes(tmp_path, expected, stop):
    folder = tmp_path / "cut"
    data = cut_off(folder, stop)
    left = contents(folder)
    assert left.items() < expected.items()  # whole shards only, under their names
    assert (len(left) > 5) == (stop >= 30)
    data.write(iter(DOCUMENTS), **OPTIONS, resume=True)
    assert contents(folder) == expected
    assert data.is_complete


def test_many_cuts_come_to_the_same_end(tmp_path, expected):
    folder = tmp_path / "cut"
    seen = []
    for stop in (9, 9, 33):
        cut_off(folder, stop)
        seen.append(len(contents(folder)))
    assert seen[0] == seen[1] < seen[2]
    Roxxel(folder / "w_*.rox").write(DOCUMENTS, **OPTIONS, resume=True)
    assert contents(folder) == expected


def test_a_complete_data_set_is_kept_and_no_item_read(tmp_path):
    data = Roxxel(tmp_path / "w_*.rox").write(DOCUMENTS, **OPTIONS, resume=True)
    items = (pytest.fail("read an item") for _ in range(1))
    data.write(items, **OPTIONS, resume=True)
    assert data.num_elements == sum(d.size + 1 for d in DOCUMENTS)


@pytest.mark.parametrize(
    ("documents", "changes", "words"),
    [
        (DOCUMENTS[1:], {}, "w_0000.rox holds; give the same items again"),
        ([*DOCUMENTS[:20], *DOCUMENTS[21:]], {}, "the items give other elements than"),
        (DOCUMENTS[:20], {}, "elements of .*w_00.*.rox is|last of .*w_00.*.rox is"),
        (
            [d.astype(np.int64) for d in DOCUMENTS],
            {},
            "dtype of .* is 'int32'.*'int64'",
        ),
        (DOCUMENTS, {"separator": None}, "give other|separator of"),
        (DOCUMENTS, {"block_size": 200}, "block_bytes of .* is 400, .* give 200 now"),
        (DOCUMENTS, {"max_shard_bytes": 4000}, "elements of .*w_0000"),
        (DOCUMENTS, {"metadata": {"a": 1}}, r"metadata of .* is \{\}, .*'a': 1"),
        (DOCUMENTS, {"mode": "append"}, "resume=True goes with mode='new' or 'skip'"),
        (DOCUMENTS, {"mode": "overwrite"}, "resume=True goes with mode"),
    ],
)
def test_other_items_or_arguments_are_refused(tmp_path, documents, changes, words):
    folder = tmp_path / "cut"
    data = cut_off(folder, 30)
    before = contents(folder)
    assert len(before) > 5
    with pytest.raises(ConfigError, match=words):
        data.write(documents, **OPTIONS | changes, resume=True)
    assert contents(folder) == before


def test_metadata_are_compared_as_they_are_stored(tmp_path):
    folder = tmp_path / "cut"
    metadata = {"shape": (1, 2), "mean": float("nan")}
    data = cut_off(folder, 30, metadata=metadata)
    data.write(DOCUMENTS, **OPTIONS, metadata=metadata, resume=True)
    assert data.metadata["shape"] == [1, 2]


def test_a_shard_that_is_missing_or_damaged_is_refused(tmp_path):
    folder = tmp_path / "cut"
    data = cut_off(folder, 30)
    (folder / "w_0002.rox").unlink()
    with pytest.raises(ConfigError, match=r"shard 2 is .*w_0003\.rox, expected .*0002"):
        data.write(DOCUMENTS, **OPTIONS, resume=True)
    (folder / "w_0002.rox").write_bytes(b"damaged")
    with pytest.raises(ShardFormatError, match="w_0002"):
        data.write(DOCUMENTS, **OPTIONS, resume=True)


def test_without_resume_a_failed_write_leaves_nothing(tmp_path):
    folder = tmp_path / "cut"
    folder.mkdir()
    with pytest.raises(OSError, match="source broke"):
        Roxxel(folder / "w_*.rox").write(failing(30), **OPTIONS)
    assert contents(folder) == {}


KILLED = """
import os, signal, sys
from roxxel import Roxxel
from roxxel.data import writer
from tests.test_data_resume import DOCUMENTS, OPTIONS
writer._BUFFER_BYTES = 400
def documents():
    yield from DOCUMENTS[:30]
    os.kill(os.getpid(), signal.SIGKILL)
Roxxel("w_*.rox").write(documents(), **OPTIONS)
"""


def test_a_killed_write_is_resumed(tmp_path, expected, run_python):
    folder = tmp_path / "cut"
    folder.mkdir()
    done = run_python("-c", KILLED, cwd=folder)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = contents(folder)
    assert [name for name in left if name.endswith(".part")]
    finished = {name: raw for name, raw in left.items() if not name.startswith(".")}
    assert len(finished) > 5
    assert finished.items() < expected.items()
    before = {name: (folder / name).stat().st_ino for name in finished}
    Roxxel(folder / "w_*.rox").write(DOCUMENTS, **OPTIONS, resume=True)
    assert contents(folder) == expected
    assert before == {name: (folder / name).stat().st_ino for name in finished}  # kept


def test_a_failed_resume_removes_its_own_files_only(tmp_path, monkeypatch, expected):
    """Items of finished shards go to the null device, which is no file to remove."""
    folder = tmp_path / "cut"
    cut_off(folder, 30)
    null = tmp_path / "null"
    null.symlink_to(os.devnull)
    monkeypatch.setattr(shard_sink.os, "devnull", str(null))
    before = contents(folder)
    cut_off(folder, 3)
    assert null.is_symlink()
    assert contents(folder) == before
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    publish.remove_all([str(pipe), str(null), str(tmp_path / "missing")])
    assert pipe.is_fifo()
    assert null.is_symlink()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_disk_that_is_full_is_told_and_a_retry_works(small_disk, is_resumed):
    data = Roxxel(small_disk / "w_*.rox")
    documents = [np.full(1000, i, np.int32) for i in range(30)]  # 120 KB
    options = {"block_size": 4000, "max_shard_bytes": 9000}
    with pytest.raises(OSError, match="No space left") as info:
        data.write(documents, **options, resume=is_resumed)
    assert info.value.errno == errno.ENOSPC
    left = contents(small_disk)
    assert not [name for name in left if name.startswith(".")]
    assert bool(left) == is_resumed
    if is_resumed:  # finished shards read, and more room continues them
        assert data.elements(0, 1000).tolist() == [0] * 1000
        remount = ["mount", "-o", "remount,size=1m", str(small_disk)]
        subprocess.run(remount, check=True)
        data.write(documents, **options, resume=True)
    else:
        documents = documents[:10]
        data.write(documents, **options)
    np.testing.assert_array_equal(
        data.elements(0, data.num_elements), np.concatenate(documents)
    )


FULL = """
import resource, sys
from roxxel import Roxxel
from roxxel.data import writer
from tests.test_data_resume import DOCUMENTS, OPTIONS
writer._BUFFER_BYTES = 400
def documents():
    for i, document in enumerate(DOCUMENTS):
        if i == 30:
            resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
        yield document
try:
    Roxxel("w_*.rox").write(documents(), **OPTIONS, resume=sys.argv[1] == "resume")
except OSError as err:
    print(err.errno, type(err.__context__).__name__)
"""


@pytest.mark.parametrize("resume", ["resume", "new"])
def test_a_full_disk_is_told_and_a_retry_works(tmp_path, expected, run_python, resume):
    folder = tmp_path / "cut"
    folder.mkdir()
    done = run_python("-c", FULL, resume, cwd=folder)
    assert (done.stdout, done.stderr) == ("27 NoneType\n", "")  # EFBIG, unchanged
    left = contents(folder)
    assert left.items() < expected.items()
    assert bool(left) == (resume == "resume")
    Roxxel(folder / "w_*.rox").write(DOCUMENTS, **OPTIONS, resume=True)
    assert contents(folder) == expected


def test_a_second_writer_cannot_resume_what_is_being_written(tmp_path, expected):
    folder = tmp_path / "cut"
    second = Roxxel(folder / "w_*.rox")

    def documents():
        yield from DOCUMENTS[:30]
        with pytest.raises(FileExistsError, match="being written by another writer"):
            second.write(DOCUMENTS, **OPTIONS, resume=True)
        yield from DOCUMENTS[30:]

    Roxxel(folder / "w_*.rox").write(documents(), **OPTIONS)
    assert contents(folder) == expected


def test_leftovers_under_this_process_id_do_not_block(tmp_path, expected):
    """After a restart in a container the process may have the number it had before."""
    folder = tmp_path / "cut"
    data = cut_off(folder, 30)
    part = pathlib.Path(publish.part_path(str(folder / "w_0009.rox")))
    part.write_bytes(b"unfinished")
    publish._own_parts.clear()
    assert f"-{os.getpid()}-" in part.name
    data.write(DOCUMENTS, **OPTIONS, resume=True)
    assert contents(folder) == expected


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EMFILE, "files")])
@pytest.mark.parametrize("name", ["link", "unlink", "open", "fsync"])
def test_a_write_cut_off_while_it_names_a_shard(
    tmp_path, monkeypatch, expected, name, error, is_resumed
):
    """Ctrl-C and a lack of files at any place: before the call and behind it."""
    really = getattr(os, name)
    for at in range(3, 24, 5):
        for is_behind in (False, True):
            folder = tmp_path / f"{at}{is_behind}"
            folder.mkdir()
            calls = itertools.count(1)

            def call(*args, at=at, is_behind=is_behind, calls=calls, **kwargs):
                is_now = next(calls) == at
                if is_now and not is_behind:
                    raise error
                result = really(*args, **kwargs)
                if is_now and name == "open":
                    os.close(result)
                if is_now:
                    raise error
                return result

            data = Roxxel(folder / "w_*.rox")
            with (
                monkeypatch.context() as patch,
                contextlib.suppress(type(error), KeyboardInterrupt),
            ):
                patch.setattr(os, name, call)
                data.write(DOCUMENTS, **OPTIONS, resume=is_resumed)
            left = contents(folder)
            assert left.items() <= expected.items()
            assert list(left) == list(expected)[: len(left)]
            if not is_resumed:
                assert not left or left == expected
            data.write(DOCUMENTS, **OPTIONS, resume=is_resumed, mode="skip")
            assert contents(folder) == expected


def test_an_interrupted_cleanup_leaves_what_can_be_resumed(
    tmp_path, monkeypatch, expected
):
    folder = tmp_path / "cut"
    folder.mkdir()
    data = Roxxel(folder / "w_*.rox")
    calls = itertools.count(1)

    def remove_own(path, made, really=publish.remove_own):
        if next(calls) == 4:
            raise KeyboardInterrupt
        really(path, made)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "remove_own", remove_own)
        with pytest.raises(KeyboardInterrupt):
            data.write(failing(40), **OPTIONS)
    left = list(contents(folder))
    assert len(left) > 3
    assert left == list(expected)[: len(left)]
    data.write(DOCUMENTS, **OPTIONS, resume=True)
    assert contents(folder) == expected


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_an_interrupted_publication_is_whole_or_not_at_all(tmp_path, monkeypatch, mode):
    for name in ("fsync", "replace"):
        really = getattr(os, name)
        for at in range(1, 12):
            folder = tmp_path / f"{name}{at}"
            data = Roxxel(folder / "w_*.rox").write([[1] * 200], **OPTIONS)
            before = contents(folder)
            calls = itertools.count(1)

            def call(*args, at=at, calls=calls, really=really):
                if next(calls) == at:
                    raise KeyboardInterrupt
                return really(*args)

            with monkeypatch.context() as patch:
                patch.setattr(os, name, call)
                with contextlib.suppress(KeyboardInterrupt):
                    data.write(DOCUMENTS[:10], **OPTIONS, mode=mode)
            data.open()
            assert all(not name.startswith(".") for name in contents(folder))
            if contents(folder) != before:
                stored = data.elements(0, data.num_elements)
                assert (stored == -1).sum() == 10 + (mode == "append")
