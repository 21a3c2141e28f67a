"""Parquet files and Hugging Face data sets as sources, and built from."""

import gzip
import importlib
import pathlib
import pickle
import resource
import sys

import numpy as np
import pytest

from roxxel.building import foreign, input_files
from roxxel.errors import ConfigError

pa = pytest.importorskip("pyarrow", reason="needs roxxel[parquet]")
datasets = pytest.importorskip("datasets", reason="needs roxxel[datasets]")
from pyarrow import parquet as pq  # noqa: E402

from roxxel.building.huggingface import HuggingFaceSource  # noqa: E402
from roxxel.building.parquet import ParquetSource  # noqa: E402

TEXTS = ["a", None, "", "日本語 \U0001f680", "e"]
ROWS = {
    "text": TEXTS,
    "ids": [[1, 2], None, [], [3], [4, 70000]],
    "meta": [
        {"t": "x", "in": {"u": "q"}},
        None,
        {"t": None, "in": None},
        {"t": "y", "in": {"u": "r"}},
        {"t": "z", "in": {"u": None}},
    ],
    "a.b": list("12345"),
    "score": [0.5] * 5,
}


def plain(source) -> list:
    """The documents of all parts, ids as lists."""
    return [
        document.tolist() if isinstance(document, np.ndarray) else _text(document)
        for part in source.parts()
        for document in part.documents()
    ]


def _text(document) -> str:
    return document.decode() if isinstance(document, bytes) else document


def elements(data) -> list[int]:
    return data.elements(0, data.num_elements).tolist()


@pytest.fixture
def parquet_file(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(ROWS), path, row_group_size=2)
    return path


@pytest.fixture
def dataset():
    return datasets.Dataset.from_dict(ROWS)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path_factory.mktemp("hf")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    datasets.disable_progress_bars()


COLUMNS = {
    "text": ["a", "", "", "日本語 \U0001f680", "e"],
    "ids": [[1, 2], [], [], [3], [4, 70000]],
    "meta.t": ["x", "", "", "y", "z"],
    "meta.in.u": ["q", "", "", "r", ""],
    "a.b": list("12345"),  # a name comes before a path
}


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_by_name_and_by_path(column, parquet_file, dataset):
    expected = COLUMNS[column]
    assert plain(ParquetSource(parquet_file, column=column)) == expected
    assert plain(HuggingFaceSource(dataset, column=column)) == expected
    order = [4, 0, 3, 1]
    picked = HuggingFaceSource(dataset.select(order), column=column)
    assert plain(picked) == [expected[i] for i in order]


