"""Every registered experiment: golden text, style, abstract build, two real steps.

A golden text holds what an experiment sets, without defaults. After a change that is
meant, write them again and read the difference:

    ROXXEL_WRITE_GOLDEN=1 python -m pytest tests/test_experiments.py -k golden
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fiddle import validation

from configs import runtime
from roxxel.config import discover, resolve, text
from roxxel.config.arguments import parse

TESTS = Path(__file__).parent
GOLDEN = TESTS / "data" / "golden_configs"
NAMES = [found.name for found in discover.in_package("experiments")]
REQUIRED = {
    *("ssm_tiny", "ssm_small", "ssm_medium", "ssm_1b", "hybrid_small"),
    *("transformer_tiny", "transformer_small", "transformer_1b"),
    *("transformer_gpt3_xl", "transformer_16b", "mixture_curriculum", "finetune"),
    "in_context",
}
# name -> parameters as the docstring says, in millions, and steps of the whole run
SIZES = {
    "ssm_tiny": (0.25, 200),
    "ssm_small": (0.75, 2800),
    "ssm_medium": (368, 14_115),
    "ssm_1b": (1340, 25_654),
    "transformer_tiny": (0.46, 200),
    "transformer_small": (0.74, 2800),
    "transformer_1b": (1240, 23_556),
    "transformer_gpt3_xl": (1317, 25_082),
    "transformer_16b": (16_700, 637_055),
    "hybrid_small": (0.75, 2800),
    "mixture_curriculum": (0.75, 2800),
    "finetune": (0.75, 100),
    "in_context": (0.72, 1000),
}


def config_of(name: str, *flags: str):
    return resolve.experiment(parse([f"--fdl_config={name}", *flags])).config


def test_the_library_is_complete():
    assert set(NAMES) == REQUIRED == set(SIZES)
    assert {file.stem for file in GOLDEN.glob("*.txt")} == REQUIRED


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    lines = [line for line in text.flat(config_of(name)) if "default" not in line.marks]
    found = "".join(f"{line}\n" for line in lines)
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("ROXXEL_WRITE_GOLDEN"):
        file.write_text(found)
    assert found == file.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_style(name):
    """Fiddle's measure of a configuration that people can still read."""
    validation.check_baseline_style(config_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_docstring_says_what_hardware_result_and_command(name):
    found = next(f for f in discover.in_package("experiments") if f.name == name)
    source = Path(TESTS.parent, *found.module.split(".")).with_suffix(".py").read_text()
    doc = ast.get_docstring(ast.parse(source)) or ""
    for word in (
        "What: ",
        "Hardware: ",
        "Expected: ",
        "Command: python -m roxxel.main",
    ):
        assert word in doc
    assert found.summary, "the function's own first line is shown by --mode=list"


@pytest.mark.parametrize("name", NAMES)
def test_tags_are_there(name):
    marks = {mark for line in text.flat(config_of(name)) for mark in line.marks}
    assert marks >= {
        f"tag {tag}"
        for tag in ("BatchSize", "SeqLen", "LearningRate", "ComputeDtype", "Seed")
    }


def start(cwd: Path, code: str, *argv: str) -> subprocess.Popen:
    flags = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    env = os.environ | {"PYTHONPATH": str(TESTS.parent), "XLA_FLAGS": flags}
    env |= {"ROXXEL_CACHE": str(cwd / "cache"), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


BUILD = """
import json, sys
import fiddle as fdl
from flax import nnx
from roxxel.config import arguments, resolve
from roxxel.models.ssm import num_params

found = {}
for name in sys.argv[1:]:
    line = arguments.parse([f"--fdl_config={name}", "--fiddler=synthetic_data"])
    trainer = fdl.build(resolve.experiment(line).config)
    model = nnx.eval_shape(lambda: trainer.model(rngs=nnx.Rngs(0)))
    found[name] = [num_params(model), trainer.total_steps]
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
# Not ru_maxrss, which a big parent hands down to its children.
(peak,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([found, int(peak.split()[1])]))
"""


def test_each_builds_without_a_device_or_its_memory(tmp_path):
    out, err = start(tmp_path, BUILD, *NAMES).communicate()
    assert out, err
    found, peak = json.loads(out)
    for name, (millions, steps) in SIZES.items():
        assert found[name][0] / 1e6 == pytest.approx(millions, rel=0.02), name
        assert found[name][1] == steps, name
    assert peak < 1_000_000, "16.7 G parameters take 67 GB"


RUN = """
import json, sys
from roxxel import main

flags = ["--fiddler=debug(steps=2)", "--fiddler=synthetic_data"]
flags += ["--fdl.evaluation=None", "--fdl.sample=None"]  # compiled by other tests
codes = {}
for name in sys.argv[1:]:
    line = [f"--fdl_config={name}", *flags, f"--workdir=runs/{name}"]
    codes[name] = main.main(line)
print(json.dumps(codes))
"""


# One of each kind of model and of stream; the others differ from them in numbers only.
KINDS = ["ssm_small", "finetune", "hybrid_small"]
KINDS += ["transformer_16b", "mixture_curriculum"]


def test_a_kind_each_trains_two_steps_under_debug(tmp_path):
    _train_two_steps(tmp_path, KINDS[:3], KINDS[3:])


@pytest.mark.slow
def test_the_others_train_two_steps_under_debug(tmp_path):
    others = [name for name in NAMES if name not in KINDS]
    _train_two_steps(tmp_path, others[::2], others[1::2])


def _train_two_steps(tmp_path: Path, *halves: list[str]) -> None:
    """Each half in a process; the fine-tuning begins with the run of ssm_small."""
    processes = [start(tmp_path, RUN, *names) for names in halves]
    for names, process in zip(halves, processes, strict=True):
        out, err = process.communicate()
        assert out, err
        assert json.loads(out.splitlines()[-1]) == dict.fromkeys(names, 0), err
        for name in names:
            table = (tmp_path / f"runs/{name}/roxxel_metrics.csv").read_text()
            steps = [row.partition(",")[0] for row in table.splitlines()[1:]]
            least = 3 if name == "mixture_curriculum" else 2  # one for each phase
            assert steps == [str(step) for step in range(1, least + 1)], name


def test_a_missing_data_set_is_one_line(tmp_path, monkeypatch, capsys):
    from roxxel import main

    monkeypatch.chdir(tmp_path)
    assert main.main(["--fdl_config=ssm_1b(data='no/such_*.rox')"]) == 2
    err = capsys.readouterr().err
    assert "no shards at 'no/such_*.rox'" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_held_out_data_come_with_the_data():
    """A run on one's own shards is not scored on bytes of another kind."""
    model = config_of("ssm_1b").model
    options = {"seq_len": 8, "batch_size": 2, "tokens": 64, "learning_rate": 1.0}
    alone = runtime.pretraining(model, data="a.rox", heldout=None, **options)
    assert "evaluation" not in alone.__arguments__
    both = runtime.pretraining(model, data="a.rox", heldout="b.rox", **options)
    assert both.evaluation.dataset.filepath == "b.rox"
    assert config_of("ssm_1b").evaluation.dataset.split == "heldout"
