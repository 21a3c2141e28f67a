"""Wrong command lines: each ends with exit 2 and one readable line, and nothing else.

The table is run in one process; `test_cli.py` runs a few as real commands.
"""

import json
import sys
from pathlib import Path

import pytest

from roxxel import main as main_lib
from roxxel.config import load

TOY = "--fdl_config=toy_experiments.basic.full"
TINY = "--fdl_config=toy_experiments.tiny.tiny_run"

# (arguments, what the last line has to mention)
WRONG = [
    # no experiment, or not one
    ([], ["--fdl_config", "known: "]),
    (["--workdir=x"], ["--fdl_config"]),
    (["--fdl_config="], ["--fdl_config", "empty"]),
    (["--fdl_config"], ["--fdl_config", "missing"]),
    (["--fdl_config= "], ["--fdl_config", "empty"]),
    (["--fdl_config=nosuch"], ["nosuch", "experiments"]),
    (["--fdl_config=ssm_smal"], ["ssm_smal", "ssm_small"]),
    (["--fdl_config=SSM_SMALL"], ["SSM_SMALL", "ssm_small"]),
    (["--fdl_config=experiments"], ["experiments", "package", "ssm_small"]),
    (["--fdl_config=experiments.nosuch"], ["nosuch", "experiments"]),
    (["--fdl_config=experiments.ssm_smoll"], ["ssm_smoll", "ssm_small"]),
    (["--fdl_config=nosuch.ssm_small"], ["no module", "nosuch", "experiments"]),
    (["--fdl_config=experimens.ssm_small"], ["experimens", "experiments.ssm_small"]),
    (["--fdl_config=toy_experiments"], ["toy_experiments", "package", "toy"]),
    (["--fdl_config=toy_experiments.basic"], ["basic", "toy"]),
    (["--fdl_config=toy_experiments.basic.ful"], ["ful", "full"]),
    (["--fdl_config=toy_experiments.basic.full.x"], ["full", "x"]),
    (["--fdl_config=toy_experiments.basic.not_a_function"], ["int", "function"]),
    (["--fdl_config=toy_experiments.parts"], ["parts", "no experiment"]),
    (["--fdl_config=toy_experiments.basic.needs"], ["needs", "'width'"]),
    (["--fdl_config=toy_experiments.basic.returns_none"], ["returned None"]),
    (["--fdl_config=toy_experiments.basic.returns_dict"], ["dict", "fdl.Config"]),
    (["--fdl_config=toy_experiments.basic.raises"], ["basic.py", "ZeroDivision"]),
    (["--fdl_config=toy_experiments.twice"], ["toy", "basic.py", "twice.py"]),
    (["--fdl_config=math.sqrt"], ["sqrt"]),
    (["--fdl_config=experiments/ssm_small.py"], ["experiments/ssm_small.py"]),
    (["--fdl_config=.full"], [".full"]),
    # broken modules are not missing ones
    (
        ["--fdl_config=toy_experiments.broken.dependency"],
        ["_nope_dep", "dependency.py:3", "exists"],
    ),
    (
        ["--fdl_config=toy_experiments.broken.dependency.experiment"],
        ["_nope_dep", "dependency.py:3"],
    ),
    (["--fdl_config=toy_experiments.broken.raising"], ["raising.py:5", "no luck"]),
    (["--fdl_config=toy_experiments.broken.circle_a"], ["circle_", "circular"]),
    (["--fdl_config=toy_experiments.broken.exits"], ["exits.py:5", "SystemExit"]),
    (["--fdl_config=toy_experiments.broken.nosuch"], ["nosuch", "broken"]),
    # calls
    (["--fdl_config=toy_experiments.basic.full(dmi=3)"], ["dmi", "dim"]),
    (["--fdl_config=toy_experiments.basic.full(dim=3.5)"], ["dim", "3.5", "int"]),
    (["--fdl_config=toy_experiments.basic.full(dim=)"], ["full(dim=)"]),
    (["--fdl_config=toy_experiments.basic.full(dim=1"], ["full(dim=1"]),
    (["--fdl_config=toy_experiments.basic.full(1,2,3,4)"], ["positional"]),
    (["--fdl_config=toy_experiments.basic.full(1,dim=2)"], ["dim", "twice"]),
    (["--fdl_config=toy_experiments.basic.full(**{})"], ["**"]),
    (["--fdl_config=__import__('os').system('touch hacked')"], ["__import__"]),
    (["--fdl_config=toy_experiments.basic.full(dim=3,)(4)"], ["(dim=3,)(4)"]),
    (["--fdl_config=toy_experiments.basic.full()()"], ["full()()"]),
    (["--fdl_config=toy_experiments.basic.full()[0](4)"], ["full()[0](4)"]),
    ([TOY, "--fiddler=shrink(dim=2)(dim=3)"], ["shrink(dim=2)(dim=3)"]),
    ([TOY, "--fdl.model.parent=toy_experiments.basic.child(x=1)()"], ["(x=1)()"]),
    ([TOY, "--print_config", "--mode=check"], ["--print_config", "--mode=check"]),
    ([TOY, f"--workdir={__file__}/a\nb\x1b"], ["a\\nb\\x1b"]),
    ([TOY, "--fdl.model.dim=a\nb"], ["model.dim", "int"]),
    ([TOY, "--fdl.model.activation=jax.nn.geluu"], [" jax.nn has no 'geluu'"]),
    ([TOY, "--fdl.model.layers=[[1],[2]]"], ["model.layers", "int"]),
    (["--fdl_config=ssm-tiny"], ["Did you mean ssm_tiny"]),
    (["--fdl_config='ssm_tiny'"], ["Did you mean ssm_tiny"]),
    (["--fdl_config=ssm_tiny.py"], ["Did you mean ssm_tiny"]),
    (["--fdl_config=experiments/ssm_tiny.py"], ["Did you mean ssm_tiny"]),
    # what does something other than make a graph
    (["--fdl_config=os.system(command='touch hacked')"], ["os.system", "standard"]),
    (["--fdl_config=os.getpid"], ["os.getpid", "standard"]),
    (["--fdl_config=subprocess"], ["subprocess", "standard"]),
    (["--fdl_config=toy_experiments.parts.os.makedirs(name='x')"], ["standard"]),
    (["--fdl_config=toy_experiments.basic.exits"], ["basic.py", "SystemExit"]),
    ([TOY, "--fiddler=exiting_fiddler"], ["exiting_fiddler", "SystemExit"]),
    (
        [TOY, "--fdl.model.parent=toy_experiments.basic.exits()"],
        ["exits", "SystemExit"],
    ),
    (
        ["--fdl_config=toy_experiments.basic.exits_when_built"],
        ["SystemExit", "parts.py"],
    ),
    ([TOY, "--fdl.model.untyped_none=os.system(command='touch x')"], ["os.system"]),
    ([TOY, "--fdl.model.parent=shutil.rmtree(path='x')"], ["shutil.rmtree"]),
    ([TOY, "--fdl.model.activation=builtins.eval('1')"], ["builtins.eval"]),
    ([TOY, "--fdl.model.activation=functools.partial()"], ["package.function"]),
    ([TOY, "--fdl.model.activation=functools.partial(math.sqrt, 3)"], ["math.sqrt"]),
    # words that are no flags
    ([TOY, "opt.lr=3"], ["opt.lr=3", "--fdl.opt.lr=3"]),
    ([TOY, "--opt.lr=3"], ["--opt.lr=3", "--fdl.opt.lr=3"]),
    ([TOY, "--", "opt.lr=3"], ["--", "opt.lr=3"]),
    ([TOY, "-fdl.model.dim=3"], ["-fdl.model.dim=3", "--fdl.model.dim=3"]),
    ([TOY, "run", "--fdl.model.dim=3"], ["run"]),
    ([TOY, "--fdl.model.name", "foo"], ["--fdl.model.name", "="]),
    (["ssm_small"], ["ssm_small", "--fdl_config=ssm_small"]),
    (["--fdl_confg=ssm_small"], ["--fdl_confg", "--fdl_config"]),
    ([TOY, "--workdirr=x"], ["--workdirr", "--workdir"]),
    ([TOY, "--fdl=3"], ["--fdl"]),
    ([TOY, "--print_config=maybe"], ["--print_config", "maybe"]),
    ([TOY, "--mode=trian"], ["--mode=trian", "train"]),
    ([TOY, "--mode=diff"], ["--mode=diff", "--against"]),
    (
        [TOY, "--mode=diff", "--against=ssm_smoll"],
        ["--against=ssm_smoll:", "ssm_small"],
    ),
    ([TOY, "--mode=diff", "--against=./x.json"], ["--against=./x.json", "no such"]),
    ([TOY, "--mode=explain", "--path=model.dimm"], ["--path=model.dimm", "dim"]),
    ([TOY, "--path=model"], ["--path", "explain"]),
    ([TOY, "--mode=chekc"], ["--mode=chekc", "check"]),
    ([TOY, "--mode=check", "--path=model"], ["--path", "explain", "graph"]),
    ([TOY, "--mode=check", "--devices=x"], ["--devices=x", "int"]),
    ([TOY, "--mode=check", "--devices=1e99"], ["--devices=1e99", "at most"]),
    ([TOY, "--mode=check", "--memory=16XB"], ["--memory=16XB", "16GiB"]),
    ([TOY, "--memory=16GiB"], ["--memory", "--mode=check"]),
    ([TOY, "--devices"], ["--devices", "value is missing"]),
    ([TOY, "--mode=graph", "--output=x.png"], ["--output=x.png", ".svg"]),
    ([TOY, "--mode=graph", "--output=no/where/x.svg"], ["no/where/x.svg", "No such"]),
    ([TOY, "--mode=graph", "--path=modle"], ["--path=modle", "model"]),
    ([TOY, "--output=x.svg"], ["--output", "--mode=graph"]),
    ([TOY, "--against=x"], ["--against", "--mode=diff"]),
    (["--mode=replay"], ["--mode=replay", "--run=DIR"]),
    (["--mode=replay", "--run=nowhere"], ["--run=nowhere", "config.json"]),
    ([TOY, "--run=x"], ["--run", "--mode=replay"]),
    ([TOY, "--stop_after=3"], ["--stop_after=3", "Job", "stop_after", "steps"]),
    ([TINY, "--fdl.optimizer=optax.adam(b1=x)"], ["optax.adam(b1=x)", "got 'x'"]),
    ([TINY, "--fdl.optimizer=3"], ["optimizer", "call", "'3'"]),
    ([TINY, "--stop_after=soon"], ["--stop_after=soon", "int", "soon"]),
    ([TINY, "--stop_after="], ["--stop_after", "int"]),
    ([TINY, "--stop_after=0"], ["stop_after", "0"]),
    ([TINY, "--stopafter=3"], ["--stopafter", "--stop_after"]),
    # what a shell or a paste makes of a line
    ([TOY, "\u2013fdl.model.dim=4"], ["\u2013fdl.model.dim=4"]),
    ([TOY, "--fdl.model.dim", "=", "4"], ["--fdl.model.dim", "="]),
    ([TOY, "--fdl.model.dim= 4 5"], ["model.dim", "int", "4 5"]),
    ([TOY, "--fdl.model.dim='8"], ["model.dim", "int", "'8"]),
    ([TOY, "--fdl_tag.Peak="], ["schedule.peak", "float", "''"]),
    ([TOY, "--fdl.model.table={k:1"], ["model.table", "dict[str, int]"]),
    ([TOY, "--fdl.model.table={k}"], ["model.table", "dict[str, int]"]),
    ([TOY, "--fdl.model.layers[1]]=7"], ["layers[1]]"]),
    ([TOY, "\\--fdl.model.dim=4"], ["--fdl.model.dim=4"]),
    ([TOY, "--fdl.model.dim=4;"], ["model.dim", "int", "4;"]),
    (["--fdl_config=toy_experiments.basic.full(ending='o k)"], ["full(ending='o k)"]),
    (["--fdl_config=toy_experiments.basic.full dim=3"], ["full dim=3"]),
    (["--fdl_config", "toy_experiments.basic.full", "(dim=3)"], ["(dim=3)"]),
    ([TOY, ""], ["''"]),
    ([TOY, "--verbosity=loud"], ["verbosity"]),
    # paths
    ([TOY, "--fdl.model.dimm=4"], ["dimm", "dim"]),
    ([TOY, "--fdl.modle.dim=4"], ["modle", "model"]),
    ([TOY, "--fdl.model.=4"], ["model.", "empty"]),
    ([TOY, "--fdl..dim=4"], [".dim", "empty"]),
    ([TOY, "--fdl.model..dim=4"], ["model..dim", "empty"]),
    ([TOY, "--fdl.=4"], ["empty"]),
    ([TOY, "--fdl.model.dim"], ["--fdl.model.dim", "="]),
    ([TOY, "--fdl_set=model.dim"], ["model.dim", "="]),
    ([TOY, "--fdl.model.dim.x=4"], ["model.dim", "8", "x"]),
    ([TOY, "--fdl.model.layers[5]=7"], ["layers", "length is 3"]),
    ([TOY, "--fdl.model.layers[-4]=7"], ["layers", "length is 3"]),
    ([TOY, "--fdl.model.layers[x]=7"], ["layers", "x"]),
    ([TOY, "--fdl.model.layers.x=7"], ["layers", "list of 3"]),
    ([TOY, "--fdl.model.layers[1=7"], ["layers[1", "closed"]),
    ([TOY, "--fdl.model.layers[]=7"], ["layers[]"]),
    ([TOY, "--fdl.model.table['q']=7"], ["table", "'q'", "k"]),
    ([TOY, "--fdl.chain[2].x=7"], ["chain", "length is 2"]),
    ([TOY, "--fdl.model.__fn_or_cls__=os.system"], ["__fn_or_cls__"]),
    ([TOY, "--fdl.model.parent.made.z=1"], ["made", "'z'"]),
    ([TOY, "--fdl.model.d-im=1"], ["d-im"]),
    # values
    ([TOY, "--fdl.model.dim=10.5"], ["model.dim", "int", "10.5"]),
    ([TOY, "--fdl.model.dim=abc"], ["model.dim", "int", "abc"]),
    ([TOY, "--fdl.model.dim="], ["model.dim", "int", "''"]),
    ([TOY, "--fdl.model.dim=True"], ["model.dim", "int", "True"]),
    ([TOY, "--fdl.model.dim=None"], ["model.dim", "int", "None"]),
    ([TOY, "--fdl.model.dim=inf"], ["model.dim", "int", "inf"]),
    ([TOY, "--fdl.model.dim=1e999999"], ["model.dim", "int"]),
    ([TOY, "--fdl.model.dim=9**9**9"], ["model.dim", "int"]),
    ([TOY, "--fdl.model.dropout=lots"], ["model.dropout", "float", "lots"]),
    ([TOY, "--fdl.model.dropout=1,2"], ["model.dropout", "float", "1,2"]),
    ([TOY, "--fdl.model.bias=maybe"], ["model.bias", "bool", "maybe"]),
    ([TOY, "--fdl.model.bias=2"], ["model.bias", "bool", "2"]),
    ([TOY, "--fdl.model.betas=0.9"], ["model.betas", "2 values", "0.9"]),
    ([TOY, "--fdl.model.betas=0.9,x"], ["model.betas", "x"]),
    ([TOY, "--fdl.model.betas=(0.9,0.99"], ["model.betas", "brackets"]),
    ([TOY, "--fdl.model.mode=TRIAN"], ["model.mode", "Mode", "TRIAN", "TRAIN"]),
    ([TOY, "--fdl.model.kind=smal"], ["model.kind", "small", "smal"]),
    ([TOY, "--fdl.model.layers=a,b"], ["model.layers", "int", "a"]),
    ([TOY, "--fdl.model.path="], ["model.path", "path"]),
    ([TOY, "--fdl.model.table=3"], ["model.table", "3"]),
    ([TOY, "--fdl.model.untyped=2.5"], ["model.untyped", "int", "2.5"]),
    ([TOY, "--fdl.model=3"], ["model", "call", "3"]),
    ([TOY, "--fdl.model.parent=toy_experiments.parts.Chlid()"], ["Chlid", "Child"]),
    ([TOY, "--fdl.model.parent=toy_experiments.basic.child(y=1)"], ["child", "'y'"]),
    ([TOY, "--fdl.model.activation=sqare"], ["activation", "sqare", "square"]),
    ([TOY, "--fdl.model.activation=nosuch.f"], ["activation", "nosuch"]),
    # tags and fiddlers
    ([TOY, "--fdl_tag.Wdth=3"], ["Wdth", "Width"]),
    ([TOY, "--fdl_tag.Width=a"], ["model.dim", "int", "a"]),
    ([TOY, "--fdl_tag.Width"], ["--fdl_tag.Width", "="]),
    ([TOY, "--fdl_tag.=3"], ["--fdl_tag", "name"]),
    ([TOY, "--fiddler=nosuch"], ["nosuch", "fiddler"]),
    ([TOY, "--fiddler=shrnk"], ["shrnk", "shrink"]),
    ([TOY, "--fiddler="], ["--fiddler", "empty"]),
    ([TOY, "--fiddler=shrink(dmi=1)"], ["shrink", "dmi", "dim"]),
    ([TOY, "--fiddler=shrink(dim=x)"], ["shrink", "dim", "int"]),
    ([TOY, "--fiddler=shrink(dim=1"], ["shrink(dim=1"]),
    ([TOY, "--fiddler=toy_experiments.basic.shrnk"], ["shrnk", "shrink"]),
    ([TOY, "--fiddler=toy_experiments.basic.bad_result"], ["bad_result", "returned 3"]),
    ([TOY, "--fiddler=bad_fiddler"], ["bad_fiddler", "modle", "basic.py"]),
    # config files
    (["--fdl_config_file=nowhere.json"], ["nowhere.json", "no such file"]),
    (["--fdl_config_file=."], ["folder", "config.json"]),
    ([TOY, "--fdl_config_file=x.json"], ["--fdl_config_file=x.json", "exclude"]),
    # work directories and what is built
    ([TOY, "--workdir="], ["--workdir", "empty"]),
    ([TOY, f"--workdir={__file__}"], [Path(__file__).name, "file"]),
    ([TOY, f"--workdir={__file__}/sub"], [Path(__file__).name, "file"]),
    (
        ["--fdl_config=toy_experiments.basic.fails_to_build(value=-3)"],
        ["model", "value -3 must be positive", "parts.py"],
    ),
    (
        ["--fdl_config=toy_experiments.basic.missing_data"],
        ["model", "nowhere/data.bin"],
    ),
    (["--fdl_config=toy_experiments.basic.no_run"], ["NoRun", "run"]),
]


