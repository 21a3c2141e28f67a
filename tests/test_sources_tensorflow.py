"""tf.data, SeqIO and TFDS as sources; needs roxxel[seqio], which few machines have."""

import functools
import pickle

import numpy as np
import pytest

from roxxel.building import foreign
from roxxel.errors import ConfigError

tf = pytest.importorskip("tensorflow", reason="needs roxxel[seqio]")
seqio = pytest.importorskip("seqio", reason="needs roxxel[seqio]")
tfds = pytest.importorskip("tensorflow_datasets", reason="needs roxxel[seqio]")

from roxxel.building import tfdata  # noqa: E402

TEXTS = ["first", "", "日本語 \U0001f680", "last"]


def plain(source) -> list:
    return [
        doc.tolist() if isinstance(doc, np.ndarray) else doc.decode()
        for part in source.parts()
        for doc in part.documents()
    ]


def elements(data) -> list[int]:
    return data.elements(0, data.num_elements).tolist()


def pipeline(count: int = 3):
    """Elements with a text, ids of any length, and what is no document."""
    numbers = tf.data.Dataset.range(count)
    return numbers.map(
        lambda i: {
            "text": tf.strings.join(["t", tf.strings.as_string(i)]),
            "inner": {"ids": tf.range(i)},
            "mask": tf.ones([2], tf.bool),
            "image": tf.zeros([2, 2], tf.uint8),
            "scalar": i,
            "bytes": tf.constant(b"caf\xe9"),
        }
    )


def test_features_of_a_pipeline():
    source = functools.partial(tfdata.TfDataSource, pipeline)
    assert plain(source(feature="text")) == ["t0", "t1", "t2"]
    assert plain(source(feature="inner.ids")) == [[], [0], [0, 1]]
    tensors = tf.data.Dataset.from_tensor_slices(np.arange(4).reshape(2, 2))
    assert plain(tfdata.TfDataSource(tensors, feature=None)) == [[0, 1], [2, 3]]
    key = source(feature="text").key()
    assert key == source(feature="text").key()
    longer = tfdata.TfDataSource(functools.partial(pipeline, 4), feature="text")
    assert key != longer.key()
    assert source(feature="text", key="v1").key()["inputs"] == "v1"


WRONG_FEATURES = {
    "nope": "no feature 'nope'; features there: 'text', 'inner', 'mask'",
    "inner.x": "no feature 'inner.x'; features there: 'ids'",
    "inner": "is .*, expected text or a 1-D tensor",
    "mask": "element 0: holds bool, expected integer ids",
    "image": r"element 0: is shape \(2, 2\), expected text or a 1-D tensor",
    "scalar": "element 0: is .*, expected text or a 1-D tensor",
    "bytes": "element 0: not UTF-8 text",
}


@pytest.mark.parametrize("feature", WRONG_FEATURES)
def test_other_features_are_refused(feature):
    with pytest.raises(ConfigError, match=WRONG_FEATURES[feature]) as info:
        plain(tfdata.TfDataSource(pipeline, feature=feature))
    assert "\n" not in str(info.value)


def test_what_is_no_pipeline_is_refused():
    with pytest.raises(ConfigError, match="is list, expected a tf"):
        plain(tfdata.TfDataSource(lambda: [1], feature=None))
    pairs = tf.data.Dataset.from_tensor_slices(([1], [2]))
    with pytest.raises(ConfigError, match="no feature 'a'; elements are no dicts"):
        plain(tfdata.TfDataSource(pairs, feature="a"))


