"""docs/experiments.md: every command of it, in order, and every file that it shows."""

import pytest

from tests import pages

PAGE = "experiments.md"
TEXT = (pages.ROOT / "docs" / PAGE).read_text()


def test_every_python_block_is_a_file():
    assert all(name for kind, name, _ in pages.blocks(PAGE) if kind == "python")
    assert sum(kind == "bash" for kind, _, _ in pages.blocks(PAGE)) >= 12


@pytest.mark.slow
def test_every_command_runs(tmp_path, run_python):
    done = pages.run(PAGE, tmp_path, run_python)
    for words in (
        "embedding",  # check
        "model.d_model",  # diff
        "eval_loss",  # the leaderboard
        "#SBATCH --array=0-5",
    ):
        assert words in done.stdout, words
    assert (tmp_path / "ssm_tiny.svg").read_text().count("<svg") == 1
    assert (tmp_path / "sweeps/depth/leaderboard.csv").read_text().count("done") == 2


@pytest.mark.parametrize("kind", ["fiddlers", "sweeps", "tags"])
def test_tables_name_what_there_is(kind):
    from configs import fiddlers as fiddlers_module
    from configs import tags as tags_module
    from launch import options
    from roxxel.config import discover, fiddlers

    if kind == "fiddlers":
        names = fiddlers.names(fiddlers_module)
        names += [found.name for found in discover.in_package("experiments")]
    elif kind == "sweeps":
        flags = {*options._TEXT, *options._NUMBERS, *options._SWITCHES} - {"help"}
        names = sorted(flags - {"seed"})
    else:
        names = [n for n in vars(tags_module) if n[0].isupper()]
    assert [name for name in names if name not in TEXT] == []
