"""The build engine: the same bytes from any number of processes, or a clear error."""

import gzip
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from roxxel import Roxxel, builders, tokenizers
from roxxel.building import encode, engine, lines, recipe, text, workers
from roxxel.errors import ConfigError
from roxxel.tokenizers.bytes import Bytes
from tests import build_parts as toys
from tests import tiny_tokenizers as tiny


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROXXEL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def small_parts(monkeypatch):
    """Files of a few hundred bytes are split as those of many MB are."""
    monkeypatch.setattr(text, "_PART_BYTES", 256)


def elements(data: Roxxel) -> list[int]:
    with data as opened:
        return opened.elements(0, opened.num_elements).tolist()


def toy(*lists) -> toys.Source:
    return toys.Source([list(items) for items in lists])


def texts(count: int) -> list[str]:
    return [f"document {i}: naïve 日本 🚀 {'x' * (i % 50)}" for i in range(count)]


def write_jsonl(path, documents) -> str:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in documents))
    return str(path)


def files_of(pattern) -> list[bytes]:
    return [open(path, "rb").read() for path in Roxxel(pattern).shards]


@pytest.mark.parametrize("kind", ["bytes", "tokenizer"])
def test_output_does_not_depend_on_processes(kind, tmp_path, small_parts):
    write_jsonl(tmp_path / "a.jsonl", texts(200))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "packed"}\n' * 99))
    spec = "bytes" if kind == "bytes" else tiny.write_hugging_face(tmp_path)
    source = text.JsonSource(str(tmp_path / "*.jsonl*"))
    assert len(source.parts()) > 20
    made = []
    for processes in (1, 2, 3):
        folder = tmp_path / f"p{processes}"
        engine.build(
            source,
            tokenizer=spec,
            heldout_fraction=0.2,
            output=folder / "x_*.rox",
            processes=processes,
            max_shard_bytes=9000,
        )
        sides = {
            side: files_of(folder / f"x_{side}_*.rox") for side in ("train", "heldout")
        }
        assert len(os.listdir(folder)) == sum(map(len, sides.values()))  # no spool
        made.append(sides)
    assert made[0] == made[1] == made[2]
    assert len(made[0]["train"]) > 1
    heldout = Roxxel(tmp_path / "p2/x_heldout_*.rox")
    told = heldout.metadata.get("bytes_per_token")
    if kind == "bytes":
        assert told is None
    else:
        ids = np.array(elements(heldout))
        loaded = tokenizers.load(spec)
        text_only = loaded.decode(ids[ids != loaded.separator_id])
        assert told == len(text_only.encode()) / ids.size > 1


