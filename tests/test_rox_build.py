"""`python -m roxxel.rox build`."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from roxxel import Roxxel, rox
from roxxel.data import publish
from tests import tiny_tokenizers as tiny


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with inputs of every kind, and in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three")
    lines = [json.dumps({"text": f"document {i}", "raw": "r"}) for i in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    np.save(tmp_path / "ids.npy", np.array([5, 6, 300]))
    np.array([7, 8, 9], "<u2").tofile(tmp_path / "ids.bin")
    return tmp_path


def build(capsys, *args):
    code = rox.main(["build", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def elements(place) -> list[int]:
    with Roxxel(place) as data:
        return data.elements(0, data.num_elements).tolist()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--text", "a.txt", "b.txt"], list(b"one\ntwo\n\0three\0")),
        (["--text", "*.txt", "--unit", "line", "--separator", "\\n"],
         list(b"one\ntwo\nthree\n")),
        (["--text", "b.txt", "--separator", "none"], list(b"three")),
        (["--text", "b.txt", "--separator", "300"], [*b"three", 300]),
        (["--jsonl", "a.jsonl", "--field", "raw"], list(b"r\0" * 50)),
        (["--arrays", "ids.npy"], [5, 6, 300]),
        (["--nanogpt", "ids.bin", "--separator", "1"], [7, 8, 9, 1]),
        (["--nanogpt", "ids.bin", "--tokenizer", "bytes"], [7, 8, 9]),
    ],
)  # fmt: skip
def test_sources_are_built(args, expected, here, capsys):
    code, out, err = build(capsys, "out/x_*.rox", *args)
    assert code == 0, err
    assert elements("out/x_*.rox") == expected
    size = os.path.getsize("out/x_0000.rox")
    assert out.startswith("out/x_*.rox: ")
    assert f" documents, {len(expected)} elements, {size:,} bytes, " in out
    assert " elements/s, took 0:0" in out
    assert "100% | " in err


def test_tables_are_built(here, capsys):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    datasets = pytest.importorskip("datasets")
    table = pa.table({"body": ["one", None, "two"]})
    parquet.write_table(table, "a.parquet")
    datasets.Dataset(table).save_to_disk("saved")
    for args in (["--parquet", "a.parquet"], ["--hf", "saved"]):
        code, _, err = build(capsys, "x.rox", *args, "--column", "body", "--overwrite")
        assert code == 0, err
        assert bytes(elements("x.rox")) == b"one\0two\0"


def test_everything_at_once(here, capsys):
    spec = tiny.write_hugging_face(here)
    options = ["--tokenizer", spec, "--heldout", "0.2", "--dtype", "int32"]
    options += ["--separator", tiny.END, "--max_shard_bytes", "10kB"]
    code, out, _ = build(
        capsys, "one_*.rox", "--jsonl", "a.jsonl", *options, "--processes", "2"
    )
    assert code == 0
    train, heldout, last = out.splitlines()
    assert train.startswith("one_train_*.rox: ")
    assert heldout.startswith("one_heldout_*.rox: ")
    assert last.startswith("one_*.rox: 50 documents, ")
    for side in ("train", "heldout"):
        with Roxxel(f"one_{side}_*.rox") as data:
            assert str(data.dtype) == "int32"
            assert data.metadata["tokenizer"]["spec"] == str(spec)
            assert data.metadata["builder"] == "jsonl"
            assert data.metadata["inputs"] == ["a.jsonl"]
    assert rox.main(["info", "one_train_*.rox"]) == 0
    assert '"vocab_size": 400' in capsys.readouterr().out


def test_what_is_there_is_kept_unless_asked(here, capsys):
    command = ["x_*.rox", "--text", "a.txt"]
    assert build(capsys, *command)[0] == 0
    code, _, err = build(capsys, *command)
    assert code == 2
    assert err.splitlines()[-1] == (
        "roxxel.rox: x_*.rox: there is already x_0000.rox (1 shards in all): give"
        " --overwrite, --append or --resume."
    )
    code, out, _ = build(capsys, *command, "--resume")
    assert (code, out) == (0, "x_*.rox: complete already, nothing was written\n")
    assert build(capsys, *command, "--append")[0] == 0
    assert bytes(elements("x_*.rox")) == b"one\ntwo\n\0" * 2
    assert build(capsys, *command, "--overwrite")[0] == 0
    assert bytes(elements("x_*.rox")) == b"one\ntwo\n\0"
    other = tiny.write_tiktoken(here / "gpt2.tiktoken")
    code, _, err = build(capsys, *command, "--append", "--tokenizer", other)
    assert code == 2
    assert "append" in err.splitlines()[-1]
    assert bytes(elements("x_*.rox")) == b"one\ntwo\n\0"


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ([], "OUTPUT comes first"),
        (["x.rox"], "one of the arguments --text --jsonl --parquet"),
        (["x.rox", "--text"], "--text: expected at least one argument"),
        (["x.rox", "--text", "a.txt", "--jsonl", "a"], "not allowed with argument"),
        (["x.rox", "--text", "none*.txt"], "no file matches /"),
        (["x.txt", "--text", "a.txt"], "'x.txt' must end in '.rox'"),
        (["x_*_*.rox", "--text", "a.txt"], "'x_*_*.rox' cannot be written to"),
        (["x.rox", "--text", "a.txt", "--field", "b"], "--field does not go with"),
        (["x.rox", "--jsonl", "a.txt"], "a.txt:1: not valid JSON"),
        (["x.rox", "--text", "a.txt", "--processes", "0"], "processes is 0"),
        (["x.rox", "--text", "a.txt", "--processes", "many"], "invalid int value"),
        (["x.rox", "--text", "a.txt", "--heldout", "2"], "heldout_fraction is 2.0"),
        (["x.rox", "--text", "a.txt", "--dtype", "int9"], "dtype 'int9' is unknown"),
        (["x.rox", "--text", "a.txt", "--dtype", "int8"], "int8 holds up to 127"),
        (["x.rox", "--text", "a.txt", "--tokenizer", "no"], "tokenizer 'no': no such"),
        (["x.rox", "--text", "a.txt", "--max_shard_bytes", "1XB"], "is no size"),
        (["x.rox", "--text", "a.txt", "--resume", "--append"], "not allowed with"),
        (["x.rox", "--text", "a.txt", "--recursive"], "unrecognized arguments"),
        (["x.rox", "--text", "a.txt", "--unit", "word"], "unit is 'word'"),
        (["x.rox", "--arrays", "ids.npy", "--tokenizer", "bytes"], "holds id 300"),
        (["x.rox", "--arrays", "ids.npy", "--separator", "x"], "give its id"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_exit_2(args, match, here, capsys):
    before = sorted(os.listdir())
    try:
        code = rox.main(["build", *args])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    complaints = [line for line in err.splitlines() if " | " not in line]
    assert len(complaints) == 1  # the rest is progress
    assert match in complaints[0]
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7", 7),
        ("1GiB", 1 << 30),
        ("1.5kB", 1500),
        ("2e6", 2_000_000),
        ("3 mb", 3 * 10**6),
    ],
)
def test_sizes(text, size):
    from roxxel import rox_build

    assert rox_build._size(text) == size


# Stops for ever when it has handed on some of the documents.
STOPPED = """
import os, sys
from roxxel import rox
from roxxel.building import splits, text
text._PART_BYTES = 1 << 20  # not that of the others: it does not matter
count, calls = splits._count, [0]
def stop(*arguments):
    calls[0] += 1
    if calls[0] == 7:
        print("middle", flush=True)
        sys.stdin.readline()
    count(*arguments)