def test_damaged_records_are_named(tmp_path):
    path = str(tmp_path / "r.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for text in TEXTS:
            writer.write(text.encode())
    source = tfdata.TfDataSource(
        functools.partial(tf.data.TFRecordDataset, path), feature=None
    )
    assert plain(source) == TEXTS
    raw = bytearray((tmp_path / "r.tfrecord").read_bytes())
    raw[-6] ^= 1
    (tmp_path / "r.tfrecord").write_bytes(raw)
    with pytest.raises(ConfigError, match="pipeline: cannot be read: corrupted record"):
        plain(source)


def test_built_from_a_pipeline(tmp_path):
    cache = {"cache_dir": tmp_path / "cache"}
    data = foreign.tf_data(pipeline, feature="text", **cache)
    assert bytes(elements(data)) == b"t0\0t1\0t2\0"
    made = functools.partial(tf.data.Dataset.range, 5)
    data = foreign.tf_data(lambda: made().batch(2), feature=None, separator=9, **cache)
    assert elements(data) == [0, 1, 9, 2, 3, 9, 4, 9]
    with pytest.raises(ConfigError, match="processes=1"):
        foreign.tf_data(lambda: made().batch(3), feature=None, processes=2, **cache)


# SeqIO


@pytest.fixture(scope="module")
def tasks():
    """Two tasks of bytes with an end-of-text id, and their mixture."""
    vocabulary = seqio.ByteVocabulary()
    features = {"targets": seqio.Feature(vocabulary, add_eos=True)}

    def texts(split, shuffle_files=False, seed=None, name=""):
        del shuffle_files, seed
        return tf.data.Dataset.from_tensor_slices(
            {"targets": [f"{name} {split} {i}" for i in range(3)]}
        )

    for name in ("one", "two"):
        seqio.TaskRegistry.add(
            f"rox_{name}",
            source=seqio.FunctionDataSource(
                functools.partial(texts, name=name), splits=["train", "validation"]
            ),
            preprocessors=[
                seqio.preprocessors.tokenize,
                seqio.preprocessors.append_eos,
            ],
            output_features=features,
        )
    seqio.MixtureRegistry.add("rox_mix", [("rox_one", 1), ("rox_two", 1)])

    def encode(text: str) -> list[int]:
        return [*vocabulary.encode(text), vocabulary.eos_id]

    return encode


def test_a_seqio_task_by_name_and_as_an_object(tasks):
    expected = [tasks(f"one train {i}") for i in range(3)]
    assert plain(tfdata.seqio_source("rox_one")) == expected
    task = seqio.get_mixture_or_task("rox_one")
    held = tfdata.seqio_source(task, data_split="validation")
    assert plain(held) == [tasks(f"one validation {i}") for i in range(3)]


def test_a_seqio_mixture_ends_with_the_first_of_its_tasks(tasks):
    documents = plain(tfdata.seqio_source("rox_mix"))
    assert documents == plain(tfdata.seqio_source("rox_mix"))
    one, two = ([tasks(f"{n} train {i}") for i in range(3)] for n in ("one", "two"))
    assert one == [d for d in documents if d in one] or two == [
        d for d in documents if d in two
    ]
    assert all(d in one or d in two for d in documents)


def test_what_seqio_has_not_is_named(tasks):
    with pytest.raises(ConfigError, match="no task or mixture 'rox_three' is registe"):
        tfdata.seqio_source("rox_three")
    with pytest.raises(ConfigError, match=r"no split 'test'; .*'train', 'vali"):
        tfdata.seqio_source("rox_one", data_split="test")
    with pytest.raises(ConfigError, match="no feature 'inputs'; features there: 'targ"):
        plain(tfdata.seqio_source("rox_one", feature="inputs"))


def test_built_from_a_seqio_task(tasks, tmp_path):
    data = foreign.seqio("rox_one", cache_dir=tmp_path)
    assert elements(data) == [t for i in range(3) for t in tasks(f"one train {i}")]
    assert data.metadata["builder"] == "seqio"
    assert "rox_one train" in data.metadata["dataset"]


# TFDS


class RoxTiny(tfds.core.GeneratorBasedBuilder):
    """Texts and ids, written to files by the test."""

    VERSION = tfds.core.Version("1.2.0")

    def _info(self):
        features = {
            "text": tfds.features.Text(),
            "ids": tfds.features.Tensor(shape=(None,), dtype=np.int32),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._examples("train", 20), "test": self._examples("test", 3)}

    def _generate_examples(self):
        raise AssertionError("the splits make their own")

    def _examples(self, split, count):
        for i in range(count):
            yield i, {"text": f"{split} {i}", "ids": np.arange(i, dtype=np.int32)}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    config = tfds.download.DownloadConfig(num_shards=3)
    RoxTiny(data_dir=folder).download_and_prepare(download_config=config)
    return folder


def test_a_tfds_builder_by_folder(data_dir):
    folder = data_dir / "rox_tiny" / "1.2.0"
    source = tfdata.TfdsSource(folder)
    parts = source.parts()
    assert sum(part.size for part in parts) == 20
    assert len(parts) == 3
    texts = plain(source)
    assert sorted(texts) == sorted(f"train {i}" for i in range(20))
    as_read = tfds.builder_from_directory(folder).as_dataset(split="train")
    assert texts == [x["text"].decode() for x in as_read.as_numpy_iterator()]
    ids = plain(tfdata.TfdsSource(folder, feature="ids"))
    assert sorted(ids) == [list(range(i)) for i in range(20)]
    part = tfdata.TfdsSource(folder, data_split="train[5:8]")
    assert plain(part) == texts[5:8]
    for part in pickle.loads(pickle.dumps(parts)):
        assert len(list(part.documents())) == part.size


def test_a_tfds_builder_by_name(data_dir):
    source = tfdata.TfdsSource("rox_tiny", data_dir=data_dir, data_split="test")
    assert sorted(plain(source)) == ["test 0", "test 1", "test 2"]
    by_folder = tfdata.TfdsSource(data_dir / "rox_tiny" / "1.2.0", data_split="test")
    assert source.key() == by_folder.key()


def test_what_tfds_has_not_is_named(data_dir, tmp_path):
    folder = data_dir / "rox_tiny" / "1.2.0"
    with pytest.raises(ConfigError, match=r"no split 'dev'; .* 'train'"):
        tfdata.TfdsSource(folder, data_split="dev")
    with pytest.raises(ConfigError, match="tfds no_such_set: cannot be opened: "):
        tfdata.TfdsSource("no_such_set", data_dir=data_dir)
    with pytest.raises(ConfigError, match="cannot be opened: "):
        tfdata.TfdsSource(tmp_path)
    with pytest.raises(ConfigError, match="no feature 'label'; features there: 'ids'"):
        plain(tfdata.TfdsSource(folder, feature="label"))


def test_built_from_tfds_by_several_processes(data_dir, tmp_path):
    folder = data_dir / "rox_tiny" / "1.2.0"
    one, two = (
        foreign.tfds(folder, processes=n, cache_dir=tmp_path / str(n)) for n in (1, 2)
    )
    texts = plain(tfdata.TfdsSource(folder))
    assert bytes(elements(one)).decode() == "".join(f"{text}\0" for text in texts)
    assert one.fingerprint() == two.fingerprint()
    assert one.metadata["dataset"] == "rox_tiny/1.2.0"
