"""Data set builders: exact text in, the same bytes out, built once."""

import bz2
import codecs
import gzip
import hashlib
import json
import lzma
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import sysconfig

import pytest

from roxxel import builders
from roxxel.building import cache, encode
from roxxel.errors import ConfigError

ROOT = str(pathlib.Path(__file__).parent.parent)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROXXEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def cached(tmp_path):
    """Names of what is in the cache, locks aside."""

    def names() -> list[str]:
        found = os.listdir(tmp_path / "cache")
        return sorted(name for name in found if not name.endswith(".lock"))

    return names


def content(data_set, last: bytes = b"\0") -> bytes:
    """All bytes but the separator `last` behind the last document."""
    with data_set as opened:
        assert str(opened.dtype) == "uint8"
        raw = opened.elements(0, opened.num_elements).tobytes()
    assert raw.endswith(last)
    return raw[: len(raw) - len(last)]


def write(path: pathlib.Path, text: str | bytes) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def write_jsonl(path: pathlib.Path, items) -> pathlib.Path:
    return write(path, "".join(json.dumps(item) + "\n" for item in items))


def test_library_sources_are_the_documented_corpus():
    """Followed from the rule's text, independently of the builder."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    sides = {"train": [], "heldout": []}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if skipped & set(relative.parts[:-1]) or relative.parts[0] == "encodings":
            continue
        if path.name.startswith("_sysconfigdata"):
            continue
        digest = hashlib.sha256(relative.as_posix().encode()).hexdigest()
        is_heldout = int(digest[:8], 16) % 20 == 0
        sides["heldout" if is_heldout else "train"].append(path.read_bytes())
    for split, files in sides.items():
        text = content(builders.python_library_sources(split), b"")
        assert text == b"\0".join(files)
        text.decode("utf-8")
        if platform.python_version() == "3.11.7":
            expected = {"train": (578, 10_158_709), "heldout": (33, 508_969)}
            assert (len(files), len(text)) == expected[split]


def test_library_sources_are_built_once_for_both_splits(cached, capfd):
    train = builders.python_library_sources("train")
    assert "files" in capfd.readouterr().err  # the progress bar
    shards = [(path, os.stat(path).st_ino) for path in train.shards]
    heldout = builders.python_library_sources("heldout")
    again = builders.python_library_sources()
    assert capfd.readouterr().err == ""
    assert [(path, os.stat(path).st_ino) for path in again.shards] == shards
    assert len(cached()) == 1
    assert train.metadata["python"] == platform.python_version()
    assert train.metadata["split"] == "train"
    assert heldout.metadata["split"] == "heldout"
    assert train.fingerprint() == again.fingerprint() != heldout.fingerprint()


def test_a_library_elsewhere_with_equal_files_has_the_same_fingerprint(tmp_path):
    texts = {f"part{i}/m{j}.py": f"x = {i}{j}\n" for i in range(9) for j in range(9)}
    texts |= {"part0/empty.py": "", "tests/test_a.py": "no", "encodings/b.py": "no"}
    fingerprints = []
    for name in ("here", "there"):
        for path, text in texts.items():
            write(tmp_path / name / path, text)
        made = builders.python_library_sources(
            root=tmp_path / name, cache_dir=tmp_path / f"cache-{name}"
        )
        fingerprints.append((made.fingerprint(), made.metadata["content_sha256"]))
        assert b"no" not in content(made, b"")
    assert fingerprints[0] == fingerprints[1]


def test_sources_in_another_coding_become_utf8(tmp_path):
    for i in range(30):
        write(
            tmp_path / f"m{i}.py", "# -*- coding: latin-1 -*-\n'é'\n".encode("latin-1")
        )
    made = builders.python_library_sources(root=tmp_path)
    assert "'é'" in content(made, b"").decode()


def test_a_python_without_sources_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no \*.py file under"):
        builders.python_library_sources(root=tmp_path)
    with pytest.raises(ConfigError, match="split is 'test', expected 'train' or"):
        builders.python_library_sources("test")


def test_files_are_documents_in_path_order_by_number(tmp_path):
    texts = {
        "a10.txt": "ten\r\n",
        "a2.txt": "two 日本 🚀",
        "b/c.txt": "deep",
        "d.txt": "",
    }
    for name, text in texts.items():
        write(tmp_path / "in" / name, text)
    made = builders.text_files(tmp_path / "in" / "**" / "*.txt")
    assert content(made) == "two 日本 🚀\0ten\r\n\0deep".encode()
    assert made.metadata["files"] == 4
    assert made.metadata["builder"] == "text_files"
    several = builders.text_files(
        [tmp_path / "in/d.txt", str(tmp_path / "in/a*.txt"), tmp_path / "in/a2.txt"],
        separator="<|end|>",
    )
    text = "two 日本 🚀<|end|>ten\r\n".encode()
    assert content(several, b"<|end|>") == text


def test_lines_are_documents_without_their_ends(tmp_path):
    write(tmp_path / "a.txt", "one\r\n\r\ntwo\n\nthree\u2028still three")
    write(tmp_path / "b.txt", "four\n")
    made = builders.text_files(tmp_path / "*.txt", unit="line", separator=b"\n")
    text = "one\ntwo\nthree\u2028still three\nfour".encode()
    assert content(made, b"\n") == text


@pytest.mark.parametrize("unit", ["file", "line"])
@pytest.mark.parametrize(
    ("encoding", "prefix"), [("latin-1", b""), ("utf-16", b""), ("utf-8-sig", b"")]
)
def test_other_encodings_become_utf8(encoding, prefix, unit, tmp_path):
    write(tmp_path / "a.txt", "naïve é".encode(encoding))
    made = builders.text_files(tmp_path / "a.txt", encoding=encoding, unit=unit)
    assert content(made) == "naïve é".encode()


def test_text_longer_than_a_read_keeps_its_characters(tmp_path):
    text = "x" + "日本🚀" * 300_000  # characters lie across the borders of reads
    write(tmp_path / "a.txt", text)
    assert content(builders.text_files(tmp_path / "a.txt")) == text.encode()


@pytest.mark.parametrize("unit", ["file", "line"])
@pytest.mark.parametrize("lines_before", [0, 2, 200_000])
def test_undecodable_text_names_file_and_line(lines_before, unit, tmp_path, cached):
    path = write(tmp_path / "a.txt", b"good line\n" * lines_before + b"bad \xff\n")
    where = re.escape(f"{path}:{lines_before + 1}: not utf-8 text")
    with pytest.raises(ConfigError, match=where):
        builders.text_files(path, unit=unit)
    assert cached() == []  # a failed build leaves nothing
    assert content(builders.text_files(path, unit=unit, errors="replace"))


def test_text_that_ends_within_a_character_is_named(tmp_path):
    path = write(tmp_path / "a.txt", "one\ntwo é".encode()[:-1])
    with pytest.raises(ConfigError, match=re.escape(f"{path}:2: not utf-8 text")):
        builders.text_files(path)


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_compressed_files(suffix, compress, tmp_path):
    packed = compress("zipped é\n".encode() * 1000)
    path = write(tmp_path / f"a.txt{suffix}", packed)
    made = builders.text_files(path, unit="line", separator="")
    assert content(made, b"") == "zipped é".encode() * 1000
    write(path, packed[:-20])
    with pytest.raises(ConfigError, match=re.escape(f"{path}: cannot be read")):
        builders.text_files(path)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"patterns": "nowhere/*.txt"}, r"no file matches /.*/nowhere/\*\.txt"),
        ({"patterns": []}, "no file pattern was given"),
        ({"patterns": "."}, "is a folder, expected files"),
        ({"unit": "word"}, "unit is 'word'"),
        ({"encoding": "utf-9"}, "encoding is 'utf-9'"),
        ({"encoding": "base64"}, "encoding is 'base64'"),
        ({"errors": "panic"}, "errors is 'panic'"),
        ({"split": "train"}, "heldout_fraction is 0"),
        ({"heldout_fraction": 0.1}, "split is None, expected 'train' or"),
        ({"heldout_fraction": 1.5, "split": "train"}, "heldout_fraction is 1.5"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_made(
    arguments, match, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", "text")
    with pytest.raises(ConfigError, match=match) as caught:
        builders.text_files(**{"patterns": "a.txt"} | arguments)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_with_wildcards_in_its_name_is_taken_literally(tmp_path):
    write(tmp_path / "a[1].txt", "literal")
    assert content(builders.text_files(tmp_path / "a[1].txt")) == b"literal"


def test_files_without_text_are_an_error(tmp_path):
    write(tmp_path / "a.txt", "")
    with pytest.raises(ConfigError, match="none of the 0 documents with text"):
        builders.text_files(tmp_path / "a.txt")


def test_a_split_divides_documents_by_content_in_one_build(tmp_path, cached):
    lines = [f"document {i}" for i in range(4000)]
    write(tmp_path / "a.txt", "\n".join(lines))
    options = {"unit": "line", "heldout_fraction": 0.1, "separator": "\n"}
    made = {
        split: builders.text_files(tmp_path / "a.txt", split=split, **options)
        for split in ("train", "heldout")
    }
    sides = {k: content(v, b"\n").decode().split("\n") for k, v in made.items()}
    assert 320 < len(sides["heldout"]) < 480
    assert sorted(sides["train"] + sides["heldout"]) == sorted(lines)
    assert sides["train"] == [line for line in lines if line in set(sides["train"])]
    assert len(cached()) == 1
    write(tmp_path / "b.txt", "\n".join(reversed(lines)))  # elsewhere, the same side
    other = builders.text_files(tmp_path / "b.txt", split="heldout", **options)
    assert content(other, b"\n").decode().split("\n") == sides["heldout"][::-1]


def test_an_empty_side_is_an_error_that_says_why(tmp_path):
    write(tmp_path / "a.txt", "one")
    options = {"patterns": tmp_path / "a.txt", "heldout_fraction": 1e-9}
    assert content(builders.text_files(split="train", **options)) == b"one"
    with pytest.raises(ConfigError, match=r"none of the 1 documents .* 'heldout'"):
        builders.text_files(split="heldout", **options)


def test_held_out_text_longer_than_a_read_is_whole(tmp_path):
    text = os.urandom(1_600_000).hex().encode()
    write(tmp_path / "a.txt", text)
    share = 1 - 2**-32
    made = builders.text_files(
        tmp_path / "a.txt", split="heldout", heldout_fraction=share
    )
    assert content(made) == text


def test_jsonl_takes_a_field(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "one\nmore"}, {"text": "é🚀"}])
    with open(path, "a") as file:
        file.write("\n   \n" + '{"id": 1, "text": "last", "raw": "r"}')
    assert content(builders.jsonl(path)) == "one\nmore\0é🚀\0last".encode()
    write(tmp_path / "b.jsonl", codecs.BOM_UTF8 + b'{"raw": "with a mark"}\r\n')
    made = builders.jsonl(tmp_path / "b.jsonl", field="raw")
    assert content(made) == b"with a mark"


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b'{"text": "a"', r"not valid JSON \(Expecting ',' delimiter, column 13\)"),
        (b'{"tekst": "a", "id": 1}', "no field 'text'; fields of this line: 'tekst', "),
        (b'{"text": 7}', "field 'text' is int, expected a string"),
        (b'{"text": null}', "field 'text' is NoneType"),
        (b'["text"]', "is a JSON list, expected an object"),
        (b'{"text": "\xff"}', "not UTF-8 text"),
        (b'{"text": "x \\ud800 y"}', "half of a surrogate pair"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named(line, match, tmp_path, cached):
    path = tmp_path / "a.jsonl"
    write(path, b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path}:3: ") + f".*{match}"):
        builders.jsonl(path)
    assert cached() == []


def test_changed_inputs_and_options_build_anew(tmp_path, cached):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "one", "b": "B"}])
    assert content(builders.jsonl(path)) == b"one"
    assert content(builders.jsonl(path)) == b"one"
    assert len(cached()) == 1
    assert content(builders.jsonl(path, field="b")) == b"B"
    write_jsonl(path, [{"text": "two", "b": "B"}])
    os.utime(path, ns=(1, 1))  # the same size: only the time tells
    first = builders.jsonl(path)
    assert content(first) == b"two"
    assert len(cached()) == 3


def test_the_default_cache_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("ROXXEL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "roxxel"
    assert cache.cache_folder("~/x") == tmp_path / "x"


def test_a_cache_that_is_a_file_is_a_config_error(tmp_path):
    path = write(tmp_path / "a.txt", "text")
    with pytest.raises(ConfigError, match=r"data cache .*a\.txt cannot be written to"):
        builders.text_files(path, cache_dir=path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_cache_is_a_config_error(tmp_path):
    path = write(tmp_path / "a.txt", "text")
    (tmp_path / "cache").mkdir(mode=0o555)
    with pytest.raises(ConfigError, match=r"\$ROXXEL_CACHE"):
        builders.text_files(path)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch, cached):
    path = write(tmp_path / "a.txt", "text")
    original = encode.pieces

    def slow_pieces(*args):
        yield from original(*args)
        write(path, "other text")

    monkeypatch.setattr(encode, "pieces", slow_pieces)
    with pytest.raises(ConfigError, match="changed while it was read"):
        builders.text_files(path)
    assert cached() == []


def test_a_cache_without_locks_keeps_the_first(tmp_path, monkeypatch):
    """Two hosts on a network file system finish the same data set."""
    import fcntl

    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)

    def build(folder: pathlib.Path) -> dict:
        if not (tmp_path / "cache" / name).exists():
            (tmp_path / "cache" / name).mkdir()
            (tmp_path / "cache" / name / cache.INFO_FILE).write_text('{"by": "them"}')
        return {"by": "us"}

    name = f"x-{cache.fingerprint('key')}"
    folder, info = cache.find_or_build("x", "key", build)
    assert info == {"by": "them"}
    assert folder == tmp_path / "cache" / name
    assert not list((tmp_path / "cache").glob(".*building*"))


# Builds a JSONL file, says when it is in the middle, and waits there for a line.
SLOW_BUILD = """
import sys
from roxxel import builders
from roxxel.building import documents
parse = documents._parse
count = 0
def slow(*arguments):
    global count
    count += 1
    if count == 2 and len(sys.argv) > 2:
        print("middle", flush=True)
        sys.stdin.readline()
    return parse(*arguments)