splits._count = stop
sys.exit(rox.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_build_is_resumed_to_the_same_bytes(
    processes, here, capsys, monkeypatch, repo_root
):
    rng = np.random.default_rng(0)
    (here / "many").mkdir()
    for i in range(10):  # more than a batch, a part and a buffer of the writer each
        text = rng.integers(97, 123, 5 << 19, np.uint8).tobytes()
        (here / "many" / f"{i}.txt").write_bytes(text)
    args = ["--text", "many/*.txt", "--max_shard_bytes", "1MB", "--heldout", "0.2"]
    args += ["--processes", str(processes)]
    from roxxel.building import text as sources

    assert build(capsys, "good/x_*.rox", *args)[0] == 0
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, "build", "cut/x_*.rox", *args],
        env=os.environ | {"PYTHONPATH": str(repo_root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "middle\n"
        process.send_signal(signal.SIGKILL)
    left = sorted(os.listdir("cut"))
    kept = {p: os.stat(f"cut/{p}").st_mtime_ns for p in left if p.startswith("x_")}
    assert kept
    assert len(kept) < len(os.listdir("good"))
    assert build(capsys, "cut/x_*.rox", *args, "--resume")[0] == 0
    assert sorted(os.listdir("cut")) == sorted(os.listdir("good"))
    for name in os.listdir("good"):
        assert (here / "cut" / name).read_bytes() == (here / "good" / name).read_bytes()
    for name, written in kept.items():
        assert os.stat(f"cut/{name}").st_mtime_ns == written
    monkeypatch.setattr(sources, "_PART_BYTES", 0)  # it is not read any more
    assert "complete already" in build(capsys, "cut/x_*.rox", *args, "--resume")[1]


@pytest.mark.parametrize("option", [None, "--resume"])
def test_an_interrupted_build_can_go_on(option, here, capsys, monkeypatch):
    pathlib.Path("long.txt").write_bytes(bytes(range(97, 123)) * 100_000)
    args = ["i_*.rox", "--text", "long.txt", "--max_shard_bytes", "100kB"]
    calls = itertools.count(1)

    def sync(path, really=publish.sync_directory):
        really(path)
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "sync_directory", sync)
        code, _, err = build(capsys, *args, *filter(None, [option]))
    assert code == 130
    left = sorted(name for name in os.listdir() if "i_" in name)
    assert left == (["i_0000.rox", "i_0001.rox", "i_0002.rox"] if option else [])
    assert ("--resume goes on" if option else "nothing half-built") in err
    assert build(capsys, *args, *filter(None, [option]))[0] == 0
    assert Roxxel("i_*.rox").is_complete


@pytest.mark.parametrize("output", ["/proc/x.rox", "/proc/n/x_*.rox", "a.txt/x.rox"])
def test_a_place_that_cannot_be_written_is_named(output, here, capsys):
    code, _, err = build(capsys, output, "--text", "a.txt")
    assert code == 2
    assert err.startswith(f"roxxel.rox: {output} cannot be written")
    assert len(err.splitlines()) == 1
    assert "tmp" not in err.replace(output, "")


def test_a_foreign_file_is_no_unfinished_write(here, capsys):
    pathlib.Path("x_0000.rox").write_text("my notes")
    code, _, err = build(capsys, "x_*.rox", "--text", "a.txt")
    assert code == 2
    assert "x_0000.rox is there and is no whole .rox file" in err
    assert err.rstrip().endswith("give --overwrite, or move it away.")
    assert pathlib.Path("x_0000.rox").read_text() == "my notes"
