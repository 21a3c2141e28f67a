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
    return [line for line in lines if "experiments.ssm_small" in line]


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
