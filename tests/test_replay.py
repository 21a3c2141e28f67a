"""A run again, bit by bit; what it depended on; what a resume may change."""

import csv
import json
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from roxxel import Roxxel
from roxxel import main as main_lib
from roxxel.config import curves, data_facts, ingredients, run_info

TINY = "--fdl_config=toy_experiments.tiny.tiny_run"
TRUST = "--trust_config"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a finished 30-step run and its data; not to be written to."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main_lib.main([TINY, "--workdir=run"]) == 0
    return folder


@pytest.fixture
def run(recorded, tmp_path, monkeypatch):
    """A copy of the run, in its own folder, which is the current one."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def replay(capsys, *flags):
    """Exit code, stdout and the last line of stderr of a replay of `run`."""
    capsys.readouterr()
    code = main_lib.main(["--mode=replay", "--run=run", "--trust_config", *flags])
    out, err = capsys.readouterr()
    return code, out, err


def edit(run, change):
    """Change the run's record as another machine would have written it."""
    info = run_info.read(run)
    change(info)
    run_info.write(run, info)


def test_replay_of_thirty_steps_is_bit_equal(run, capsys):
    code, out, err = replay(capsys)
    assert code == 0, err
    last = out.splitlines()[-1]
    assert last.startswith("replay: bit-equal, 30 steps of loss, perplexity, grad_norm")
    assert "eval_loss" in last
    assert "tokens_per_sec" not in last
    again = Path("run-replay")
    assert curves.read(run, "") == curves.read(again, "")
    assert run_info.read(again)["replay_of"] == str(run)
    kept = json.loads((run / "config.json").read_text())
    assert json.loads((again / "config.json").read_text()) == kept
    code, _, err = replay(capsys)
    assert code == 2
    assert "run-replay: is not empty" in err.splitlines()[-1]


def test_curve_that_differs_is_named(run, capsys):
    table = run / "roxxel_metrics.csv"
    rows = list(csv.reader(table.read_text().splitlines()))
    was = rows[7][1]
    rows[7][1] = was + "1"
    table.write_text("\n".join(",".join(row) for row in rows) + "\n")
    code, out, _ = replay(capsys, "--workdir=other")
    assert code == 1
    assert f"differs: loss of step 7 was {was}1, is {was}" in out.splitlines()[-1]
    assert "nothing else is known to differ" in out.splitlines()[-1]


def test_unfinished_run_is_replayed_to_its_last_step(run, capsys):
    shutil.rmtree(run)
    assert main_lib.main([TINY, "--workdir=run", "--stop_after=7"]) == 0
    code, out, err = replay(capsys)
    assert code == 0, err
    assert "bit-equal, 7 steps" in out.splitlines()[-1]


def flip_a_byte(run):
    shard = next(run.parent.glob("cache/*/all_0001.rox"))
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    return shard


def test_one_flipped_byte_is_refused_and_the_shard_named(run, capsys):
    shard = flip_a_byte(run)
    for flags in ([], ["--force"]):
        code, _, err = replay(capsys, *flags)
        assert code == 2
        last = err.splitlines()[-1]
        assert "damaged" in last
        assert str(shard) in last
        assert not Path("run-replay").exists()


def test_flipped_byte_of_a_file_without_checksums_is_found(tmp_path):
    """Files of the published writers: payload, index, footer."""
    paths = []
    for number in range(2):
        payload = np.arange(500, dtype=np.int32)
        ends = np.array([payload.nbytes], "<i8").tobytes()
        footer = struct.pack("<qq8s8s", 1, payload.nbytes, b"int32", b"ROXXEL02")
        paths.append(tmp_path / f"old_{number}.rox")
        paths[-1].write_bytes(payload.tobytes() + ends + footer)

    def facts():
        return data_facts.of({"data": Roxxel(str(tmp_path / "old_*.rox"))})

    before = facts()
    assert all(shard["checksums"] for shard in before["['data']"]["shards"])
    content = bytearray(paths[1].read_bytes())
    content[1000] ^= 1
    paths[1].write_bytes(content)
    (found,) = ingredients._data(before, facts())
    assert f"the shard {paths[1]} is another: checksums was " in found


def set_item(*keys, value):
    def change(info):
        for key in keys[:-1]:
            info = info[key]
        info[keys[-1]] = value

    return change


