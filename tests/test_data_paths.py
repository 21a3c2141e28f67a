"""Which files a path names: one data set, never two by accident."""

import os
import pathlib

import pytest

from roxxel import ConfigError, Roxxel, rox
from roxxel.data import paths


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(*names):
        for name in names:
            pathlib.Path(name).parent.mkdir(exist_ok=True)
            pathlib.Path(name).touch()

    return make


@pytest.mark.parametrize(
    ("names", "location", "found"),
    [
        (["w_0000", "w_0001", "w_train_0000", "w_x"], "w_*.rox", ["w_0000", "w_0001"]),
        (["wiki_en_0000", "wiki_0000"], "wiki_????.rox", ["wiki_0000"]),
        (["w_0000", "w_en_0000"], "./w_*.rox", ["./w_0000"]),
        (["f [1]/w_0", "f [1]/w_b_0"], "f [1]//w_*.rox", ["f [1]/w_0"]),
        (["f/0000", "f/0001", "f/w_0000"], "f", ["f/0000", "f/0001"]),
        (["w_en_9", "w_en_10"], "w_*.rox", ["w_en_9", "w_en_10"]),  # a single series
        (["w_en_9", "w_en_10"], "w_*", ["w_en_9", "w_en_10"]),
        (["f/w_2", "f/w_10"], "f", ["f/w_2", "f/w_10"]),
        (["a", "b"], "*.rox", ["a", "b"]),  # no numbers: together
        (["f/a", "f/b"], "f", ["f/a", "f/b"]),
        (["w-0-of-2", "w-1-of-2"], ".", ["./w-0-of-2", "./w-1-of-2"]),
        (["w-0-of-2", "w-1-of-2"], "w-*.rox", ["w-0-of-2", "w-1-of-2"]),
        (["p1/w_0", "p2/w_0", "b/w_0"], "p*/w_*.rox", ["p1/w_0", "p2/w_0"]),
        (["c-0-v1", "c-1-v1", "c-1-v2"], "c-*-v1.rox", ["c-0-v1", "c-1-v1"]),
        (["w_0000", "w_en_0000"], "w.rox", ["w_0000"]),
    ],
)
def test_a_path_of_one_data_set(make, names, location, found):
    make(*(f"{name}.rox" for name in names))
    assert paths.find(location) == [f"{name}.rox" for name in found]
    assert paths.apart(location) == [location]


@pytest.mark.parametrize(
    ("names", "location", "sets"),
    [
        (["w_train_0", "w_heldout_0"], "w_*.rox", ["w_heldout_*", "w_train_*"]),
        (["w_0", "w_en_0"], "w*.rox", ["w_*", "w_en_*"]),
        (["f/w_0", "f/w_en_0", "f/w_en_1"], "f", ["f/w_*", "f/w_en_*"]),
        (["train_0", "heldout"], ".", ["./heldout", "./train_*"]),
        (["train/w_0", "held/w_0"], "*/w_*.rox", ["held/w_*", "train/w_*"]),
        (["a_0", "b_0"], "[ab]_0.rox", ["a_*", "b_*"]),
        (["a2019_0", "a2020_0"], "a2*_*0.rox", ["a2019_*", "a2020_*"]),
        (["x[1]_0", "y_0"], "*.rox", ["x[[]1]_*", "y_*"]),
    ],
)
def test_several_data_sets_are_refused_and_named(make, names, location, sets):
    make(*(f"{name}.rox" for name in names))
    named = [f"{name}.rox" for name in sets]
    with pytest.raises(ConfigError, match=r"names 2 data sets.* a list") as info:
        Roxxel(location).open()
    assert all(repr(name) in str(info.value) for name in named)
    assert "\n" not in str(info.value)
    assert paths.apart(location) == named
    assert all(paths.find(name) for name in named)


def test_held_out_data_are_not_read_with_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("in.txt").write_text("".join(f"line {i}\n" for i in range(200)))
    build = ["build", "w_*.rox", "--text", "in.txt", "--unit", "line"]
    assert rox.main([*build, "--heldout", "0.1"]) == 0
    capsys.readouterr()
    train, held = Roxxel("w_train_*.rox"), Roxxel("w_heldout_*.rox")
    for command in (["info"], ["verify"], ["head", "--text"]):
        assert rox.main([*command, "w_*.rox"]) == 0
        out = capsys.readouterr().out
        assert out.index("w_heldout_*.rox") < out.index("w_train_*.rox")
    with pytest.raises(ConfigError, match=r"'w_heldout_\*.rox', 'w_train_\*.rox'"):
        len(Roxxel("w_*.rox"))
    both = Roxxel(train.shards + held.shards)  # asked for
    assert both.num_elements == train.num_elements + held.num_elements
    for option in ([], ["--resume"], ["--overwrite"]):
        before = sorted(os.listdir())
        assert rox.main([*build, *option]) == 2
        assert "names 2 data sets" in capsys.readouterr().err
        assert sorted(os.listdir()) == before


@pytest.mark.parametrize("options", [{"resume": True}, {"mode": "skip"}])
def test_another_data_set_is_not_taken_for_the_one_written(tmp_path, options):
    Roxxel(tmp_path / "wiki_en_*.rox").write([[1]])
    with pytest.raises(ConfigError, match=r"wiki_en_0000\.rox .* move it or write"):
        Roxxel(tmp_path / "wiki_*.rox").write([[2]], **options)
    assert len(list(tmp_path.iterdir())) == 1
