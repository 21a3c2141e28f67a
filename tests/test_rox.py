"""`python -m roxxel.rox info|verify|head`."""

import json
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

from roxxel import Roxxel, rox


@pytest.fixture
def tokens(tmp_path):
    Roxxel(tmp_path / "t_*.rox").write(
        [np.arange(40, dtype=np.uint16)],
        block_size=32,
        max_shard_bytes=1,
        separator=9,
        metadata={"tokenizer": "bytes"},
    )
    return tmp_path / "t_*.rox"


def run(capsys, *args):
    code = rox.main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_info_shows_what_is_there(capsys, tokens):
    code, out, err = run(capsys, "info", tokens)
    assert (code, err) == (0, "")
    facts = dict(line.split(None, 1) for line in out.splitlines()[1:])
    assert facts["shards"] == "3"
    assert facts["records"] == "3"
    assert facts["elements"] == "41"
    assert facts["dtype"] == "uint16"
    assert facts["block_bytes"] == "32"
    assert json.loads(facts["separator"]) == [9]
    assert json.loads(facts["metadata"]) == {"tokenizer": "bytes"}
    assert facts["complete"] == "true"
    assert "t_0002.rox: 1 records, 9 elements" in out


def test_head_shows_the_first_elements(capsys, tokens, tmp_path):
    code, out, _ = run(capsys, "head", tokens, "-n", "18", "--start", "1")
    assert code == 0
    assert out == f"{' '.join(map(str, range(1, 17)))}\n17 18\n"
    assert run(capsys, "head", tokens, "--start", "99")[:2] == (0, "")
    Roxxel(tmp_path / "text.rox").write(["h\u00e9llo", "world"], separator=0)
    _, out, _ = run(capsys, "head", "--text", tmp_path / "text.rox")
    assert out == "h\u00e9llo\nworld\n\n"
    code, _, err = run(capsys, "head", "--text", tokens)
    assert code == 2
    assert "holds uint16, --text needs uint8" in err


def test_verify_passes_good_files_of_all_writers(capsys, tokens, repo_root):
    old = sorted((repo_root / "tests" / "data").glob("*.rox"))
    code, out, err = run(capsys, "verify", tokens, *old)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1 + len(old)
    assert "t_*.rox: 3 shards, 0 faults" in out


def damage(path, at, raw):
    content = bytearray(path.read_bytes())
    content[at : at + len(raw)] = raw
    path.write_bytes(content)


def test_verify_names_every_fault(capsys, tmp_path):
    Roxxel(tmp_path / "d_*.rox").write(
        [np.arange(200, dtype=np.int32)], block_size=40, max_shard_bytes=600
    )
    first, *_, last = sorted(tmp_path.iterdir())
    records = len(Roxxel(first))
    assert records > 1
    damage(first, records * 40, struct.pack("<q", 41))  # an offset within the index
    damage(last, last.stat().st_size - 8, b"XXXXXXXX")
    code, out, err = run(capsys, "verify", tmp_path / "d_*.rox")
    assert (code, err) == (1, "")
    faults = [line for line in out.splitlines() if line.startswith("FAULT")]
    assert len(faults) == 2
    assert f"{first}: its index gives record 0 41 bytes, expected 40" in faults[0]
    assert str(last) in faults[1]
    assert out.endswith("2 faults\n")


def faults_of(capsys, path):
    code, out, err = run(capsys, "verify", path)
    *faults, last = out.splitlines()
    assert (code, err) == (1 if faults else 0, "")
    assert f"{len(faults)} faults" in last
    return [fault.removeprefix("FAULT ") for fault in faults]


def test_verify_names_shard_block_and_bytes_of_what_is_damaged(capsys, tmp_path):
    path = tmp_path / "p_*.rox"
    data = Roxxel(path).write(
        [np.arange(30_000, dtype=np.int32)], block_size=4096, max_shard_bytes=50_000
    )
    assert len(data.shards) == 3
    damage(tmp_path / "p_0001.rox", 3 * 4096 + 5, b"\xff")
    damage(tmp_path / "p_0001.rox", 6 * 4096 - 2, b"abcd")  # over a border
    damage(tmp_path / "p_0002.rox", 30_000 * 4 - 2 * 12 * 4096 - 1, b"x")
    words = "of the file, do not match their checksums: damaged since they were written"
    assert faults_of(capsys, path) == [
        f"{tmp_path}/p_0001.rox: block 3, bytes 12288 to 16384 {words}",
        f"{tmp_path}/p_0001.rox: blocks 5 to 6, bytes 20480 to 28672 {words}",
        f"{tmp_path}/p_0002.rox: block 5, bytes 20480 to 24576 {words}",
    ]