STRINGS = ["p", "q", None, "p"]
LISTS = [[1, 2], [3, 4], None, [5, 6]]
KINDS = {
    "large": (pa.array(STRINGS, pa.large_string()), ["p", "q", "", "p"]),
    "view": (pa.array(STRINGS, pa.string_view()), ["p", "q", "", "p"]),
    "bytes": (pa.array([b"p", b"\xc3\xa9", None, b""]), ["p", "é", "", ""]),
    "coded": (pa.array(STRINGS).dictionary_encode(), ["p", "q", "", "p"]),
    "nothing": (pa.nulls(4), ["", "", "", ""]),
    "large lists": (pa.array(LISTS, pa.large_list(pa.uint16())), LISTS),
    "fixed lists": (pa.array(LISTS, pa.list_(pa.int16(), 2)), LISTS),
    "int8 lists": (pa.array([[-1], [], [127]], pa.list_(pa.int8())), [[-1], [], [127]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_types_of_columns(kind, tmp_path):
    column, expected = KINDS[kind]
    expected = [value if value is not None else [] for value in expected]
    pq.write_table(pa.table({"c": column}), tmp_path / "k.parquet")
    source = ParquetSource(tmp_path / "k.parquet", column="c")
    assert plain(source) == expected
    for document in source.parts()[0].documents():
        if isinstance(document, np.ndarray):
            assert document.dtype == column.type.value_type.to_pandas_dtype()


def test_parquet_parts_divide_the_rows_in_order(tmp_path):
    for number, rows in ((10, 3), (2, 4)):  # part 2 comes before part 10
        table = pa.table({"text": [f"{number}:{i}" for i in range(rows)]})
        pq.write_table(table, tmp_path / f"part{number}.parquet", row_group_size=1)
    (tmp_path / "deep").mkdir()
    pq.write_table(pa.table({"text": ["deep"]}), tmp_path / "deep" / "x.parquet")
    (tmp_path / "_SUCCESS").touch()
    source = ParquetSource(tmp_path)  # a folder, as other tools leave it
    two, ten = ([f"{n}:{i}" for i in range(k)] for n, k in ((2, 4), (10, 3)))
    assert plain(source) == ["deep", *two, *ten]
    parts = pickle.loads(pickle.dumps(source.parts()))
    assert [part.size for part in parts] == [1, 4, 3]
    assert len(pickle.dumps(parts[0])) < 1000


def test_large_row_groups_are_read_a_little_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("roxxel.building.parquet._PART_BYTES", 1 << 20)
    text = [f"{i:07}" * 150 for i in range(40_000)]  # 42 MB
    path = tmp_path / "big.parquet"
    pq.write_table(pa.table({"text": text}), path, row_group_size=10_000)
    del text
    source = ParquetSource(path)
    assert [(p.start, p.stop, p.first_row) for p in source.parts()] == [
        (0, 1, 0),
        (1, 2, 10_000),
        (2, 3, 20_000),
        (3, 4, 30_000),
    ]
    peak = pa.default_memory_pool().max_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(len(d) == 1050 for p in source.parts() for d in p.documents())
    assert count == 40_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64_000  # KB
    assert pa.default_memory_pool().max_memory() <= max(peak, 64 << 20)


WRONG_COLUMNS = {
    "nope": "no column 'nope'; columns there: 'text', 'ids', 'meta', 'a.b', 'score'",
    "meta.nope": "no column 'meta.nope'",
    "text.t": "no column 'text.t'",
    "meta": "column 'meta' is struct<.*>, expected text or lists of integers",
    "score": "column 'score' is double, expected text or lists of integers",
}


@pytest.mark.parametrize("column", WRONG_COLUMNS)
def test_a_wrong_column_is_named(column, parquet_file, dataset):
    message = WRONG_COLUMNS[column]
    with pytest.raises(ConfigError, match=rf"rows\.parquet: {message}") as info:
        ParquetSource(parquet_file, column=column).parts()
    assert "\n" not in str(info.value)
    with pytest.raises(ConfigError, match=f"data set: {message}"):
        HuggingFaceSource(dataset, column=column)


BAD_VALUES = {
    "bad bytes": (pa.array([b"ok", b"caf\xe9"]), "row 1 of column 'c': not UTF-8"),
    "bad text": (
        pa.array([b"ok", None, b"caf\xe9"]).view(pa.string()),
        "row 2 of column 'c': not UTF-8 text",
    ),
    "null ids": (
        pa.array([[1], [], None, [2, None], [3]]),
        "row 3 of column 'c': a token is null",
    ),
}


@pytest.mark.parametrize("kind", BAD_VALUES)
def test_a_bad_value_is_named_by_file_and_row(kind, tmp_path):
    column, message = BAD_VALUES[kind]
    good = column.slice(0, 1)
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"c": pa.concat_arrays([good, column])}), path)
    number = int(message.split()[1]) + 1  # one good row comes before
    message = f"{path}: row {number} {message.split(' ', 2)[2]}"
    with pytest.raises(ConfigError, match=message):
        plain(ParquetSource(path, column="c"))


def test_a_damaged_parquet_file_is_named(parquet_file):
    raw = parquet_file.read_bytes()
    for damaged in (b"", b"PAR1", raw[:-1], raw[: len(raw) // 2], b"no" * 500):
        parquet_file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"rows\.parquet: cannot be read as P"):
            ParquetSource(parquet_file).parts()
    table = pa.table({"text": ["x" * 1000 + str(i) for i in range(1000)]})
    pq.write_table(table, parquet_file, compression="zstd")
    raw = bytearray(parquet_file.read_bytes())
    raw[100:300] = bytes(200)
    parquet_file.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"rows\.parquet: cannot be read as P"):
        plain(ParquetSource(parquet_file))


def test_a_data_set_in_memory_is_sent_in_pieces(monkeypatch):
    monkeypatch.setattr("roxxel.building.tokens.PART_BYTES", 10_000)
    data = datasets.Dataset.from_dict({"text": [f"{i:0100}" for i in range(1000)]})
    source = HuggingFaceSource(data)
    parts = source.parts()
    assert len(parts) > 5
    sent = [pickle.dumps(part) for part in parts]
    assert sum(map(len, sent)) < 300_000
    back = [d for raw in sent for d in pickle.loads(raw).documents()]
    assert [d.decode() for d in back] == data["text"]


def test_a_mapped_data_set_is_sent_as_its_place(tmp_path):
    datasets.Dataset.from_dict({"text": ["x" * 100] * 5000}).save_to_disk(tmp_path)
    (part,) = HuggingFaceSource(tmp_path).parts()
    raw = pickle.dumps(part)
    assert len(raw) < 20_000
    assert len(list(pickle.loads(raw).documents())) == 5000