CONTENTS = {
    "plain": b"one\ntwo\n\nthree\n",
    "no final newline": b"one\ntwo",
    "windows": b"one\r\ntwo\r\n\r\nthree\r\n",
    "old mac": b"one\rtwo\r\rthree",
    "mixed": b"a\n\rb\r\r\nc\n\n\nd\r",
    "characters": "é日本🚀\n🚀🚀\n\nñ\n".encode(),
    "long": b"x" * 50 + b"\n" + b"y" * 3 + b"\n" + b"z" * 40,
    "blank": b"\n\n\n",
    "one": b"a",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_ranges_of_a_file_give_its_lines(content, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    expected = [line.encode() for line in path.read_text("utf-8").split("\n")]
    expected = [line for line in expected if line]
    for size in range(1, len(content) + 2):
        monkeypatch.setattr(text, "_PART_BYTES", size)
        for block in (1, 2, 7, 1 << 20):
            monkeypatch.setattr(lines, "BLOCK_BYTES", block)
            parts = text.TextSource(path, unit="line").parts()
            found = [d for part in parts for d in part.documents() if d]
            assert found == expected
            assert sum(part.size for part in parts) == len(content)


def test_ranges_of_json_lines_give_its_objects(tmp_path, monkeypatch):
    documents = texts(30)
    path = tmp_path / "a.jsonl"
    raw = [json.dumps({"text": t}, ensure_ascii=False) for t in documents]
    path.write_text("\r\n".join(raw) + "\n \n\n" + '{"text": "end"}', newline="")
    for size in (1, 2, 50, 51, 52, 53, 200, 1000):
        monkeypatch.setattr(text, "_PART_BYTES", size)
        parts = text.JsonSource(path).parts()
        found = [d.decode() for part in parts for d in part.documents()]
        assert found == [*documents, "end"]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_a_range_names_the_line_of_the_file(
    processes, tmp_path, small_parts
):
    path = tmp_path / "a.jsonl"
    good = b'{"text": "%s"}\n' % (b"x" * 90)
    path.write_bytes(good * 30 + b'{"text": 7}\n' + good * 30 + b"{\n")
    match = f"{path}:31: field 'text' is int, expected a string"
    with pytest.raises(ConfigError, match=match):  # the first, whoever finds another
        builders.jsonl(path, processes=processes)
    path.write_bytes(b"good line of a text file\n" * 60 + b"bad \xff\n")
    with pytest.raises(ConfigError, match=f"{path}:61: not utf-8 text"):
        builders.text_files(path, unit="line", processes=processes)


def test_the_cache_does_not_depend_on_processes(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", texts(5))
    first = builders.jsonl(path, processes=2).shards
    assert builders.jsonl(path).shards == first
    other = builders.jsonl(path, tokenizer=tiny.write_hugging_face(tmp_path))
    assert other.shards != first
    assert str(other.dtype) == "uint16"


def test_tokens_are_those_of_the_tokenizer_and_its_end(tmp_path):
    documents = [*texts(3), "", f"text with {tiny.END} in it"]
    spec = str(tiny.write_hugging_face(tmp_path))
    data = engine.build(toy(documents[:2], documents[2:]), tokenizer=spec)
    loaded = tokenizers.load(data.metadata["tokenizer"]["spec"])
    assert data.metadata["tokenizer"] == tokenizers.describe(loaded)
    expected = []
    for document in filter(None, documents):
        expected += [*loaded.encode(document).tolist(), loaded.separator_id]
    assert elements(data) == expected
    assert expected.count(loaded.separator_id) == 4


def test_sides_are_the_same_with_any_tokenizer_and_order(tmp_path):
    documents = texts(400)
    sides = {}
    for spec in ("bytes", tiny.write_tiktoken(tmp_path / "gpt2.tiktoken")):
        for order in (documents, documents[::-1]):
            for split in ("train", "heldout"):
                data = engine.build(
                    toy(order), tokenizer=spec, split=split, heldout_fraction=0.1
                )
                loaded = tokenizers.load(spec)
                end = loaded.separator_id
                ids = np.array(elements(data))
                rows = np.split(ids, np.flatnonzero(ids == end) + 1)[:-1]
                decoded = sorted(loaded.decode(row[:-1]) for row in rows)
                assert sides.setdefault(split, decoded) == decoded
    assert sorted(sides["train"] + sides["heldout"]) == sorted(documents)
    assert 15 < len(sides["heldout"]) < 80


class Sized:
    """A tokenizer of a vocabulary of any size."""

    name = "sized"

    def __init__(self, vocab_size, ids=(0,)):
        self.vocab_size = vocab_size
        self.ids = list(ids)

    def encode(self, text):
        return self.ids

    def decode(self, ids):
        return ""

    def fingerprint(self):
        return f"{self.vocab_size}"


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [
        (1, "uint8"),
        (256, "uint8"),
        (257, "uint16"),
        (65_536, "uint16"),
        (65_537, "int32"),
        (2**31, "int32"),
        (2**31 + 1, "uint32"),
    ],
)
def test_the_dtype_is_the_smallest_that_holds_the_vocabulary(vocab_size, dtype):
    last = vocab_size - 1
    data = engine.build(toy(["a"]), tokenizer=Sized(vocab_size, [last, 0]))
    assert str(data.dtype) == dtype
    assert elements(data) == [last, 0]


def test_a_dtype_that_holds_it_is_kept_and_another_refused():
    data = engine.build(toy(["ab"]), dtype="int32")
    assert (str(data.dtype), elements(data)) == ("int32", [97, 98, 0])
    for wrong, match in [
        ("int8", "dtype int8 holds up to 127, the ids of bytes need 255: give dtype="),
        ("float32", "dtype is float32, expected integers"),
        ("word", "dtype 'word' is unknown"),
    ]:
        with pytest.raises(ConfigError, match=match):
            engine.build(toy(["ab"]), dtype=wrong)
    with pytest.raises(ConfigError, match=r"sized gave id 300, .* 256 and dtype uint8"):
        engine.build(toy(["ab"]), tokenizer=Sized(256, [300]))


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        (None, [97, 0, 98, 99, 0]),
        ("", [97, 98, 99]),
        ([], [97, 98, 99]),
        ("\n", [97, 10, 98, 99, 10]),
        (7, [97, 7, 98, 99, 7]),
        ([1, 2], [97, 1, 2, 98, 99, 1, 2]),
        (b"<>", [97, 60, 62, 98, 99, 60, 62]),
        (256, [97, 256, 98, 99, 256]),
        ([1, 999], [97, 1, 999, 98, 99, 1, 999]),
    ],
)
def test_separators_of_bytes(separator, expected):
    data = engine.build(toy(["a"], ["", "bc"], [""]), separator=separator)
    assert elements(data) == expected
    assert str(data.dtype) == ("uint8" if max(expected) < 256 else "uint16")