@pytest.mark.parametrize("block", [1, 48, 4096, 10_000])
def test_verify_finds_any_wrong_byte(capsys, tmp_path, block):
    path = tmp_path / "a.rox"
    size = 25_000
    Roxxel(path).write([np.arange(size).astype(np.uint8)], block_size=block)
    good = path.read_bytes()
    end = size + -size % block  # with padding
    rng = np.random.default_rng(0)
    for at in [0, end - 1, *rng.integers(0, end, 10).tolist()]:
        content = bytearray(good)
        content[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        (fault,) = faults_of(capsys, path)
        begin, stop = fault.split("bytes ")[1].split(" of")[0].split(" to ")
        assert int(begin) <= at < int(stop) <= end
        assert int(stop) - int(begin) <= max(block, 4096)
        assert f" {at // block}" in fault or "blocks" in fault


def test_verify_names_damaged_checksums(capsys, tmp_path):
    path = tmp_path / "a.rox"
    Roxxel(path).write([np.arange(5000, dtype=np.int32)])
    damage(path, 5 * (4096 + 8) + 1, b"\x99")
    (fault,) = faults_of(capsys, path)
    assert "a.rox: its checksums, bytes 20520 to 20540 of the file, are" in fault


def test_verify_looks_at_padding_and_at_missing_shards(capsys, tmp_path, repo_root):
    path = tmp_path / "p_*.rox"
    data = Roxxel(path).write([[1, 2, 3]] * 9, block_size=16, max_shard_bytes=1)
    damage(tmp_path / "p_0006.rox", 12, b"\1")  # behind the last of 27 elements
    assert "p_0006.rox: block 0, bytes 0 to 16" in faults_of(capsys, path)[0]
    assert len(data.shards) == 7
    (tmp_path / "p_0006.rox").unlink()
    code, out, _ = run(capsys, "verify", path)
    assert code == 1
    assert "the write of these shards did not finish" in out


def test_verify_of_files_without_checksums_looks_at_padding(capsys, tmp_path):
    path = tmp_path / "a.rox"
    body = b'{"block_bytes":16,"dtype":"int32","elements":3}'
    trailer = (len(body) + 32, len(body), zlib.crc32(body), 1, b"ROXXEXT\0")
    tail = struct.pack("<q", 16) + body + struct.pack("<qqIi8s", *trailer)
    tail += struct.pack("<qq8s8s", 1, 16, b"int32", b"ROXXEL02")
    path.write_bytes(bytes(16) + tail)
    assert "0 faults (1 without checksums)" in run(capsys, "verify", path)[1]
    damage(path, 12, b"\1")
    (fault,) = faults_of(capsys, path)
    assert "a.rox: its last 4 payload bytes are not all the padding 0" in fault


@pytest.mark.parametrize("command", ["info", "verify", "head"])
def test_a_bad_path_is_one_line_and_exit_2(capsys, tmp_path, command):
    foreign = tmp_path / "notes.rox"
    foreign.write_text("no shard")
    for path in [tmp_path / "none.rox", tmp_path / "none_*.rox", foreign]:
        code, out, err = run(capsys, command, path)
        if path == foreign and command == "verify":
            assert code == 1  # it is there, and wrong
            continue
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert str(path) in err


def test_the_command_line_runs_as_a_module(run_python, tokens):
    done = run_python("-m", "roxxel.rox", "head", tokens, "-n", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1 2\n", "")
    done = run_python("-m", "roxxel.rox", "show", tokens)
    assert done.returncode == 2
    assert "invalid choice: 'show'" in done.stderr
    done = run_python("-m", "roxxel.rox", "head", tokens, "-n", "-3")
    assert done.returncode == 2


def test_output_comes_first_and_says_so(capsys):
    with pytest.raises(SystemExit) as error:
        rox.main(["build", "--jsonl", "a.jsonl", "out_*.rox"])
    assert error.value.code == 2
    assert "OUTPUT comes first: build OUTPUT --jsonl" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path, repo_root):
    Roxxel(tmp_path / "a.rox").write([np.arange(200_000, dtype=np.int32)])
    command = f"'{sys.executable}' -m roxxel.rox head -n 200000 a.rox | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(repo_root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