def test_the_fingerprint_is_the_key(dataset):
    again = datasets.Dataset.from_dict(ROWS)
    assert HuggingFaceSource(dataset).key() == HuggingFaceSource(again).key()
    other = dataset.select(range(4))
    assert HuggingFaceSource(dataset).key() != HuggingFaceSource(other).key()
    by_ids = HuggingFaceSource(dataset, column="ids")
    assert HuggingFaceSource(dataset).key() != by_ids.key()


def test_iterable_data_sets_are_read_as_they_iterate(dataset):
    sharded = dataset.select_columns(["text"]).to_iterable_dataset(num_shards=3)
    assert len(HuggingFaceSource(sharded).parts()) == 3

    def shout(example):
        return {"text": (example["text"] or "nothing").upper()}

    def only_full(example):
        return bool(example["text"])

    for data in (
        sharded,
        sharded.take(4),
        sharded.skip(1),
        sharded.map(shout),
        sharded.filter(only_full),
        sharded.shuffle(seed=3, buffer_size=4),
        datasets.interleave_datasets([sharded, sharded]),
        datasets.concatenate_datasets([sharded, sharded]),
    ):
        source = HuggingFaceSource(data)
        assert plain(source) == [example["text"] or "" for example in data]


def test_iterable_data_sets_from_a_generator():
    def examples():
        yield {"text": None, "ids": [], "m": {"t": None}}
        yield {"text": "b", "ids": np.array([1, 2], np.uint16), "m": {"t": "x"}}
        yield {"text": "c", "ids": None, "m": None}

    data = datasets.IterableDataset.from_generator(examples)
    assert plain(HuggingFaceSource(data)) == ["", "b", "c"]
    assert plain(HuggingFaceSource(data, column="ids")) == [[], [1, 2], ""]
    assert plain(HuggingFaceSource(data, column="m.t")) == ["", "x", ""]
    same = datasets.IterableDataset.from_generator(examples)
    assert HuggingFaceSource(data).key() == HuggingFaceSource(same).key()
    assert HuggingFaceSource(data, key="v2").key()["inputs"] == "v2"
    for column, message in {
        "m.z": "row 0 of column 'm.z': is not there; columns there: 'text', 'ids', 'm'",
        "m": "row 0 of column 'm': is dict of shape \\(\\), expected text or a list",
    }.items():
        with pytest.raises(ConfigError, match=message):
            plain(HuggingFaceSource(data, column=column))


def test_what_a_users_function_raises_arrives_unchanged(dataset):
    def fail(example):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        plain(HuggingFaceSource(dataset.to_iterable_dataset().map(fail)))


def test_data_files_of_every_kind(tmp_path):
    (tmp_path / "a1.jsonl").write_text('{"text": "j1"}\n{"text": "j2"}\n')
    (tmp_path / "a10.jsonl").write_text('{"text": "j4"}\n')
    (tmp_path / "a2.jsonl").write_text('{"text": "j3"}\n')
    (tmp_path / "c.csv").write_text('text,z\n"c 1",1\nc2,2\n')
    (tmp_path / "t.tsv").write_text("z\ttext\n1\tt,1\n")
    (tmp_path / "d.txt").write_text("l1\nl2\n")
    (tmp_path / "we[i]rd *.json").write_text('{"text": "w"}\n')
    with gzip.open(tmp_path / "z.json.gz", "wt") as file:
        file.write('{"text": "z1"}\n')
    datasets.Dataset.from_dict({"text": ["s1"]}).save_to_disk(tmp_path / "saved")
    for pattern, expected in {
        "a*.jsonl": ["j1", "j2", "j3", "j4"],
        "c.csv": ["c 1", "c2"],
        "t.tsv": ["t,1"],
        "d.txt": ["l1", "l2"],
        "we[[]i]rd *.json": ["w"],
        "z.json.gz": ["z1"],
        "saved/*.arrow": ["s1"],
    }.items():
        source = HuggingFaceSource(tmp_path / pattern)
        assert plain(source) == expected, pattern
        assert len(pickle.loads(pickle.dumps(source.parts()))) == len(source.parts())
    left = pathlib.Path(datasets.config.HF_DATASETS_CACHE).rglob("*")
    assert not [path for path in left if path.suffix != ".lock"]  # no copy