def test_separators_of_tokens(tmp_path):
    spec = tiny.write_hugging_face(tmp_path)
    end = tokenizers.load(spec).token_id(tiny.END)
    for separator in (None, tiny.END, end):
        assert elements(engine.build(toy(["a"]), tokenizer=spec, separator=separator))[
            1:
        ] == [end]
    for wrong, match in [
        ("<|nothing|>", "'<|nothing|>' is no token of"),
        (-1, "expected ids of 0 or more"),
        (0.5, "expected ids of 0 or more"),
    ]:
        with pytest.raises(ConfigError, match=match.replace("|", r"\|")):
            engine.build(toy(["a"]), tokenizer=spec, separator=wrong)
    with pytest.raises(ConfigError, match="the documents are token ids: give its id"):
        engine.build(toy([[1, 2]]), separator="x")
    no_end = engine.build(toy(["a", "b"]), tokenizer=Sized(9, [3]))
    assert elements(no_end) == [3, 3]


def test_a_special_separator_of_bytes_is_filled_in():
    """Against documents joined one by one."""
    rng = np.random.default_rng(0)
    for separator in ([256], [300, 1], [1, 2, 999]):
        raw = [bytes(rng.integers(0, 256, n).tolist()) for n in (3, 1, 7, 1)]
        joined = Bytes().encode_joined(raw, np.array(separator, np.uint16))
        expected = [x for r in raw for x in [*r, *separator]][: -len(separator)]
        assert joined.tolist() == expected


def test_token_ids_keep_their_dtype_and_are_checked(tmp_path):
    arrays = [toys.numbers(1, 2, dtype="uint16"), toys.numbers(dtype="uint16")]
    arrays.append(toys.numbers(65535, dtype="uint16"))
    data = engine.build(toy(arrays[:1], arrays[1:]), separator=9)
    assert (str(data.dtype), elements(data)) == ("uint16", [1, 2, 9, 65535, 9])
    assert "tokenizer" not in data.metadata
    named = engine.build(toy([[5, 6]]), tokenizer="bytes")
    assert (str(named.dtype), elements(named)) == ("uint8", [5, 6])
    assert named.metadata["tokenizer"]["name"] == "bytes"
    big = toys.numbers(3, dtype=">u4")
    assert str(engine.build(toy([big])).dtype) == "uint32"
    for documents, options, match in [
        (
            [arrays[0], [70_000]],
            {},
            "toy: document 1 of part0: holds 70000, which does",
        ),
        (
            [[1], [256]],
            {"tokenizer": "bytes"},
            "document 1 of part0: holds id 256, bytes has",
        ),
        ([[1], [-1]], {"tokenizer": "bytes", "dtype": "int32"}, "holds id -1, bytes"),
        ([[1], "text"], {}, "document 1 of part0: is text, the documents before are"),
        (["text", [1]], {}, "document 1 of part0: is list, the documents before are"),
        ([[1.5]], {}, "documents are float64, expected text or integers"),
        ([[1], [1.5]], {}, "document 1 of part0: holds float64, expected integers"),
    ]:
        with pytest.raises(ConfigError, match=match):
            engine.build(toy(documents), **options)


