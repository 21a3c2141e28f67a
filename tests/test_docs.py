"""Pages of the documentation: their code runs, their tables are true, the site is."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from roxxel.config import options
from tests import pages

DOCS = pages.ROOT / "docs"


def test_your_data(tmp_path, run_python):
    pages.run("your-data.md", tmp_path, run_python)
    assert (tmp_path / "notes_train_0000.rox").exists()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-run.md", "your-model.md", "resume.md"])
def test_every_block_runs(page, tmp_path, run_python):
    assert pages.blocks(page)
    pages.run(page, tmp_path, run_python)


@pytest.mark.slow
def test_use_of_a_model(tmp_path, run_python):
    """What the page takes is made by the first command of the page before it."""
    pytest.importorskip("openai", reason="the public client is not installed")
    first = next(b for b in pages.blocks("first-run.md") if "runs/first" in b[2])
    done = pages.run("use.md", tmp_path, run_python, prepare=[first])
    assert "eval_loss" in done.stdout
    assert (tmp_path / "tasks.jsonl").stat().st_size > 100


def test_flags_are_those_there_are():
    assert options.usage() in (DOCS / "flags.md").read_text()


def test_every_page_is_in_the_site():
    import yaml

    config = yaml.safe_load((pages.ROOT / ".mkdocs.yml").read_text())
    named = set(re.findall(r"[\w-]+\.md", json.dumps(config["nav"])))
    assert named == {path.name for path in DOCS.glob("*.md")}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["-f", str(pages.ROOT / ".mkdocs.yml"), "-d", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pages.ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    api = (tmp_path / "site/api/index.html").read_text()
    assert "estimate_steps" in api


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.read(DOCS / "first_run.ipynb", as_version=4)
    os.environ["PYTHONPATH"] = str(pages.ROOT)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources=resources
    )
    client.execute()
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "Once upon" in printed
    assert pathlib.Path(tmp_path, "runs/notebook/summary.json").exists()
