"""`--mode=sample`: a run's model continues text; what is refused, in one line."""

import io
import json
import os
import socket
import types

import numpy as np
import pytest

from roxxel import main as main_lib
from roxxel import tokenizers
from roxxel.errors import ConfigError
from roxxel.generation.text import Continuation
from roxxel.tokenizers import loading, of_run
from roxxel.tokenizers.bytes import Bytes
from roxxel.train.sample import Sample
from tests import speaking, tiny_tokenizers
from tests.quick import compile_quickly  # noqa: F401
from tests.tiny import compile_once  # noqa: F401

pytestmark = pytest.mark.usefixtures("compile_once", "compile_quickly")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return speaking.make_run(tmp_path_factory.mktemp("said") / "run")


def sample(run, capsys, *flags):
    """Exit code, stdout and the last line of stderr."""
    flags = ("--mode=sample", f"--run={run}", "--trust_config", *flags)
    code = main_lib.main(list(flags))
    out, err = capsys.readouterr()
    return code, out, (err.splitlines() or [""])[-1]


def test_text_is_that_of_the_checkpoint_and_nothing_is_written(run, capsys):
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    flags = ("--prompt=ab", "--num_tokens=20", "--temperature=0")
    texts = {}
    for which in ("best", "latest", "10"):
        code, out, note = sample(run, capsys, *flags, f"--checkpoint={which}")
        assert code == 0, note
        assert out.startswith("ab")
        assert out.endswith("\n")
        texts[which] = out
    assert texts["best"] == texts["10"] != texts["latest"]
    assert len(texts["best"]) == 23  # letters alone: the model knows no others
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_prompts_of_a_file_go_together_and_seeds_decide(run, capsys, monkeypatch):
    odd = "of more than\x0c\u2028\0letters"  # one line
    monkeypatch.setattr("sys.stdin", io.StringIO(f"abc\n\n{odd}\n"))
    flags = ("--prompt_file=-", "--samples=2", "--num_tokens=12", "--json")
    flags += ("--top_k=20", "--top_p=0.95", "--repetition_penalty=1.1", "--seed=5")
    code, out, note = sample(run, capsys, *flags, "--checkpoint=best")
    assert code == 0, note
    rows = [json.loads(line) for line in out.split("\n")[:-1]]
    prompts = [row["prompt"] for row in rows]
    assert prompts == ["abc"] * 2 + [odd] * 2
    assert all(row["finish_reason"] == "length" for row in rows)
    assert all(row["tokens"] == len(row["text"]) == 12 for row in rows)
    assert rows[0]["text"] != rows[1]["text"]
    alone = ("--prompt=abc", *flags[2:])
    _, again, _ = sample(run, capsys, *alone, "--checkpoint=best")
    assert json.loads(again)["text"] == rows[0]["text"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--temperature=warm"], "--temperature=warm: expected a number"),
        (["--temperature=-1"], "--temperature must be 0 or more, got -1.0"),
        (["--top_k=0"], "--top_k=0: expected a whole number, at least 1"),
        (["--top_p=1.5"], "--top_p must be above 0 and at most 1"),
        (["--min_p=2"], "--min_p must be from 0 to 1"),
        (["--num_tokens=many"], "--num_tokens=many"),
        (["--prompt=a\udcffb"], "--prompt is no valid text: surrogates not allowed"),
        (["--prompt_file=x"], "--prompt and --prompt_file exclude each other"),
        (["--checkpoint=15"], "--checkpoint=15: there is no such checkpoint"),
        (["--checkpoint=newest"], "expected latest, best or a number"),
        (["--tokenizer=none.json"], "--tokenizer=none.json"),
        (["--port=1"], "--port belongs to --mode=serve"),
        (["--fdl.model.d_model=32"], "does not fit"),
    ],
)
def test_what_is_wrong_is_one_line(run, capsys, flags, words):
    code, out, line = sample(run, capsys, "--prompt=ab", *flags)
    assert (code, out) == (2, "")
    assert line.startswith("roxxel: error: ")
    assert words in line


