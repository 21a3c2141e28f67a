"""Tokenizers: small real ones, trained here."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from roxxel import tokenizers
from roxxel.errors import ConfigError
from roxxel.tokenizers.bytes import Bytes
from tests import tiny_tokenizers as tiny

TEXTS = [
    "The quick brown fox",
    "naïve 日本語 🚀 ",
    "  two  spaces\r\n\ttabs\n\n",
    f"spelled out: {tiny.END} and </s> and <s>",
    "x" * 3000,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of every kind."""
    folder = tmp_path_factory.mktemp("tokenizers")
    tiny.write_hugging_face(folder / "mine")
    (folder / "sp.model").write_bytes(tiny.sentence_piece_model())
    tiny.write_tiktoken(folder / "gpt2.tiktoken")
    return folder


SPECS = ["bytes", "mine/tokenizer.json", "mine", "sp.model", "gpt2.tiktoken"]


@pytest.fixture(params=SPECS)
def tokenizer(request, folder):
    spec = request.param
    return tokenizers.load(spec if spec == "bytes" else folder / spec)


def test_text_survives_encoding_and_decoding(tokenizer):
    for text in TEXTS:
        ids = np.asarray(tokenizer.encode(text))
        assert ids.dtype.kind in "iu"
        assert ids.ndim == 1
        assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text
        assert 0 <= ids.min() <= ids.max() < tokenizer.vocab_size
    assert len(tokenizer.encode("")) == 0


def test_a_batch_gives_what_single_texts_give(tokenizer):
    batch = tokenizer.encode_batch([*TEXTS, ""])
    assert [ids.tolist() for ids in batch] == [
        np.asarray(tokenizer.encode(text)).tolist() for text in [*TEXTS, ""]
    ]


def test_special_tokens_in_a_text_are_text(tokenizer):
    """A document that talks about <|endoftext|> does not end there."""
    for text in (tiny.END, "</s>", f"a{tiny.END}b"):
        ids = np.asarray(tokenizer.encode(text))
        if tokenizer.separator_id != 0 or tokenizer.name != "bytes":
            assert tokenizer.separator_id not in ids
        assert tokenizer.decode(ids) == text


def test_a_pickled_tokenizer_is_the_same(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert tokenizers.describe(again) == tokenizers.describe(tokenizer)
    assert again.separator_id == tokenizer.separator_id
    for text in TEXTS:
        assert list(again.encode(text)) == list(tokenizer.encode(text))


def test_the_separator_is_the_end_of_a_document(folder):
    loaded = {spec: tokenizers.load(str(folder / spec)) for spec in SPECS[1:]}
    for spec in ("mine", "mine/tokenizer.json", "gpt2.tiktoken"):
        assert loaded[spec].separator_id == loaded[spec].token_id(tiny.END)
        assert loaded[spec].token_id("<|nothing|>") is None
    assert loaded["sp.model"].separator_id == loaded["sp.model"].token_id("</s>") == 2
    assert loaded["sp.model"].token_id("<|nothing|>") is None
    assert loaded["gpt2.tiktoken"].separator_id == 263
    assert loaded["mine"].name == "mine"
    assert loaded["mine"].vocab_size == 400
    assert loaded["mine"].spec == str(folder / "mine")


def test_the_configured_end_of_text_goes_first(tmp_path):
    path = tiny.write_hugging_face(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "q"}}')
    assert tokenizers.load(path).separator_id == tokenizers.load(path).token_id("q")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "not there"}')
    assert tokenizers.load(path).separator_id == 0


def test_truncation_padding_and_templates_of_a_file_are_left_alone(folder):
    """They are for batches of a model, and would cut documents short."""
    loaded = tokenizers.load(folder / "mine")
    ids = loaded.encode("The quick brown fox jumps over the lazy dog")
    assert len(ids) > 7
    assert 0 not in ids


def test_fingerprints_name_the_content(folder, tmp_path):
    import tokenizers as hf

    prints = {tokenizers.load(folder / spec).fingerprint() for spec in SPECS[1:]}
    prints.add(Bytes().fingerprint())
    prints.add(Bytes(["<end>"]).fingerprint())
    assert len(prints) == 5  # the folder holds the file
    of_object = tokenizers.load(hf.Tokenizer.from_str(tiny.hugging_face_json()))
    assert of_object.fingerprint() in prints
    changed = hf.Tokenizer.from_str(tiny.hugging_face_json())
    changed.add_tokens(["another"])
    assert tokenizers.load(changed).fingerprint() not in prints
    assert tokenizers.load(changed).vocab_size == 401


