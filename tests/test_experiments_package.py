"""Experiments of a package of one's own: by import, and by its metadata."""

import json

MODULE = '''
"""Experiments of another project."""

import fiddle as fdl

import roxxel


class Job:
    def __init__(self, size: int = 3):
        self.size = size

    def run(self, workdir, run_info):
        (workdir / "size.txt").write_text(str(self.size))


@roxxel.experiment
def theirs(size: int = 3) -> fdl.Config[Job]:
    """An experiment that its package advertises."""
    return fdl.Config(Job, size=size)


@roxxel.experiment
def hidden(size: int = 4) -> fdl.Config[Job]:
    """An experiment that only its import makes known."""
    return fdl.Config(Job, size=size)


def bigger(config: fdl.Buildable, by: int = 10) -> None:
    """A fiddler of the package."""
    config.size += by
'''

RUN = """
import json, sys
from roxxel.main import main

lines = [
    ["--mode=list"],
    ["--fdl_config=theirs", "--workdir=a"],
    ["--fdl_config=their_pkg.exps.theirs", "--fdl.size=5", "--workdir=b"],
    ["--fdl_config=their_pkg.exps.hidden(size=6)", "--workdir=c"],
    ["--fdl_config=theirs", "--fiddler=bigger(by=2)", "--workdir=d"],
    ["--fdl_config=hiden"],
]
sys.stderr.write(json.dumps([main(line) for line in lines]))
"""


def test_a_package_of_ones_own(run_python, tmp_path, repo_root):
    package = tmp_path / "site" / "their_pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "exps.py").write_text(MODULE)
    info = tmp_path / "site" / "their_pkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-pkg\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(
        "[roxxel.experiments]\ntheirs = their_pkg.exps:theirs\n"
    )
    path = f"{repo_root}:{tmp_path / 'site'}"
    done = run_python("-c", RUN, env={"PYTHONPATH": path})
    assert json.loads(done.stderr.splitlines()[-1]) == [0, 0, 0, 0, 0, 2], done.stderr
    assert "  theirs" in done.stdout
    sizes = [(tmp_path / folder / "size.txt").read_text() for folder in "abcd"]
    assert sizes == ["3", "5", "6", "5"]
    assert "hiden" in done.stderr
