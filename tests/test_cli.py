"""The command line as users start it, and the exit codes that schedulers act on."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from roxxel import main as main_lib
from roxxel.config import failures, run_info

TOY = "--fdl_config=toy_experiments.basic.full"
TESTS = Path(__file__).parent
DIFF = "uncommitted.diff"  # of the repository that the tests are in, if there is one


@pytest.fixture
def cli(run_python):
    """Runs `python -m roxxel.main FLAGS...` in a new process and folder."""

    def run(*flags, path=(TESTS.parent, TESTS), **kwargs):
        env = {"PYTHONPATH": ":".join(map(str, path))}
        return run_python("-m", "roxxel.main", *flags, env=env, **kwargs)

    return run


@pytest.mark.parametrize(
    ("ending", "code", "last_line"),
    [
        ("ok", 0, None),  # run() returns None
        ("0", 0, None),
        ("3", 3, None),  # run() returns the code itself
        ("42", 42, None),
        ("crash", 1, "RuntimeError: boom in the loop"),
        ("value", 1, "ValueError: not a configuration error: raised while running"),
        ("config", 2, "roxxel: error: the data set is empty"),
        ("shard", 2, "roxxel: error: a.rox: not a shard"),
        ("diverged", 3, "roxxel: error: loss is nan at step 57 (exit code 3)"),
        ("preempted", 42, "stopped at step 12 after saving (exit code 42)"),
        ("interrupt", 130, "roxxel: error: interrupted."),
    ],
)
def test_exit_codes(ending, code, last_line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main_lib.main([TOY, f"--fdl.ending={ending}"]) == code
    err = capsys.readouterr().err
    assert ("Traceback" in err) == (code == 1)
    if last_line is not None:
        assert err.splitlines()[-1].endswith(last_line)
    assert Path("runs/toy/ran.txt").read_text().startswith(ending)


def test_system_exit_passes_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as err:
        main_lib.main([TOY, "--fdl.ending=exit"])
    assert err.value.code == 7


def test_exit_codes_of_real_processes(cli):
    ok = cli(TOY)
    assert (ok.returncode, ok.stdout, ok.stderr) == (0, "", "")
    assert cli(TOY, "--fdl.ending=preempted").returncode == 42
    assert cli(TOY, "--fdl.ending=crash").returncode == 1
    assert cli(TOY, "--fdl.ending=diverged").returncode == 3
    wrong = cli(TOY, "--fdl.endign=ok")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("roxxel: error: --fdl.endign=ok")
    assert wrong.stderr.count("\n") == 1


def test_work_directory_holds_what_the_run_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = [TOY, "--fdl.model.name=a b", "--workdir=my run"]
    assert main_lib.main(flags) == 0
    names = sorted({path.name for path in Path("my run").iterdir()} - {DIFF})
    assert names == ["config.json", "config.txt", "ran.txt", "run.json"]
    info = run_info.read("my run")
    assert info["argv"] == flags
    assert info["experiment"] == "toy"
    assert info["source"] == "toy_experiments.basic.full"
    assert info["packages"]["fiddle"]
    assert info["workdir"] == str(tmp_path / "my run")
    assert {"command", "python", "git", "host", "started"} <= info.keys()
    assert "model.name = 'a b'" in Path("my run/config.txt").read_text()
    section = json.loads(Path("my run/config.json").read_text())["roxxel"]
    assert section["experiment"] == "toy"
    assert main_lib.main([*flags, "--fdl.model.dim=9"]) == 0
    assert "model.dim: 8 -> 9" in capsys.readouterr().err


def test_refused_resume_leaves_the_description_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main_lib.main([TOY, "--workdir=run"]) == 0
    names = ("config.json", "config.txt", "run.json")
    before = [Path("run", name).read_text() for name in names]
    refused = [TOY, "--workdir=run", "--fdl.model.dim=9", "--fdl.ending=config"]
    assert main_lib.main(refused) == 2
    assert [Path("run", name).read_text() for name in names] == before


def test_print_config_and_help_write_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main_lib.main([TOY, "--print_config", "--fdl.model.dim=9"]) == 0
    assert "model.dim = 9  # tag Width" in capsys.readouterr().out
    assert main_lib.main([TOY, "--fdl_help"]) == 0
    out = capsys.readouterr().out
    for words in ("--fdl.model.dim=8: int", "tag Width", "shrink", "debug", "usage:"):
        assert words in out
    assert main_lib.main(["--help"]) == 0
    assert "--fdl.PATH=VALUE" in capsys.readouterr().out
    assert main_lib.main(["--version"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_list_names_all_without_importing_them(run_python):
    done = run_python(
        "-c",
        "import sys; from roxxel.main import main; main(['--mode=list']);"
        "main(['--fdl_help']); print('jax' in sys.modules)",
    )
    assert done.stdout.endswith("False\n")
    for name in ("ssm_small", "ssm_tiny", "debug", "BatchSize", "usage:"):
        assert name in done.stdout


def test_explain_says_where_values_come_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--fdl.model.dim=9", "--fdl.model.parent.child.x=2", "--fdl_tag.Peak=1"]
    assert main_lib.main([TOY, "--mode=explain", *flags]) == 0
    out = capsys.readouterr().out
    for row, origin in [
        ("│  ├─ dim = 9  (tag Width)", "--fdl.model.dim=9"),
        ("│     ├─ child: toy_experiments.parts.Child", "--fdl.model.parent.child.x=2"),
        ("├─ schedule: toy_experiments.parts.Schedule", "basic.py:"),
        ("│  └─ peak = 1.0  (tag Peak)", "--fdl_tag.Peak=1"),
        ("├─ evaluation: same as schedule", "basic.py:"),
        ("├─ chain: toy_experiments.parts.Chain", "basic.py:"),
        ("│  └─ [1]: toy_experiments.parts.Child", ""),
        ("│  ├─ betas = (0.9, 0.99)  (default)", None),
    ]:
        found = [line for line in out.splitlines() if line.startswith(row)]
        assert len(found) == 1, (row, out)
        assert ("<- " in found[0]) == (origin is not None), found
        assert (origin or "") in found[0]
    assert main_lib.main([TOY, "--mode=explain", "--path=model.parent"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "at model.parent"
    assert "schedule" not in out


def test_diff_against_experiments_runs_and_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main_lib.main([TOY, "--workdir=run", "--fdl.model.dim=9"]) == 0
    diff = [TOY, "--mode=diff", "--trust_module=toy_experiments"]
    capsys.readouterr()
    for other in ("run", "run/config.json", "toy_experiments.basic.full(dim=9)"):
        assert main_lib.main([*diff, f"--against={other}"]) == 0
        assert capsys.readouterr().out == "model.dim: 9 -> 8\n"
    assert main_lib.main([*diff, "--against=run", "--fdl.model.dim=9"]) == 0
    assert capsys.readouterr().out == "no difference from run\n"


@pytest.fixture
def fake_dot(tmp_path_factory, monkeypatch):
    """A `dot` on the PATH that wraps what it reads, and fails on the word `fail`."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "dot"
    program.write_text(
        "#!/bin/sh\ntext=$(cat)\n"
        'case "$text" in *fail*) echo "syntax error in line 1" >&2; exit 1;; esac\n'
        "echo '<?xml version=\"1.0\"?><svg>'\"$1 $text\"'</svg>'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_graph_is_drawn_without_graphviz(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = [TOY, "--mode=graph", "--fdl.model.name=a<b>&c"]
    assert main_lib.main([*graph, "--path=schedule"]) == 0
    out, err = capsys.readouterr()
    assert out == (
        "schedule: toy_experiments.parts.Schedule\n├─ total = 10\n└─ peak = 0.001\n"
    )
    assert "dot" in err
    for name in ("x.svg", "x.html", "x.dot", "x.txt"):
        assert main_lib.main([*graph, f"--output={name}"]) == 0
        assert capsys.readouterr().out == f"{name}\n"
    root = ElementTree.parse("x.svg").getroot()
    shown = "".join(root.itertext())
    for words in ("name = 'a<b>&c'", "evaluation: same as schedule", "[1]: "):
        assert words in shown
    assert len(root.findall("{*}path[@class='shared']")) == 1
    page = Path("x.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    dot = Path("x.dot").read_text()
    assert dot.startswith("digraph config {")
    assert '"" -> "schedule" [label="evaluation"];' in dot
    assert Path("x.txt").read_text().startswith("toy_experiments.parts.Job\n├─ model: ")


def test_graph_is_drawn_by_graphviz(fake_dot, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    graph = [TOY, "--mode=graph"]
    assert main_lib.main(graph) == 0
    out, err = capsys.readouterr()
    assert out.startswith('<?xml version="1.0"?><svg>-Tsvg digraph config {')
    assert err == ""
    assert main_lib.main([*graph, "--output=x.html"]) == 0
    page = Path("x.html").read_text()
    assert "<svg>-Tsvg digraph" in page
    assert "<?xml" not in page
    capsys.readouterr()
    assert main_lib.main([*graph, "--fdl.model.name=fail"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("dot failed: syntax error in line 1")


def test_stop_after_is_a_flag_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = "--fdl_config=toy_experiments.tiny.tiny_run"
    flags = [tiny, "--stop_after=2e1", "--fdl.stop_after=12"]
    assert main_lib.main([*flags, "--mode=check"]) == 0
    out, err = capsys.readouterr()
    assert "stops early, after step 12" in out
    assert "30 steps" in out
    assert "--fdl.stop_after=12 replaces --stop_after=2e1." in err


def test_mistakes_of_a_run_in_minutes_are_named_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--fdl_config=toy_experiments.tiny.tiny_run"]
    flags += ["--fdl.total_steps.minutes=1", "--fdl.total_steps.steps=None"]
    assert main_lib.main([*flags, "--fdl.optimizer.clip_norm=0"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("roxxel: error: optimizer (adamw): clip_norm must be")


def test_installed_package_advertises_experiments(tmp_path, monkeypatch, capsys):
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[roxxel.experiments]\nadvertised = toy_experiments.single:make\n"
        "ssm_tiny = toy_experiments.single:make\nlost = no_such_module:make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main_lib.main(["--fdl_config=advertised", "--print_config"]) == 0
    assert main_lib.main(["--fdl_config=advertise"]) == 2
    assert "Did you mean advertised?" in capsys.readouterr().err
    assert main_lib.main(["--fdl_config=ssm_tiny", "--print_config"]) == 0
    note = capsys.readouterr().err
    assert "theirs (toy_experiments.single:make) is not used" in note
    assert main_lib.main(["--fdl_config=lost"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "lost = no_such_module:make of the package theirs" in last


def test_flags_may_be_followed_by_their_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--fdl_config", "toy_experiments.basic.full", "--workdir", "w"]
    flags += ["--fdl_set", "model.name=a=b", "--fiddler", "shrink", "--verbosity=1"]
    assert main_lib.main(flags) == 0
    shown = Path("w/config.txt").read_text()
    assert "model.name = 'a=b'" in shown
    assert "model.dim = 1 " in shown


def test_traceback_on_request(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--fdl_config=toy_experiments.basic.fails_to_build", "--traceback"]
    assert main_lib.main(flags) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("roxxel: error: model")


def test_users_own_package_from_anywhere(cli, tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "exps.py").write_text(
        "import fiddle as fdl, pathlib, roxxel\n"
        "class Job:\n"
        "    def __init__(self, word: str = 'x'): self.word = word\n"
        "    def run(self, workdir, run_info):\n"
        "        (workdir / 'word').write_text(self.word)\n"
        "@roxxel.experiment\n"
        "def mine(word: str = 'hello'): return fdl.Config(Job, word=word)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = cli(
        "--fdl_config=mine.exps(word=café au lait)",
        path=(TESTS.parent, tmp_path),
        cwd=elsewhere,
    )
    assert done.returncode == 2  # an argument with spaces needs its quotes
    assert "mine.exps(word=" in done.stderr
    done = cli(
        "--fdl_config=mine.exps(word='café au lait')",
        path=(TESTS.parent, tmp_path),
        cwd=elsewhere,
    )
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "runs/mine/word").read_text() == "café au lait"
    here = cli("--fdl_config=mine.exps", path=(TESTS.parent,), cwd=tmp_path)
    assert here.returncode == 0, here.stderr


_PROBE = """
import sys
from roxxel.main import main
code = main({argv!r})
loaded = {{name for name in ("jax", "flax", "numpy", "fiddle") if name in sys.modules}}
bridge = sys.modules.get("jax._src.xla_bridge")
started = bridge is not None and bridge.backends_are_initialized()
print("PROBE", code, ",".join(sorted(loaded)), started)
"""


def _probe(run_python, *argv):
    env = {"PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    done = run_python("-c", _PROBE.format(argv=list(argv)), env=env)
    line = next(x for x in done.stdout.splitlines() if x.startswith("PROBE"))
    _, code, loaded, started = line.split(" ")
    return int(code), set(filter(None, loaded.split(","))), started == "True"


@pytest.mark.parametrize(
    "argv",
    [
        ("--fdl_confg=x",),
        ("--fdl_config=nosuch",),
        ("--fdl_config=experiments.nosuch", "--fdl.x=3"),
        ("--fdl_config=ssm_small", "--fdl.model..x=3"),
        ("--fdl_config=ssm_small", f"--workdir={__file__}"),
    ],
)
def test_wrong_flags_end_before_jax_is_imported(run_python, argv):
    assert _probe(run_python, *argv) == (2, set(), False) or _probe(
        run_python, *argv
    ) == (2, {"fiddle"}, False)


def test_building_the_config_starts_no_device(run_python):
    code, loaded, started = _probe(
        run_python,
        "--fdl_config=toy_experiments.awkward",
        "--fdl.model.dtype=float16",
        "--print_config",
    )
    assert (code, started) == (0, False)
    assert "jax" in loaded


def test_missing_fiddle_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fiddle", None)
    assert main_lib.main([TOY]) == 2
    assert "pip install 'roxxel[train]'" in capsys.readouterr().err.splitlines()[-1]


def test_a_long_error_ends_in_a_short_line():
    *details, last = failures.lines("x" * 5000)
    assert details == ["x" * 5000]
    assert len(last) < 1100
