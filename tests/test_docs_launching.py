"""docs/launching.md: every command of it, as a dry run, on one and the same line."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from launch import jobset, local
from launch.line import split
from roxxel import main

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/launching.md").read_text()
LINE = ["--fdl_config=experiments.ssm_small", "--workdir=/runs/two"]
COMMANDS = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
MODULES = {"launch.local": local.main, "launch.jobset": jobset.main}


def dry(words: list[str], capfd) -> str:
    """What a command prints with `--dry_run` among its own flags."""
    own, line = split(words)
    behind = ["--", *line] if line else []
    if own[:2] == ["python", "-m"]:
        assert MODULES[own[2]]([*own[3:], "--dry_run", *behind]) == 0
        return capfd.readouterr().out
    if own[0] == "sbatch":
        own = own[own.index("launch/slurm.sbatch") :]
    command = ["bash", *own, "--dry_run", *behind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_would_run(command, capfd, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    words = shlex.split(command)
    if words[2] == "roxxel.main":
        assert words[3:] == LINE
        assert main.main([*LINE[:1], "--print_config"]) == 0
        return
    printed = dry(words, capfd)
    takes_line = "--" in words
    assert split(words)[1] == (LINE if takes_line else [])
    if "launch.jobset" in words:
        (job,) = yaml.safe_load(printed)["spec"]["replicatedJobs"]
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert container["command"][-5:] == ["python3", "-m", "roxxel.main", *LINE]
    elif takes_line:
        shown = re.sub(r"[\\']", "", printed)
        assert f"-m roxxel.main {' '.join(LINE)}" in shown


def test_all_launchers_are_there():
    named = " ".join(COMMANDS)
    for name in ("launch.local", "slurm.sbatch", "tpu_vm.sh", "launch.jobset"):
        assert name in named