def test_objects_of_the_packages_are_taken(folder):
    import sentencepiece
    import tiktoken
    import tokenizers as hf

    class Fast:  # as a fast tokenizer of transformers
        backend_tokenizer = hf.Tokenizer.from_str(tiny.hugging_face_json())
        eos_token = "q"

    text = "The quick brown fox"
    made = tokenizers.load(Fast())
    assert made.separator_id == made.token_id("q")
    assert list(made.encode(text)) == list(
        tokenizers.load(folder / "mine").encode(text)
    )
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=tiny.sentence_piece_model()
    )
    assert list(tokenizers.load(processor).encode(text)) == processor.encode(text)
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding(
        "e", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<e>": 300}
    )
    made = tokenizers.load(encoding)
    assert made.vocab_size == 301
    assert made.separator_id is None
    assert made.token_id("<e>") == 300
    assert tokenizers.load(made) is made


def test_ids_with_gaps_count_up_to_the_greatest():
    import tokenizers as hf

    made = hf.Tokenizer(hf.models.WordLevel({"a": 0, "b": 999}, unk_token="a"))
    assert tokenizers.load(made).vocab_size == 1000


def test_bytes_with_special_tokens():
    made = Bytes(["<end>", "<pad>"])
    assert (made.vocab_size, made.separator_id) == (258, 256)
    assert made.token_id("<pad>") == 257
    assert made.token_id("A") == 65
    assert made.token_id("é") is None
    assert (
        made.decode([104, 105, 256, 0xE9, 257])
        == "hi<end>\N{REPLACEMENT CHARACTER}<pad>"
    )
    with pytest.raises(ConfigError, match="id 258 is not below 258"):
        made.decode([258])
    with pytest.raises(ConfigError, match="each once"):
        Bytes(["a", "a"])


def test_decoding_bytes_that_are_no_text(folder):
    for spec in SPECS[1:]:
        tokenizer = tokenizers.load(folder / spec)
        assert isinstance(tokenizer.decode(range(tokenizer.vocab_size)), str)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("nothing", "tokenizer 'nothing': no such file; expected 'bytes', 'tiktoken:"),
        (".", "tokenizer '.': no tokenizer file; expected"),
        ("a.txt", "tokenizer 'a.txt': unknown kind of file"),
        ("a.json", "a.json: no Hugging Face tokenizer: "),
        ("a.model", "a.model: no SentencePiece model: not a SentencePiece model"),
        ("cl100k_base.tiktoken", "cl100k_base.tiktoken:1: expected a token in base64"),
        ("mine.tiktoken", "how it cuts text into words is not known"),
        ("tiktoken:gpt9", "tiktoken has no encoding 'gpt9'; known: "),
        (7, "tokenizer is 7 of type int; expected"),
    ],
)
def test_what_is_no_tokenizer_is_one_line(spec, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "a.json", "a.model", "cl100k_base.tiktoken", "mine.tiktoken"):
        (tmp_path / name).write_text("no tokenizer")
    with pytest.raises(ConfigError, match=match) as caught:
        tokenizers.load(spec)
    assert "\n" not in str(caught.value)


def test_an_encoding_that_is_not_here_is_a_config_error(tmp_path, monkeypatch):
    import tiktoken

    def no_network(name):
        raise OSError("no route")

    monkeypatch.setattr(tiktoken, "get_encoding", no_network)
    with pytest.raises(ConfigError, match=r"'gpt2' are not on .* \(OSError\): .*CACHE"):
        tokenizers.load("tiktoken:gpt2")


def test_a_named_encoding_is_that_of_the_package(folder, monkeypatch):
    import tiktoken

    mine = tokenizers.load(folder / "gpt2.tiktoken")
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: mine._encoding)
    named = tokenizers.load("tiktoken:gpt2")
    assert named.fingerprint() == mine.fingerprint()
    assert named.spec == "tiktoken:gpt2"


WITHOUT_PACKAGES = """
import importlib.abc, sys


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("tokenizers", "sentencepiece", "tiktoken"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
from roxxel import tokenizers, rox
print(tokenizers.load("bytes").vocab_size)
for spec in sys.argv[1:]:
    try:
        tokenizers.load(spec)
    except ImportError as err:
        print(err)
"""


def test_a_missing_package_is_named_with_its_extra(folder, repo_root):
    specs = [str(folder / spec) for spec in ("mine", "sp.model", "gpt2.tiktoken")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES, *specs],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=True,
    )
    first, *lines = done.stdout.splitlines()
    assert first == "256"
    extras = ("tokenizers", "sentencepiece", "tiktoken")
    assert [
        f"pip install 'roxxel[{extra}]'" in line
        for extra, line in zip(extras, lines, strict=True)
    ] == [True] * 3