def test_saved_folders_and_their_splits(dataset, tmp_path):
    dataset.save_to_disk(tmp_path / "one")
    both = datasets.DatasetDict(train=dataset, test=dataset.select([4]))
    both.save_to_disk(tmp_path / "two")
    assert plain(HuggingFaceSource(tmp_path / "one")) == COLUMNS["text"]
    for data in (both, tmp_path / "two"):
        assert plain(HuggingFaceSource(data, data_split="test")) == ["e"]
        with pytest.raises(ConfigError, match=r"no split 'tset'; .* 'train', 't"):
            HuggingFaceSource(data, data_split="tset")
        with pytest.raises(ConfigError, match="choose with data_split= one of 'train'"):
            HuggingFaceSource(data)


def test_what_is_no_data_set_is_refused(dataset, tmp_path):
    (tmp_path / "bad.json").write_text('{"text": "j1"}\n{"text":')
    (tmp_path / "bad.csv").write_text('text,z\n"c1,1\nc2,2,3,4\n')
    (tmp_path / "bad.arrow").write_text("xxxxx")
    (tmp_path / "bad.parquet").write_text("PAR1xx")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "empty.json").touch()
    (tmp_path / "other.json").write_text('{"no": 1}\n')
    (tmp_path / "x.pdf").touch()
    for data, message in {
        tmp_path / "bad.json": "bad.json: cannot be read: ",
        tmp_path / "empty.json": "empty.json: cannot be read: it is empty",
        tmp_path / "bad.csv": "bad.csv: cannot be read: ",
        tmp_path / "bad.arrow": "bad.arrow: cannot be read: ",
        tmp_path / "bad.parquet": "bad.parquet: cannot be read: ",
        tmp_path / "bad.txt": "bad.txt: cannot be read: ",
        tmp_path / "other.json": "other.json: .*no column 'text'; .*: 'no'",
        tmp_path / "x.pdf": "x.pdf: ending '.pdf', expected one of .json, .jsonl",
        tmp_path / "*.*": "ending '.pdf'",
        tmp_path / "bad.[jc]s*": "files of several kinds: '.csv', '.json'",
        tmp_path / "none.json": "no file matches",
        tmp_path: "is a folder that save_to_disk .* did not make",
        3: "data is int, expected a Dataset",
    }.items():
        with pytest.raises(ConfigError, match=message) as info:
            plain(HuggingFaceSource(data))
        assert "\n" not in str(info.value)
    with pytest.raises(ConfigError, match="data_split is 'train', but"):
        HuggingFaceSource(dataset, data_split="train")


def test_built_from_tables(parquet_file, dataset, tmp_path):
    cache = {"cache_dir": tmp_path / "cache"}
    text = "a\0日本語 \U0001f680\0e\0".encode()
    for data in (
        foreign.parquet(parquet_file, **cache),
        foreign.huggingface(dataset, **cache),
        foreign.huggingface(parquet_file, processes=2, **cache),
    ):
        assert bytes(elements(data)) == text
        assert data.dtype == np.uint8
    for data in (
        foreign.parquet(parquet_file, column="ids", processes=2, **cache),
        foreign.huggingface(dataset, column="ids", separator=0, **cache),
    ):
        separators = [0] if "huggingface" in data.shards[0] else []
        expected = [1, 2, *separators, 3, *separators, 4, 70000, *separators]
        assert elements(data) == expected
        assert data.dtype == np.int64
    assert data.metadata["builder"] == "huggingface"
    assert str(tmp_path) not in repr(data.metadata)


def test_a_file_that_changes_meanwhile_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "grows.parquet"
    pq.write_table(pa.table({"text": ["a"]}), path)
    source = ParquetSource(path)
    parts = source.parts()

    def changed(self):
        pq.write_table(pa.table({"text": ["a", "b"]}), path)
        return parts

    monkeypatch.setattr(ParquetSource, "parts", changed)
    with pytest.raises(ConfigError, match=r"grows\.parquet changed while"):
        foreign.parquet(path, cache_dir=tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.suffix != ".lock"]


def test_input_files_that_vanish(tmp_path):
    (tmp_path / "a").touch()
    files = input_files.find(tmp_path / "a")
    (tmp_path / "a").unlink()
    with pytest.raises(ConfigError, match="/a: cannot be read: No such file"):
        files.check_unchanged()


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("parquet", "pyarrow", "parquet"),
        ("huggingface", "datasets", "datasets"),
        ("tfdata", "tensorflow", "seqio"),
    ],
)
def test_a_missing_extra_is_named(module, package, extra, monkeypatch):
    for name in list(sys.modules):
        if name.startswith(("roxxel.building.arrow", "roxxel.building.hugg")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"roxxel.building.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"needs {package}.*: pip install 'roxxel\[{extra}\]'"
    with pytest.raises(ImportError, match=message):
        importlib.import_module(f"roxxel.building.{module}")