documents._parse = slow
with builders.jsonl(sys.argv[1]) as data_set:
    print("read", count, data_set.num_elements, flush=True)
"""


def start_build(path, *arguments) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_BUILD, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ROOT},
        text=True,
    )


def test_two_processes_at_once_build_once(tmp_path, cached):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "abc"}] * 4)
    first = start_build(path, "pause")
    assert first.stdout.readline() == "middle\n"
    second = start_build(path)
    waiting = second.stderr.readline()
    assert "another process builds it; waiting" in waiting
    first.stdin.write("go on\n")
    first.stdin.close()
    assert first.stdout.readline() == "read 4 16\n"
    assert second.stdout.readline() == "read 0 16\n"
    for process in (first, second):
        assert process.wait() == 0
        process.stdout.close()
        process.stderr.close()
    second.stdin.close()
    assert len(cached()) == 1


def test_a_killed_build_leaves_nothing_usable_and_the_next_succeeds(tmp_path, cached):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "abc"}] * 4)
    for _ in range(2):
        process = start_build(path, "pause")
        assert process.stdout.readline() == "middle\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert [name[: len(".jsonl-")] for name in cached()] == [".jsonl-"]
    assert content(builders.jsonl(path)) == b"abc\0abc\0abc\0abc"
    assert [name[: len("jsonl-")] for name in cached()] == ["jsonl-"]