def test_half_a_character_is_named(tmp_path):
    documents = ["fine", "日本語 🚀", "bad \ud800 tail"]
    for processes in (1, 2):
        with pytest.raises(ConfigError, match=r"document 2 of part0: character 4 is"):
            engine.build(toy(documents, ["x"]), processes=processes)
    broken = b"\xe6\x97"  # bytes are kept as they are, ids need text
    assert elements(engine.build(toy([broken]))) == [0xE6, 0x97, 0]


def test_characters_across_blocks_come_back(tmp_path):
    document = "日本🚀" * 1000
    data = engine.build(toy([document, document]), output=tmp_path / "a_*.rox")
    with data:
        raw = data.elements(0, data.num_elements).tobytes()
    assert raw.decode().split("\0") == [document, document, ""]


def test_no_document_is_an_error_and_nothing_is_made(tmp_path):
    for lists in ([], [[]], [["", ""], [""]]):
        for processes in (1, 2):
            with pytest.raises(ConfigError, match="none of the 0 documents with text"):
                engine.build(
                    toy(*lists), output=tmp_path / "a.rox", processes=processes
                )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"processes": 0}, "processes is 0, expected a number of at least 1"),
        ({"processes": 1.5}, "processes is 1.5"),
        ({"heldout_fraction": 1.0}, "heldout_fraction is 1.0, expected 0 to below 1"),
        ({"split": "train"}, "heldout_fraction is 0"),
        ({"heldout_fraction": 0.1}, "split is None, expected 'train' or"),
        ({"resume": True}, "go with output="),
        ({"mode": "append"}, "go with output="),
        ({"output": "a.txt"}, "must end in '.rox'"),
        ({"output": "a.rox", "mode": "maybe"}, "mode must be one of"),
        ({"tokenizer": "nothing"}, "tokenizer 'nothing': no such file"),
    ],
)
def test_wrong_options_are_named(options, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=match):
        engine.build(toy(["a"]), **options)
    assert os.listdir(tmp_path) == []


def test_a_resumed_build_of_something_else_is_refused(tmp_path):
    where = {"output": tmp_path / "a_*.rox", "resume": True}
    engine.build(toy(["a"]), **where)
    engine.build(toy(["a"]), **where)
    with pytest.raises(ConfigError, match="was built with tokenizer"):
        engine.build(toy(["a"]), tokenizer=Bytes(["<end>"]), **where)


def test_a_resumed_build_makes_the_side_that_is_missing(tmp_path):
    source = toy(texts(100))
    where = {"output": tmp_path / "a_*.rox", "heldout_fraction": 0.2}
    engine.build(source, **where)
    train, heldout = sorted(tmp_path.iterdir(), reverse=True)
    content = heldout.read_bytes()
    heldout.unlink()
    written = train.stat().st_mtime_ns
    engine.build(source, **where, resume=True)
    assert heldout.read_bytes() == content
    assert train.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("action", "error", "match"),
    [
        (toys.raise_plain, toys.PlainError, "row 7 of file.x"),
        (toys.raise_odd, RuntimeError, "OddError: 1 and 2"),  # survives no pickling
        (toys.die, RuntimeError, "toy: a worker process was killed by SIGKILL reading"),
        (toys.leave, RuntimeError, "a worker process ended with exit code 7 reading"),
    ],
)
def test_what_goes_wrong_in_a_worker_reaches_the_caller(action, error, match, tmp_path):
    source = toy(["a"], ["b", action], ["c"] * 3)
    with pytest.raises(error, match=match) as caught:
        engine.build(source, output=tmp_path / "x_*.rox", processes=2, separator=0)
    assert type(caught.value) is error
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_sent_to_a_worker_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"toy: .* cannot be sent .*processes=1"):
        engine.build(toy(["a", lambda: "b"]), processes=2)