@pytest.mark.parametrize(
    ("argv", "mentions"), WRONG, ids=[" ".join(argv)[-60:] or "-" for argv, _ in WRONG]
)
def test_wrong_command_line_ends_in_one_line(
    argv, mentions, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    had_device = _has_device()
    code = main_lib.main(argv)
    out, err = capsys.readouterr()
    lines = err.strip().splitlines()
    assert code == 2, err
    assert not out
    assert len(lines) <= 20
    assert "Traceback" not in err
    assert lines[-1].startswith("roxxel: error: ")
    assert len(lines[-1]) < 600
    for words in mentions:
        assert words in lines[-1], lines[-1]
    assert list(tmp_path.iterdir()) == []
    assert _has_device() == had_device


def _has_device():
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def test_syntax_error_names_file_and_line(tmp_path, monkeypatch, capsys):
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bad.py").write_text("x = 1\ndef f(:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_pkg.bad", "my_pkg.bad.f"):
        assert main_lib.main([f"--fdl_config={name}"]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "my_pkg.bad exists" in last
        assert "bad.py:2" in last
        assert "SyntaxError" in last


def test_misspelt_module_of_the_current_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_experiments.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main_lib.main(["--fdl_config=my_experiment.my_text"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("Did you mean my_experiments.my_text?")


def test_missing_extra_names_the_extra(tmp_path, monkeypatch, capsys):
    (tmp_path / "wants_optax.py").write_text("import optax.nosuchmodule\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main_lib.main(["--fdl_config=wants_optax"]) == 2
    assert "roxxel[train]" in capsys.readouterr().err.splitlines()[-1]


def test_workdir_of_another_experiment_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main_lib.main([TOY, "--workdir=run"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    argv = ["--fdl_config=toy_experiments.single", "--workdir=run"]
    assert main_lib.main(argv) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "'toy'" in last
    assert "'only_one'" in last
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def _doubled(levels):
    """A small file of lists that hold the one before twice: 2**levels values."""
    items = {f"l{level}": [f"l{level - 1}"] * 2 for level in range(1, levels)}
    objects = {
        key: {
            "type": {"type": "pyref", "module": "builtins", "name": "list"},
            "items": [
                [f"Index(index={i})", {"type": "ref", "key": inner}]
                for i, inner in enumerate(inside)
            ],
            "metadata": None,
        }
        for key, inside in items.items()
    }
    objects["l0"] = {"type": "leaf", "value": 1}
    root = {"type": "ref", "key": f"l{levels - 1}"}
    return json.dumps({"root": root, "objects": objects})


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        (_doubled(60), "more than 1,000,000 values"),
        (_doubled(5000), "nested too deeply"),
        (" " * (load.MAX_FILE_BYTES + 1), "bytes; no config file"),
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[1, 2]", "not the config.json"),
        ('{"a": 1}', "not the config.json"),
        ('{"root": 3, "objects": {}}', "holds 3"),
        ('{"root": {"type": "ref", "key": "x"}, "objects": {}}', "no config"),
        ("[" * 100_000, "no config"),
        (
            json.dumps(
                {
                    "root": {"type": "ref", "key": "a"},
                    "objects": {"a": {"type": "ref", "key": "a"}},
                }
            ),
            "circle",
        ),
    ],
    ids=lambda value: value[:24].strip(),
)
def test_config_file_that_is_none(content, mentions, tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(content)
    assert main_lib.main([f"--fdl_config_file={file}"]) == 2
    err = capsys.readouterr().err
    assert mentions in err.splitlines()[-1]
    assert "Traceback" not in err
