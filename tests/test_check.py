"""`--mode=check`: a run foretold from shapes, without a device and without building."""

import re
from pathlib import Path

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from roxxel import main as main_lib
from roxxel import schedules, sharding
from roxxel.config import abstract, check_memory, check_model, rates, resolve
from roxxel.config.arguments import parse
from roxxel.models.ssm import Mamba2LM
from roxxel.train.optimizer import RunOptimizer
from roxxel.train.precision import Precision

TESTS = Path(__file__).parent
TINY = "--fdl_config=toy_experiments.tiny.tiny_run"
CHECK = [TINY, "--mode=check"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build_data(*flags):
    """Build what the configuration's data sets are, as training would."""
    config = resolve.experiment(parse([TINY, *flags])).config
    fdl.build(config.stream.dataset)
    fdl.build(config.evaluation.dataset)


def checked(capsys, *flags):
    """Exit code, report and errors of a check."""
    code = main_lib.main([*CHECK, *flags])
    out, err = capsys.readouterr()
    return code, out, err


_PROBE = """
import os, sys
from roxxel.main import main
for argv in {argvs!r}:
    print("CODE", main(argv))
from jax._src import xla_bridge
print("BACKENDS", xla_bridge.backends_are_initialized())
print("FILES", sorted(os.listdir(".")))
# Not ru_maxrss, which a big parent hands down to its children.
(peak,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("MB", int(peak.split()[1]) // 1000)
"""


def test_check_uses_no_device_builds_nothing_and_takes_little_memory(run_python):
    argvs = [
        CHECK,
        ["--fdl_config=toy_experiments.tiny.odd_schedule", "--mode=check"],
        [*CHECK, "--devices=16"],
        [*CHECK, "--fdl.init_from=gone"],
        [
            "--fdl_config=toy_experiments.tiny.mamba_1b",
            "--mode=check",
            "--fdl.mesh_axes=data=-1,fsdp=8",
            "--devices=16",
            "--memory=1GiB",
        ],
    ]
    env = {"PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    done = run_python("-c", _PROBE.format(argvs=argvs), env=env)
    lines = done.stdout.splitlines()
    codes = [line for line in lines if line.startswith("CODE")]
    assert codes == [f"CODE {code}" for code in (0, 0, 2, 2, 2)], done.stderr
    assert "BACKENDS False" in lines
    assert "FILES []" in lines
    assert int(lines[-1].split()[1]) < 1000
    assert "16 devices" in done.stderr
    assert "memory: 2.50 GiB" in done.stderr.splitlines()[-1]
    assert "--memory allows 1.00 GiB" in done.stderr


def test_what_a_mesh_cannot_cut_is_told_without_a_device(capsys):
    flags = [
        "--fdl.model=roxxel.models.transformer.TransformerLM("
        "vocab_size=250, d_model=48, n_layers=1, n_heads=6, n_kv_heads=3)",
        "--fdl.mesh_axes=tensor=4,context=3,data=2",
        "--fdl.dcn_axes=data=2",
        "--devices=48",
    ]
    code, out, _ = checked(capsys, *flags)
    assert code == 2
    for words in (
        "mesh tensor=4, context=3, data=4 (48 device(s))",
        "model: n_heads = 6 does not divide by 4 (tensor).",
        "model: n_kv_heads = 3 does not divide by 4 (tensor), nor the other way round.",
        "vocab_size, padded to pad_vocab_to, = 250 does not divide by 4 (tensor).",
        "stream: seq_len 8 does not divide by 3 (context); nearest that do: 6 or 9.",
    ):
        assert words in out, out


def test_report_before_and_after_the_data_are_built(capsys):
    code, out, err = checked(capsys)
    assert (code, err) == (0, "")
    assert "not built yet" in out
    assert "fingerprint" not in out
    build_data()
    code, out, err = checked(capsys)
    assert (code, err) == (0, "")
    for words in (
        "total              256",
        "mesh data=1 (1 device(s))",
        "stream.dataset      2,000 elements of uint8, 2 shard(s), fingerprint ",
        "tokenizer digits",
        "30 steps of 8 x 8 tokens, 8 row(s) on a device",
        "1,920 tokens in all, 0.97 epochs of 31 steps",
        "checkpoint every 10 steps and at the end",
        "evaluation every 10 steps and at the end on the held-out set eval",
        "1,536 FLOPs a token",
        "end of warm-up     step         1  0.05",
    ):
        assert words in out, out


# One override of a knob, and what it moves in the report (before -> after).
KNOBS = {
    "--fdl_tag.Width=16": [
        ("30 steps of 8 x 8 tokens", "30 steps of 16 x 8 tokens"),
        ("1,920 tokens in all, 0.97 epochs", "3,840 tokens in all, 2.00 epochs"),
    ],
    "--fdl.stream.seq_len=16": [
        ("30 steps of 8 x 8 tokens", "30 steps of 8 x 16 tokens"),
        ("epochs of 31 steps", "epochs of 15 steps"),
    ],
    "--fdl.total_steps.epochs=2 --fdl.total_steps.steps=None": [
        ("30 steps", "62 steps"),
        ("middle             step        15", "middle             step        31"),
        ("end                step        29", "end                step        61"),
    ],
    "--fdl.total_steps.tokens=2e3 --fdl.total_steps.steps=None": [
        ("30 steps", "32 steps"),
    ],
    "--fdl.stream.dataset.count=4000": [
        ("stream.dataset      2,000 elem", "stream.dataset      4,000 elem"),
        ("0.97 epochs of 31 steps", "0.48 epochs of 62 steps"),
    ],
}


@pytest.mark.parametrize("flags", KNOBS)
def test_one_override_moves_stream_plan_schedule_and_report(flags, capsys):
    build_data()
    build_data(*flags.split())
    _, before, _ = checked(capsys)
    code, after, err = checked(capsys, *flags.split())
    assert code == 0, err
    for old, new in KNOBS[flags]:
        assert old in before, before
        assert new in after, after
        assert old not in after


def test_phases_of_a_mixture_are_a_row_each(capsys):
    phases = ["--fdl_config=toy_experiments.tiny.two_phases"]
    assert main_lib.main([*phases, "--mode=check"]) == 0
    plan = capsys.readouterr().out.partition("\nplan\n")[2].splitlines()
    assert plan[0].startswith("  10 steps of 8 x 8 tokens")
    assert plan[1].startswith("  5 steps of 12 x 16 tokens")
    assert plan[2].startswith("  1,600 tokens in all; epochs are not known")
    config = resolve.experiment(parse(phases)).config
    for node in (*config.stream.mix.values(), config.evaluation.dataset):
        fdl.build(node)
    assert main_lib.main([*phases, "--mode=check"]) == 0
    out = capsys.readouterr().out
    for words in (
        "10 steps of 8 x 8 tokens",
        "5 steps of 12 x 16 tokens",
        "1,600 tokens in all",
        "end                step        14",
        "stream.mix['b']     2,000 elements",
    ):
        assert words in out, out
    assert main_lib.main([*phases, "--mode=check", "--devices=8"]) == 2
    assert "batch_size 12 does not divide over 8" in capsys.readouterr().err


def test_batch_size_moves_an_epoch_budget_and_its_schedule(capsys):
    build_data()
    epochs = ["--fdl.total_steps.epochs=2", "--fdl.total_steps.steps=None"]
    _, one, _ = checked(capsys, *epochs)
    _, two, _ = checked(capsys, *epochs, "--fdl.stream.batch_size=16")
    ends = [re.search(r"end +step +(\d+) ", text)[1] for text in (one, two)]
    assert ends == ["61", "29"]
    assert "62 steps of 8 x 8" in one
    assert "30 steps of 16 x 8" in two


@pytest.mark.parametrize(
    ("flags", "mentions"),
    [
        (["--devices=3"], ["stream: batch_size 8", "3 devices", "6 or 9"]),
        (["--devices=16"], ["batch_size 8", "16 devices", "16."]),
        (["--fdl.mesh_axes=data=2,fsdp=3", "--devices=4"], ["mesh axes", "4 devices"]),
        (["--fdl.mesh_axes=data=-1,fsdp=-1"], ["mesh axes", "at most one"]),
        (["--memory=1e3"], ["memory: 4.01 KiB", "1,000 B", "fsdp"]),
        (["--memory=lots"], ["--memory=lots", "16GiB"]),
        (["--memory=-1GB"], ["--memory=-1GB", "16GiB"]),
        (["--devices=two"], ["--devices=two", "int"]),
        (["--devices=0"], ["--devices=0", "at least 1"]),
        (["--fdl.stream.batch_size=-3"], ["stream", "batch_size", "-3"]),
        (["--fdl.schedule.peak=-1"], ["schedule", "peak", "-1"]),
        (["--fdl.optimizer.clip_norm=0"], ["optimizer", "clip_norm", "0"]),
        (["--fdl.stream.overlap=-1"], ["stream", "overlap", "-1"]),
        (["--fdl.total_steps.steps=0"], ["total_steps", "0"]),
        (
            [
                "--fdl.model=roxxel.models.ssm.Mamba2LM(vocab_size=9,d_model=0,n_layers=1)"
            ],
            ["model", "d_model", "0"],
        ),
    ],
)
@pytest.mark.parametrize("built", [False, True])
def test_what_does_not_fit_exits_2_and_says_why(flags, mentions, built, capsys):
    if built:
        build_data()
    code, _, err = checked(capsys, *flags)
    last = err.splitlines()[-1]
    assert code == 2
    assert last.startswith("roxxel: error: ")
    for words in mentions:
        assert words in last, err
    assert len(err.splitlines()) <= 20


def test_data_with_a_place_of_their_own_are_not_written(folder, capsys):
    own = "--fdl.stream.dataset=toy_experiments.tiny.written()"
    code, out, err = checked(capsys, own)
    assert (code, err) == (0, "")
    assert "stream.dataset      not built yet" in out
    assert list(folder.iterdir()) == []
    code, out, err = checked(
        capsys, "--fdl.stream.dataset=roxxel.Roxxel(filepath='nowhere/x_*.rox')"
    )
    assert code == 2
    assert "no shards at 'nowhere/x_*.rox'" in err.splitlines()[-1]


def test_minutes_are_not_measured_by_a_check(capsys):
    minutes = ["--fdl.total_steps.minutes=5", "--fdl.total_steps.steps=None"]
    code, out, err = checked(capsys, *minutes)
    assert (code, err) == (0, "")
    assert "5.0 minutes, measured when the run starts" in out
    assert "optimizer state      2.01 KiB" in out
    assert "schedule" not in out


def test_wrong_sizes_are_refused_before_data_are_built(folder, capsys):
    for flags in (["--fdl_tag.Width=-3"], ["--fdl.optimizer.clip_norm=0"]):
        assert main_lib.main([TINY, *flags]) == 2
        assert "roxxel: error: " in capsys.readouterr().err
        assert list(folder.iterdir()) == []


def test_repeated_layers_are_one_row():
    model = nnx.eval_shape(
        lambda: Mamba2LM(vocab_size=32, d_model=64, n_layers=3, rngs=nnx.Rngs(0))
    )
    table = check_model.parameters(model)
    assert re.search(r"blocks\.\*\.mixer +[\d,]+  \(3 x [\d,]+\)", table), table
    total = sum(p.size for p in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert table.splitlines()[-1].split() == ["total", f"{total:,}"]
    assert check_model.num_params(model) == total


@pytest.mark.parametrize(
    "axes", [{"data": 8}, {"data": 2, "fsdp": 4}, {"fsdp": 8}, {"replica": 8}]
)
def test_memory_is_that_of_a_real_state_on_a_mesh(axes):
    optimizer = optax.adamw(1e-3)

    def create():
        model = Mamba2LM(vocab_size=64, d_model=64, n_layers=2, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    made, real = sharding.create_on(sharding.make_mesh(axes), create)

    def held(state):
        return sum(
            leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state)
        )

    shown = check_memory.memory(
        nnx.eval_shape(lambda: create()[0]),
        abstract.Values(fields={"optimizer": optimizer}),
        check_memory.mesh_sizes(axes, 8, []),
        None,
        problems=[],
    )
    params, state = held(nnx.state(made)), held(nnx.state(real.opt_state))
    assert f"parameters {check_memory.shown(params):>18}" in shown
    assert f"optimizer state  {check_memory.shown(state):>12}" in shown
    assert f"together {check_memory.shown(2 * params + state):>20}" in shown


def test_memory_counts_what_a_run_keeps_beside_its_weights():
    tx, axes = optax.adamw(1e-3), {"data": 2, "fsdp": 4}
    precision = Precision(params="bfloat16", gradients="bfloat16")

    def create():
        model = Mamba2LM(vocab_size=64, d_model=64, n_layers=2, rngs=nnx.Rngs(0))
        options = {"precision": precision, "ema_decay": 0.9}
        return model, RunOptimizer(model, tx, **options)

    def held(state, dtype=None):
        return sum(
            np.prod(leaf.sharding.shard_shape(leaf.shape))
            * jnp.dtype(dtype or leaf.dtype).itemsize
            for leaf in jax.tree.leaves(state)
        )

    model, optimizer = sharding.abstract_on(sharding.make_mesh(axes), create)
    fields = {"optimizer": tx, "precision": precision, "ema_decay": 0.9}
    shown = check_memory.memory(
        nnx.eval_shape(
            lambda: Mamba2LM(vocab_size=64, d_model=64, n_layers=2, rngs=nnx.Rngs(0))
        ),
        abstract.Values(fields=fields),
        axes,
        None,
        problems=[],
    )
    params = nnx.state(model)
    step = 4  # bytes, of the optimizer's own count
    whole = held(params) + held(params, "bfloat16") + held(nnx.state(optimizer)) - step
    assert f"gradients {check_memory.shown(held(params, 'bfloat16')):>19}" in shown
    assert f"together {check_memory.shown(whole):>20}" in shown


SCHEDULES = {
    "cosine": schedules.warmup_cosine(peak=0.1, total_steps=100),
    "linear": schedules.warmup_linear(peak=0.1, total_steps=100, warmup=0),
    "stable": schedules.warmup_stable_decay(peak=0.1, total_steps=100),
    "rsqrt": schedules.warmup_rsqrt(peak=0.1, total_steps=100),
    "constant": schedules.constant(peak=0.1, total_steps=100),
    "one step": schedules.warmup_cosine(peak=0.1, total_steps=1),
    "optax": optax.warmup_cosine_decay_schedule(0.0, 0.1, 7, 100),
    "polynomial": optax.polynomial_schedule(0.1, 0.0, 2.5, 50, 10),
    "exponential": optax.warmup_exponential_decay_schedule(0, 0.1, 5, 20, 0.5),
    "pieces": optax.piecewise_constant_schedule(0.1, {10: 0.5, 50: 0.1}),
    "sgdr": optax.sgdr_schedule(
        [dict(init_value=0, peak_value=0.1, decay_steps=40, warmup_steps=3)] * 2
    ),
    "number": 0.25,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_on_the_host_are_those_of_the_device(name):
    schedule = SCHEDULES[name]
    rate = rates.on_host(schedule)
    for step in (0, 1, 2, 5, 7, 50, 99, 100, 1000):
        expected = schedule(np.int32(step)) if callable(schedule) else schedule
        np.testing.assert_allclose(rate(step), float(expected), rtol=2e-5, atol=1e-9)


def test_peak_of_a_schedule_that_tells_nothing_is_found(capsys):
    flags = ["--fdl_config=toy_experiments.tiny.odd_schedule", "--mode=check"]
    flags += ["--fdl.schedule.warmup_steps=700", "--fdl.total_steps.steps=5e3"]
    assert main_lib.main(flags) == 0
    out = capsys.readouterr().out
    assert "end of warm-up     step       700  0.1" in out


def test_schedule_that_needs_a_device_is_not_shown(capsys):
    schedule = optax.piecewise_interpolate_schedule("cosine", 0.1, {50: 0.1})
    with pytest.raises(rates.NeedsDeviceError, match="needs a device"):
        rates.on_host(schedule)(0)
    flags = ["--fdl_config=toy_experiments.tiny.odd_schedule", "--mode=check"]
    flags += [
        "--fdl.schedule=optax.piecewise_interpolate_schedule("
        "interpolate_type=cosine,init_value=0.1)"
    ]
    assert main_lib.main(flags) in (0, 2)
    assert "not shown" in capsys.readouterr().out


def test_models_by_fragment_and_by_class(capsys):
    for call in (
        "toy_experiments.tiny.small(width=32)",
        "tests.tiny.Bigram(vocab_size=32)",
    ):
        code, out, err = checked(capsys, f"--fdl.model={call}")
        assert (code, err) == (0, "")
        assert "total            1,024" in out


@pytest.mark.parametrize(
    ("flags", "mentions"),
    [
        (["--fdl.init_from=gone"], ["init_from='gone'", "holds no checkpoint"]),
        (["--fdl.init_step=3"], ["init_step needs init_from"]),
    ],
)
def test_the_run_to_begin_with_has_to_be_there(flags, mentions, capsys):
    for build in (lambda: None, build_data):
        build()
        code, out, err = checked(capsys, *flags)
        assert code == 2
        for words in mentions:
            assert words in err.splitlines()[-1]
            assert words in out
    assert not Path("runs").exists()


def test_a_node_that_exits_is_a_problem(capsys):
    flags = ["--fdl_config=toy_experiments.basic.exits_when_built", "--mode=check"]
    assert main_lib.main(flags) == 2
    assert "SystemExit" in capsys.readouterr().err.splitlines()[-1]