def test_what_cannot_be_served_is_one_line(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, words in [
            ([f"--port={port}"], f"--port={port}: cannot be listened at: Address"),
            (["--port=65536"], "--port=65536: there are ports up to 65535"),
            (["--host=\udcff", "--port=0"], "cannot be listened at: no name of a host"),
            (["--max_length=1"], "--max_length=1: expected a whole number, at least 2"),
            (["--max_length=9999999999", "--port=0"], "there is no room for so much"),
        ]:
            flags = ["--mode=serve", f"--run={run}", "--trust_config", *flags]
            assert main_lib.main(flags) == 2
            out, err = capsys.readouterr()
            line = err.splitlines()[-1]
            assert (out, line.count("roxxel: error: ")) == ("", 1)
            assert words in line


def test_run_without_checkpoints(run, tmp_path, capsys):
    os.makedirs(tmp_path / "run")
    for name in ("config.json", "run.json"):
        (tmp_path / "run" / name).write_bytes((run / name).read_bytes())
    code, _, line = sample(tmp_path / "run", capsys, "--prompt=a")
    assert code == 2
    assert "holds no complete checkpoint" in line
    assert not (tmp_path / "run" / "checkpoints").exists()
    code, _, line = sample(tmp_path, capsys, "--prompt=a")
    assert code == 2
    assert line.endswith("expected the work directory of a run.")


def test_name_of_a_run_instead_of_its_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    code, _, line = sample("mine", capsys, "--prompt=a")
    assert code == 2
    assert line.endswith("Did you mean --run=runs/mine?")


def test_tokenizer_is_that_of_the_training_data():
    facts = {"name": "bytes", "spec": "bytes", "fingerprint": Bytes().fingerprint()}
    data = {"stream.dataset": {"tokenizer": facts}}
    assert isinstance(of_run.of_run(data, 50_000, setting="--t="), Bytes)
    assert isinstance(of_run.of_run({}, 256, setting="--t="), Bytes)
    for data, words in [
        ({}, "name no tokenizer; give --t=bytes"),
        ({"stream.d": {"tokenizer": facts | {"fingerprint": "x"}}}, "not what it was"),
        ({"stream.d": {"tokenizer": {"name": "own"}}}, "tokenizer own: "),
    ]:
        with pytest.raises(ConfigError, match=words):
            of_run.of_run(data, 50_000, setting="--t=")


def test_the_space_between_prompt_and_continuation_is_kept(tmp_path, monkeypatch):
    """SentencePiece leaves out that before the first token it is given."""
    pytest.importorskip("sentencepiece", reason="needs [tokenizers]")
    (tmp_path / "a.model").write_bytes(
        tiny_tokenizers.sentence_piece_model(dummy_prefix=True)
    )
    tokenizer = loading.load(str(tmp_path / "a.model"))
    whole = "The quick brown fox"
    ids = np.asarray(tokenizer.encode(whole))
    cut = next(n for n in range(len(ids)) if tokenizer.decode(ids[:n]) == "The quick")
    assert tokenizer.decode(ids[cut:]) == "brown fox"
    text = Continuation(tokenizer, max_tokens=99, before=ids[:cut])
    assert "".join(text.feed([token]) for token in ids[cut:]) == " brown fox"
    assert text.num_tokens == len(ids) - cut

    # The sample at the end of a run is by the tokenizer of its data too.
    def generate(model, prompt_BL, num_tokens, **options):
        np.testing.assert_array_equal(prompt_BL[0], ids[:cut])
        assert options["num_ids"] == tokenizer.vocab_size
        return ids[None, cut:]

    monkeypatch.setattr("roxxel.train.sample.generate", generate)
    data = {"stream.dataset": {"tokenizer": tokenizers.describe(tokenizer)}}
    model = types.SimpleNamespace(vocab_size=512)
    assert Sample(prompt="The quick").text(model, data) == whole
    by_hand = Sample(prompt="The quick", tokenizer=tokenizer)
    assert by_hand.text(model) == whole
    with pytest.raises(ConfigError, match="give its tokenizer=bytes"):
        Sample(prompt="The quick").text(model)
    with pytest.raises(ConfigError, match="the model has vocab_size 20"):
        by_hand.text(types.SimpleNamespace(vocab_size=20))


@pytest.mark.parametrize(
    ("stops", "expected", "reason"),
    [
        ((), "a€b stop!", "length"),
        (("st",), "a€b ", "stop"),
        (("€b s", "b"), "a€", "stop"),  # the one that is complete first
        (("stox", "!!"), "a€b stop!", "length"),  # beginnings of one are let go
    ],
)
def test_text_comes_in_whole_characters_up_to_a_stop(stops, expected, reason):
    ids = list("a€b stop!".encode())
    text = Continuation(Bytes(), max_tokens=len(ids), stops=stops)
    parts = [text.feed([token]) for token in ids]
    assert "".join(parts) == expected
    assert text.finish_reason == reason
    assert all("\ufffd" not in part for part in parts)
    whole = Continuation(Bytes(), max_tokens=len(ids), stops=stops)
    assert whole.feed(np.array([*ids, 65, 65])) == expected


def test_text_ends_with_its_document_and_unfinished_bytes_are_shown():
    text = Continuation(Bytes(), max_tokens=9, end_id=0)
    assert text.feed([97, 0xE2, 0, 98]) == "a\ufffd"
    assert (text.finish_reason, text.num_tokens) == ("stop", 3)
