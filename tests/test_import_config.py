"""Settings of MaxText and nanoGPT become an experiment that means the same."""

import importlib.util
import pathlib
import sys

import fiddle as fdl
import pytest

from roxxel import main
from roxxel.config.importing import coming_from
from roxxel.config.importing.maxtext import MAXTEXT
from roxxel.config.importing.nanogpt import NANOGPT

MAXTEXT_FILE = """
base_config: "base.yml"
decoder_block: "llama2"
base_emb_dim: 64
base_num_query_heads: 4
base_num_kv_heads: 2
head_dim: 16
base_mlp_dim: 128
base_num_decoder_layers: 2
vocab_size: 512
per_device_batch_size: 2.0
gradient_accumulation_steps: 2
max_target_length: 128
steps: 10
learning_rate: 3.e-4
adam_b2: 0.98
ici_fsdp_parallelism: 2
ici_tensor_parallelism: 2
dcn_data_parallelism: 2
remat_policy: minimal
dataset_type: hf
hf_path: some/data
some_new_thing: 7
"""

NANOGPT_FILE = """
out_dir = 'out-shakespeare-char'
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.0
batch_size = 64
block_size = 256
gradient_accumulation_steps = 5 * 8
learning_rate = 1e-3
max_iters = 5000
lr_decay_iters = max_iters
min_lr = learning_rate / 10
beta2 = 0.99
dtype = 'float16'
"""


@pytest.fixture
def imported(tmp_path, capsys):
    """Runs the command; the config that the module it made returns, and its text."""

    def run(name, text, *flags):
        file, made = tmp_path / name, tmp_path / f"made_{len(sys.modules)}.py"
        file.write_text(text)
        command = ["--mode=import_config", f"--from={file}", f"--output={made}"]
        code = main.main([*command, *flags])
        assert code == 0, capsys.readouterr().err
        spec = importlib.util.spec_from_file_location(made.stem, made)
        module = importlib.util.module_from_spec(spec)
        sys.modules[made.stem] = module
        spec.loader.exec_module(module)
        return module.imported, made.read_text()

    yield run
    from roxxel.config import registry

    registry._entries.pop("imported", None)


def test_maxtext(imported):
    function, text = imported("base.yml", MAXTEXT_FILE, "--devices=4")
    config = function()
    model = config.model
    assert (model.d_model, model.n_layers, model.d_ff) == (64, 2, 128)
    assert (model.n_heads, model.n_kv_heads, model.head_dim) == (4, 2, 16)
    assert (model.vocab_size, model.scan_layers, model.remat) == (512, True, "dots")
    # Two rows a device on four, twice before an update.
    assert (config.stream.batch_size, config.accumulate) == (16, 2)
    assert config.total_steps.tokens == 10 * 16 * 128
    assert config.schedule.peak == 3e-4
    assert config.optimizer.b2 == 0.98
    assert config.dcn_axes == {"data": 2}
    assert config.mesh_axes == {"fsdp": 2, "tensor": 2}
    assert "hf_path = 'some/data'" in text
    assert "some_new_thing" in text


def test_nanogpt_is_read_and_not_run(imported):
    function, text = imported("train_char.py", NANOGPT_FILE)
    config = function()
    assert (config.model.d_model, config.model.n_layers) == (384, 6)
    assert (config.stream.batch_size, config.accumulate) == (64 * 40, 40)
    assert config.total_steps.tokens == 5000 * 64 * 40 * 256
    assert config.schedule.final_fraction == pytest.approx(0.1)
    assert fdl.build(config.schedule)(2000) == pytest.approx(1e-3)
    assert "GPT-2" in text


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yml", "decoder_block: gemma2\n", "decoder_block is 'gemma2'"),
        ("a.yml", "num_experts: 8\n", "num_experts is 8"),
        ("a.yml", "a: [1,\n", "no YAML"),
        ("a.yml", "- 1\n", "names and values"),
        ("a.yml", "colour: 3\n", "none of the settings of MaxText"),
        ("a.yml", "steps: 5\nremat_policy: save_qkv_proj\n", "remat_policy"),
        ("a.yml", "steps: 5\nper_device_batch_size: 0.25\n", "--devices=N"),
        ("a.py", "n_layer = open('x')\n", "which is not run"),
        ("a.py", "n_layer = 9 ** 9 ** 9 ** 9\n", "which is not run"),
        ("a.py", "n_layer = (\n", "no Python"),
        ("a.py", "n_layer = 2\ndropout = 0.2\n", "dropout is 0.2"),
        ("a.py", "max_iters = 5\n", "lr_decay_iters"),
        ("a.py", "n_layer = 'six'\n", "n_layer is 'six', expected a positive whole"),
        ("a.py", "n_layer = -4\n", "n_layer is -4, expected a positive whole number"),
        ("a.py", "learning_rate = 'high'\n", "learning_rate is 'high', expected float"),
        ("a.yml", "steps: many\n", "steps is 'many', expected int"),
        ("a.yml", "base_emb_dim: 0.5\n", "base_emb_dim is 0.5"),
        ("a.yml", "scan_layers: 3\n", "scan_layers is 3, expected bool"),
        ("a.json", "{}", "expected a MaxText"),
    ],
)
def test_what_has_no_equal_is_one_line(tmp_path, capsys, name, text, says):
    file = tmp_path / name
    file.write_text(text)
    made = tmp_path / "made.py"
    flags = ["--mode=import_config", f"--from={file}", f"--output={made}"]
    assert main.main(flags) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not made.exists()


def test_flags(tmp_path, capsys):
    file = tmp_path / "a.yml"
    file.write_text("steps: 5\n")
    assert main.main(["--mode=import_config"]) == 2
    assert main.main(["--mode=import_config", "--from=/nowhere.yml"]) == 2
    both = ["--mode=import_config", f"--from={file}"]
    assert main.main([*both, "--fdl_config=experiments.ssm_small"]) == 2
    assert main.main([*both, "--devices=x"]) == 2
    assert main.main([*both, f"--output={file}"]) == 2
    assert file.read_text() == "steps: 5\n"
    capsys.readouterr()
    assert main.main(both) == 0
    assert "def imported(" in capsys.readouterr().out


def test_the_page_holds_the_tables(repo_root: pathlib.Path):
    page = (repo_root / "docs" / "coming-from.md").read_text()
    for program in (MAXTEXT, NANOGPT):
        assert coming_from.table(program) in page, (
            f"docs/coming-from.md: put in the table of {program.name} anew: "
            "python -m roxxel.config.importing.coming_from"
        )