def test_parts_wait_for_their_turn_within_bounds(tmp_path, monkeypatch):
    """Workers run ahead a few parts, not through the whole source."""
    seen = []
    take = workers._Crew._take

    def spy(self, worker, number, news):
        take(self, worker, number, news)
        seen.append(len(self._results))

    monkeypatch.setattr(workers._Crew, "_take", spy)
    made = recipe.make(
        toy(["a"]), tokenizer=None, separator=None, dtype=None, heldout_fraction=0
    )
    parts = toy(*[[f"{i}"] for i in range(60)]).parts()
    amounts = []
    found = workers.pieces(parts, made, 2, tmp_path, amounts.append)
    pieces = [piece.kept.elements.tobytes().decode() for piece in found]
    assert pieces == [f"{i}" for i in range(60)]
    assert max(seen) <= 2 * workers._AHEAD
    assert amounts == sorted(amounts)
    assert amounts[-1] == 60


def test_what_a_killed_build_left_is_removed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    import socket

    host = socket.gethostname().replace("-", "_").replace(".", "_")
    stale = tmp_path / f".spool-{host}-{child.pid}-abc"
    stale.mkdir()
    (stale / "0.kept").write_bytes(b"x")
    engine.build(toy(["a"]), output=tmp_path / "a.rox", processes=2)
    assert os.listdir(tmp_path) == ["a.rox"]


# No `if __name__ == "__main__"`: a worker that imported this would start it again.
UNGUARDED = """
import sys
from roxxel.building import engine
from roxxel.errors import ConfigError
from tests import build_parts
print("started", flush=True)
source = build_parts.Source([["a"], ["b"], ["c"]])
print(engine.build(source, output="a_*.rox", processes=2).num_elements)
class Mine(build_parts.Source):
    pass
class Part(build_parts.Part):
    pass
try:
    mine = Mine([["a"]])
    mine.parts = lambda: [Part(["x"])]
    engine.build(mine, output="b_*.rox", processes=2)
except ConfigError as err:
    print(err)
"""


def test_a_program_needs_no_guard(tmp_path, run_python):
    path = tmp_path / "program.py"
    path.write_text(UNGUARDED)
    done = run_python(path)
    started, count, error = done.stdout.splitlines()
    assert (started, count) == ("started", "6")
    assert "Can't get attribute 'Part'" in error
    assert "Define its classes in a module that can be imported" in error
    assert not list(tmp_path.glob("b*"))


INTERRUPTED = """
import sys
from roxxel.building import engine
from tests import build_parts
source = build_parts.Source([["a"]] * 3 + [[build_parts.wait]] * 2)
try:
    engine.build(source, output="a_*.rox", processes=2, separator=0)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_ends_its_workers(number, tmp_path, repo_root):
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "waiting")
    environment = {"PYTHONPATH": str(repo_root), "WAITING": str(tmp_path / "waiting")}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path / "out",
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process, open(tmp_path / "waiting") as waiting:
        pids = [int(waiting.readline()) for _ in range(2)]
        process.send_signal(number)
        out = process.stdout.read()
        assert waiting.read() == ""  # the last worker has closed its end
    assert len(set(pids)) == 2
    if number == signal.SIGINT:
        assert out == "interrupted\n"
        assert os.listdir(tmp_path / "out") == []
    engine.build(toy(["a"]), output=tmp_path / "out/a_*.rox", processes=2)
    assert os.listdir(tmp_path / "out") == ["a_0000.rox"]


def test_batches_of_documents_do_not_show(monkeypatch):
    documents = texts(50)
    whole = elements(engine.build(toy(documents)))
    monkeypatch.setattr(encode, "_BATCH_BYTES", 1)
    assert elements(engine.build(toy(documents[:20], documents[20:]))) == whole