DATA = ("data", "stream.dataset")
INGREDIENTS = [
    (set_item("packages", "jax", value="0.9.9"), ["package jax: was 0.9.9, is"]),
    (set_item("packages", "tpuless", value="1"), ["tpuless: was 1, is not there"]),
    (set_item("python", value="3.9.1"), ["Python: was 3.9.1"]),
    (
        set_item("environment", "XLA_FLAGS", value="--xla_cpu_use_x=1"),
        ["environment XLA_FLAGS: was '--xla_cpu_use_x=1', is 'not set'"],
    ),
    (set_item("devices", value=["cuda:0"] * 4), ["devices: the run had 4 (cuda:0"]),
    (
        set_item(*DATA, "fingerprint", value="abc"),
        ["stream.dataset", "fingerprint was abc"],
    ),
    (set_item(*DATA, "tokenizer", value="gpt2:99"), ["tokenizer", "was gpt2:99"]),
]


@pytest.mark.parametrize(("change", "mentions"), INGREDIENTS)
def test_first_ingredient_that_differs_is_named_before_any_step(
    change, mentions, run, capsys
):
    edit(run, change)
    code, out, err = replay(capsys)
    assert code == 2, out
    last = err.splitlines()[-1]
    assert last.startswith("roxxel: error: --run=run: cannot be the same run: ")
    for words in mentions:
        assert words in last
    assert not Path("run-replay").exists()


def test_another_shard_is_named(run, capsys):
    def change(info):
        data = info["data"]["stream.dataset"]
        data["fingerprint"] = "abc"
        data["shards"][1]["checksums"] = "1234"

    edit(run, change)
    _, _, err = replay(capsys)
    assert "all_0001.rox is another: checksums was 1234" in err.splitlines()[-1]


def test_changed_default_of_the_code_is_named(run, capsys):
    text = (run / "config.txt").read_text()
    old = "evaluation.batch_size = 8  # default"
    assert old in text
    (run / "config.txt").write_text(text.replace(old, old.replace("8", "4")))
    code, _, err = replay(capsys)
    assert code == 2
    assert "configuration: evaluation.batch_size: 4 -> 8" in err.splitlines()[-1]


def test_forced_replay_runs_and_says_what_differs(run, capsys):
    edit(run, set_item("packages", "jax", value="0.9.9"))
    edit(run, set_item("host", value="elsewhere"))
    code, out, err = replay(capsys, "--force")
    assert code == 0, err
    assert "note: package jax: was 0.9.9" in err
    assert "note: host: was elsewhere" in err
    assert "bit-equal, 30 steps" in out


@pytest.mark.parametrize(
    ("flags", "mentions"),
    [
        (["--mode=replay"], ["--run=DIR"]),
        (["--mode=replay", "--run=nowhere"], ["nowhere", "config.json"]),
        (["--mode=replay", "--run=run", TINY], ["--run=run", "take away"]),
        (["--mode=replay", "--run=run", "--fdl.seed=3"], ["take away"]),
        (["--mode=replay", "--run=run", "--stop_after=3"], ["take away"]),
        (["--mode=replay", "--run=run"], ["may not import", "--trust_module"]),
        (["--run=run", TINY], ["--run belongs to --mode=replay"]),
        (["--force", TINY], ["--force belongs to --mode=replay"]),
        (["--mode=replay", "--run=run", "--trust_config=maybe"], ["maybe"]),
        (["--mode=replay", "--run=run", "--workdir=run", TRUST], ["not empty"]),
        (["--mode=replay", "--run=run", "--workdir=cache", TRUST], ["not empty"]),
    ],
)
def test_wrong_replays_end_in_one_line(flags, mentions, run, capsys):
    assert main_lib.main(flags) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 20
    for words in mentions:
        assert words in lines[-1], lines
    assert not Path("run-replay").exists()


def test_run_without_a_table_or_record_cannot_be_compared(run, capsys):
    (run / "run.json").unlink()
    assert "run.json" in replay(capsys)[2].splitlines()[-1]
    (run / "roxxel_metrics.csv").unlink()
    assert "roxxel_metrics.csv" in replay(capsys)[2].splitlines()[-1]


# -- what run.json holds -----------------------------------------------------------


