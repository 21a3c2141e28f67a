"""What the README shows is what happens."""

import pathlib
import re
import shlex
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def test_the_first_two_bash_blocks_are_the_main_job_and_the_tests():
    job, tests = blocks("bash")[:2]
    for block in (job, tests):
        assert block.startswith("python3 -m venv .venv\n.venv/bin/pip install")
    assert job.splitlines()[-1].endswith(
        "-m roxxel.main --fdl_config=experiments.ssm_small"
    )
    assert tests.splitlines()[-1] == ".venv/bin/python -m pytest"


def test_extras_in_the_bash_blocks_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"-e '\.\[(\w+)\]'", README):
        assert extra in project["optional-dependencies"]


def test_the_published_example_is_shown_as_it_is_tested():
    assert (ROOT / "docs" / "published_example.py").read_text() in blocks("python")


@pytest.fixture(scope="module")
def own_experiment():
    (block,) = (text for text in blocks("python") if "def my_text" in text)
    assert len(block.splitlines()) <= 20
    return block


def test_an_experiment_of_ones_own_runs_from_any_folder(
    own_experiment, tmp_path, run_python
):
    (tmp_path / "my_experiments.py").write_text(own_experiment)
    (tmp_path / "my_text").mkdir()
    for index in range(40):
        text = f"Document {index}: " + "the quick brown fox jumps. " * 20
        (tmp_path / "my_text" / f"{index}.txt").write_text(text)
    (line,) = re.findall(r"^    python (-m roxxel.main .*my_text)$", README, re.M)
    done = run_python(
        *shlex.split(line),
        "--fiddler=debug",
        env={"ROXXEL_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "eval_bits_per_byte" in done.stdout
    assert (tmp_path / "runs" / "my_text" / "summary.json").exists()


def shown_commands():
    lines = re.findall(r"^    python (-m roxxel\.main .*)$", README, re.M)
    return [
        line
        for line in lines
        if "experiments.ssm_small" in line and "launch.local" not in line
    ]


@pytest.mark.parametrize("line", shown_commands())
def test_each_override_shown_is_accepted(line, tmp_path, run_python):
    done = run_python(*shlex.split(line), "--print_config")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_exit_codes_are_those_of_the_library():
    from roxxel import errors

    table = re.findall(r"^\| (\d+) \| (\w+)", README, re.M)
    assert {int(code) for code, _ in table} == {
        errors.EXIT_OK,
        errors.EXIT_ERROR,
        errors.EXIT_CONFIG,
        errors.EXIT_DIVERGED,
        errors.EXIT_RESTART,
    }


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_data_from_the_command_line_and_a_mixture(tmp_path, run_python):
    """The lines and the block under "Data", in the order in which they stand."""
    rows = [
        f'{{"text": "Document {i}: {"lazy dogs sleep. " * 50}"}}' for i in range(400)
    ]
    (tmp_path / "web.jsonl").write_text("\n".join(rows))
    (tmp_path / "code").mkdir()
    for path in (ROOT / "roxxel/config").glob("*.py"):
        (tmp_path / "code" / path.name).write_text(path.read_text())
    lines = re.findall(r"^    python (-m roxxel\.rox .*web.*)$", README, re.M)
    assert len(lines) == 3
    for line in lines:
        run_python(*shlex.split(line), check=True)
    assert len(list(tmp_path.glob("web_*.rox"))) == 2
    (block,) = (text for text in blocks("python") if "MixtureStream(" in text)
    (tmp_path / "mix.py").write_text(block)
    cache = {"ROXXEL_CACHE": str(tmp_path / "cache")}
    done = run_python("mix.py", env=cache, check=True)
    assert done.stdout == "196 (8, 65) (4, 129)\n"


def test_commands_of_a_check_are_those_of_the_tutorial():
    """docs/experiments.md shows them too, and a test runs all of its commands."""
    tutorial = (ROOT / "docs/experiments.md").read_text()
    (line,) = re.findall(r"^    python .*--mode=check .*$", README, re.M)
    assert sorted(line.split()) in [sorted(row.split()) for row in tutorial.split("\n")]
    assert "-m launch.sweep" in tutorial


def test_commands_that_use_a_run_are_those_of_the_pages():
    """Tests run all commands of these pages."""
    known = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("use",))
    for mode in ("eval", "sample", "serve"):
        (line,) = re.findall(rf"^    (python .*--mode={mode} .*)$", README, re.M)
        assert line.replace("runs/ssm_small", "runs/first") in known


def test_runs_are_read_back(tmp_path, run_python):
    pytest.importorskip("plotly")
    for name in ("ssm_small", "again"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"total_steps": 1}')
        (folder / "roxxel_metrics.csv").write_text("step,loss,perplexity\n1,2.0,7.4\n")
    lines = re.findall(r"^    python (-m roxxel\.runs .*)$", README, re.M)
    assert len(lines) == 4
    for line in lines:
        run_python(*shlex.split(line), check=True)
    assert (tmp_path / "report.html").stat().st_size > 1e6