def test_record_holds_all_that_a_run_depended_on(run):
    info = run_info.read(run)
    assert {"jax", "flax", "optax", "numpy", "roxxel"} <= info["packages"].keys()
    assert info["devices"]
    data = info["data"]["stream.dataset"]
    assert data["tokenizer"] == "digits"
    assert [Path(shard["file"]).name for shard in data["shards"]] == [
        "all_0000.rox",
        "all_0001.rox",
    ]
    assert all(len(shard["checksums"]) == 32 for shard in data["shards"])
    assert set(info["data"]) == {"stream.dataset", "evaluation.dataset"}


def git(*command):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, *command], check=True, capture_output=True)


def test_uncommitted_changes_are_kept(tmp_path, monkeypatch, capsys):
    """The repository is that of the experiment, wherever the run starts."""
    package = tmp_path / "clone" / "own_clone"
    package.mkdir(parents=True)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.chdir(package)
    toy = ["--fdl_config=own_clone.toy", "--workdir=w"]
    git("init", "..")
    Path("toy.py").write_text(
        "from toy_experiments import basic\n\n\ndef toy():\n    return basic.full()\n"
    )
    Path("code.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "one")
    assert run_info.repository("own_clone.toy.toy") == package.parent
    assert run_info.repository("json.loads") != package.parent  # that of roxxel
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main_lib.main(toy) == 0
    clean = run_info.read("w")["git"]
    assert clean["dirty"] is False
    assert not Path("w/uncommitted.diff").exists()
    (package / "code.py").write_text("a = 2 # café\n")
    (package / "new.py").write_text("")
    assert main_lib.main(toy) == 0
    info = run_info.read("w")["git"]
    assert (info["commit"], info["dirty"]) == (clean["commit"], True)
    assert info["untracked"] == ["own_clone/new.py"]
    assert "+a = 2 # café" in Path("w/uncommitted.diff").read_text()
    assert len(info["diff_sha256"]) == 64
    (package / "code.py").write_text("x" * (run_info.MAX_DIFF_BYTES + 1))
    assert main_lib.main(toy) == 0
    assert not Path("w/uncommitted.diff").exists()
    assert "keeps only their SHA-256" in capsys.readouterr().err


# -- resuming ------------------------------------------------------------------------


def test_finished_run_keeps_its_description(run, capsys):
    names = ("config.json", "config.txt", "run.json", "summary.json")
    before = [(run / name).read_bytes() for name in names]
    for flags in ([], ["--fdl_tag.Peak=0.1"], ["--stop_after=20"]):
        assert main_lib.main([TINY, "--workdir=run", *flags]) == 0
        assert [(run / name).read_bytes() for name in names] == before
    assert "schedule.peak: 0.05 -> 0.1" in capsys.readouterr().err


def test_resume_says_what_changed_and_allows_what_keeps_the_position(run, capsys):
    longer = [
        TINY,
        "--workdir=run",
        "--fdl.total_steps.steps=32",
        "--fdl_tag.Peak=0.01",
    ]
    assert main_lib.main(longer) == 0
    err = capsys.readouterr().err
    assert "ran before with" in err
    assert "schedule.peak: 0.05 -> 0.01" in err
    assert "total_steps.steps: 30 -> 32" in err
    assert sorted(curves.read(run, "")) == list(range(1, 33))
    assert "schedule.peak = 0.01" in (run / "config.txt").read_text()
    code, out, _ = replay(capsys)  # two learning rates in one curve
    assert code == 1
    assert "step 1 was" in out
    assert "First ingredient: configuration of a resume: total_steps.steps: 30" in out


@pytest.mark.parametrize(
    ("flag", "mentions"),
    [
        ("--fdl.stream.seed=7", ["seed", "42", "7"]),
        ("--fdl.stream.dataset.seed=5", ["fingerprint"]),
    ],
)
def test_resume_that_would_see_other_batches_is_refused(flag, mentions, run, capsys):
    names = ("config.json", "config.txt", "run.json", "roxxel_metrics.csv")
    before = [(run / name).read_bytes() for name in names]
    flags = [TINY, "--workdir=run", "--fdl.total_steps.steps=40", flag]
    assert main_lib.main(flags) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    for words in mentions:
        assert words in last, last
    assert [(run / name).read_bytes() for name in names] == before


def test_divergence_exits_3_through_the_command_line(run, capsys):
    flags = [TINY, "--workdir=nan", "--fdl_tag.Peak=1e38"]
    assert main_lib.main(flags) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert "is not finite" in last
    assert "(exit code 3)" in last
