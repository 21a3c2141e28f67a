"""Work directories read back: lists, comparisons, and a report in a real browser."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from roxxel.goodput import LOST, PHASES
from roxxel.runs import __main__ as cli
from roxxel.runs import curves, evaluations, metrics_table, reading, tables, why

pytest.importorskip("plotly")

from roxxel.runs import report, serve

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def make_run(folder, *, steps=100, total=100, rate=1e-3, evil="", finished=True):
    folder.mkdir(parents=True)
    rows = ["step,loss,perplexity,learning_rate,tokens,tokens_per_sec,eval_loss"]
    for step in range(1, steps + 1):
        last = "1.5" if step == steps else ""
        rows.append(f"{step},{3 / step**0.3},2.0,{rate},2048.0,10000,{last}")
    (folder / "roxxel_metrics.csv").write_text("\n".join(rows) + "\n")
    info = {"experiment": "toy" + evil, "total_steps": total, "parameters": 1000}
    (folder / "run.json").write_text(json.dumps(info))
    text = f"# toy\nmodel = <Model>\nmodel.width = 8  # default\nrate = {rate}{evil}\n"
    (folder / "config.txt").write_text(text)
    log = f"2026-01-01 00:00:00.000 INFO hello {evil}\n"
    if finished:
        summary = {"steps": steps, "eval_loss": 1.5, "seconds": {"save": 1.0}}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "sample.txt").write_text("once upon" + evil)
    else:
        log += (
            "2026-01-01 00:00:01.000 ERROR stopped by ValueError\n"
            f"Traceback (most recent call last):\nValueError: bad {evil}\n"
        )
    (folder / "roxxel_system.log").write_text(log)
    return reading.open_run(str(folder))


def add_everything(run, evil=""):
    """What else a run leaves behind, with `evil` wherever a text may be."""
    folder = run.path
    attempts = [
        {"began": 1e9, "first_step": 0, "last_step": 60, "end": "killed" + evil}
        | {"seconds": {"step": 60.0, "compile": 20.0, "save": 0.5, evil: 1.0}},
        {"began": 1e9 + 200, "first_step": 40, "last_step": 100, "end": "done"}
        | {"seconds": {"step": 60.0, "data": 30.0}},
    ]
    lines = [json.dumps(one) for one in attempts] + ["{torn", "[1]"]
    (folder / "goodput.jsonl").write_text("\n".join(lines) + "\n")
    told = [
        {"time": evil, "step": 40, "code_loss": 2.0, "code_accuracy": 0.25},
        {"time": evil, "step": 60, "code_loss": 1.25, "code_accuracy": 0.5, evil: 1.0},
        {"time": evil, "step": 80, "code_loss": 1.75, "code_accuracy": 0.125},
    ]
    lines = [json.dumps(one) for one in told] + [
        f'{{"step": "{evil}"}}',
        '{"step": 1e999}',
    ]
    (folder / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "profile.txt").write_text("Profile of the steps 5 to 7" + evil)
    (folder / "roxxel_error_process_1.log").write_text("ValueError: other" + evil)
    (folder / "stacks").mkdir()
    (folder / "stacks" / "1_process_0.txt").write_text("process 0 hangs" + evil)
    return reading.open_run(str(folder))


def test_runs_tell_their_state(tmp_path):
    make_run(tmp_path / "a/good")
    make_run(tmp_path / "a/bad", steps=40, finished=False)
    runs = reading.find(str(tmp_path))
    assert [(r.name, r.status, r.steps) for r in runs] == [
        ("bad", "crashed", 40),
        ("good", "finished", 100),
    ]
    assert runs[0].error.endswith("ValueError: bad")
    assert runs[0].error.splitlines()[1].startswith("Traceback")
    assert runs[1].error == ""
    text = tables.listing(runs)
    assert re.search(r"bad +toy +crashed +40 of 100", text)


def test_compare_shows_what_differs(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", rate=0.5)]
    assert tables.differences(runs) == [("rate", ["0.001", "0.5"])]
    text = tables.comparison(runs)
    assert re.search(r"eval_loss +1.5 +1.5", text)
    assert re.search(r"rate +0.001 +0.5", text)


def test_evaluations_of_all_sets_and_steps(tmp_path):
    run = add_everything(make_run(tmp_path / "a"))
    assert run.evaluations == [
        {"step": 40, "code_loss": 2.0, "code_accuracy": 0.25},
        {"step": 60, "code_loss": 1.25, "code_accuracy": 0.5, "": 1.0},
        {"step": 80, "code_loss": 1.75, "code_accuracy": 0.125},
        {"step": 100, "eval_loss": 1.5},
    ]
    best = {
        name: evaluations.best_step(run.evaluations, name)
        for name in evaluations.names(run.evaluations)
    }
    assert best == {"code_loss": 60, "code_accuracy": 60, "": None, "eval_loss": 100}
    page = report.page([run])
    assert "<td>60</td><td><b>1.25 best</b></td><td><b>0.5 best</b></td>" in page
    # A column of every step is none, unless the plan says so.
    columns = {"step": np.arange(9.0), "router_loss": np.ones(9)}
    assert evaluations.read(tmp_path, columns) == []
    assert len(evaluations.read(tmp_path, columns, ["router"])) == 9


def test_why_names_the_knobs_for_the_numbers(tmp_path):
    run = add_everything(make_run(tmp_path / "a"))
    summary = {"steps": 100, "mfu": 0.1, "memory_gib": {"device": 20.0, "host": 1.0}}
    summary |= {"step_secs": {"p50": 0.01, "p90": 0.011, "p99": 0.05}}
    (run.path / "summary.json").write_text(json.dumps(summary))
    info = run.info | {"device_kind": "NVIDIA H100 80GB HBM3"}
    (run.path / "run.json").write_text(json.dumps(info))
    run = reading.open_run(str(run.path))
    found = {one.name: one for one in why.findings(run)}
    assert list(found) == sorted(found, key=lambda name: -found[name].weight)
    assert set(found) == {
        *("down", "compile", "data", "lost", "mfu", "memory", "uneven")
    }
    # 200 s from the first attempt's beginning to the second, 81.5 of them used.
    assert found["down"].number.startswith("down 1:59 between 2 attempts, 40.9 %")
    assert found["compile"].number == "compile 11.7 % (0:20)"
    # A third of the first attempt's steps came again.
    assert found["lost"].number == "lost 11.7 % (0:20)"
    assert found["data"].number == "data 17.5 % (0:30)"
    assert found["mfu"].number == "MFU 10.0 %"
    assert found["memory"].number == "device memory 20.0 of 80 GiB"
    text = why.explain(run)
    assert text.splitlines()[0].startswith("a (finished): goodput 58.3 % of 2:52 in 2")
    assert "save_every=" in text
    for one in found.values():
        assert one.line() in text


def test_why_of_runs_that_tell_little(tmp_path, capsys):
    quick = make_run(tmp_path / "quick")
    assert "save 100.0 % (0:01)" in why.explain(quick)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "run.json").write_text("[]")
    assert "no numbers yet" in why.explain(reading.open_run(str(bare)))
    assert cli.main(["why", str(tmp_path / "quick"), str(bare)]) == 0
    assert capsys.readouterr().out.count("--profile=") == 2


def test_the_page_on_slow_runs_has_the_same_knobs():
    root = pathlib.Path(reading.__file__).parent.parent.parent
    assert why.table() in (root / "docs" / "slow.md").read_text()
    assert set(PHASES) - {"step"} | {LOST} <= set(why.KNOBS)


def test_a_crashed_run_begins_with_its_traceback(tmp_path):
    run = add_everything(make_run(tmp_path / "a", finished=False))
    page = report.page([run])
    places = [
        page.index(text)
        for text in (
            "a ended with an error",
            "ValueError: bad",
            "Processes of a",
            "roxxel_error_process_1.log",
            "ValueError: other",
            "stacks/1_process_0.txt",
            "<h2>Runs</h2>",
            "<h2>Evaluations</h2>",
            "Which setting to turn",
            "Profile of the steps 5 to 7",
            "<h2>Configuration</h2>",
            "<h2>Environment</h2>",
            "<h2>Last log lines</h2>",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("value", [None, "x", [1], {"a": 1}, 1e999, -1, True])
def test_files_of_any_content_make_a_page(value, tmp_path):
    """JSON of the right form with the wrong values in it."""
    run = make_run(tmp_path / "a")
    names = ["steps", "total_steps", "parameters", "seconds", "mfu", "step_secs"]
    names += ["memory_gib", "tokens_per_sec", "device_kind", "plan", "goodput"]
    for name in ("run.json", "summary.json"):
        (run.path / name).write_text(json.dumps(dict.fromkeys(names, value)))
    line = json.dumps(dict.fromkeys(["began", "seconds", "first_step", "step"], value))
    for name in ("goodput.jsonl", ".goodput.json", "evaluations.jsonl"):
        (run.path / name).write_text(line + "\n" + json.dumps(value) + "\n")
    (run.path / "roxxel_metrics.csv").write_text("step,loss\ninf,nan\nnan,1\n")
    run = reading.open_run(str(run.path))
    assert 'id="data"' in report.page([run, run])
    why.explain(run)
    tables.comparison([run, run])
    tables.listing([run])


def test_links_and_pipes_of_a_run_are_left_alone(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("step,secret\n1,2\n")
    run = make_run(tmp_path / "a")
    for name in ("sample.txt", "roxxel_metrics.csv", "evaluations.jsonl", "config.txt"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(secret)
    (run.path / "stacks").mkdir()
    (run.path / "stacks" / "one.txt").symlink_to(secret)
    for name in ("profile.txt", "goodput.jsonl", ".lock", ".goodput.json"):
        os.mkfifo(run.path / name)
    page = report.page([reading.open_run(str(run.path))])
    assert "secret" not in page.replace(str(tmp_path), "")


def test_long_texts_of_many_runs_stay_small(tmp_path):
    run = make_run(tmp_path / "a", finished=False)
    long = "x" * 1_000_000 + " the end"
    (run.path / "sample.txt").write_text(long)
    with open(run.path / "roxxel_system.log", "a") as file:
        file.write(long)
    page = report.page([reading.open_run(str(run.path))] * 5)
    assert len(page) < 6e6
    assert page.count("the end</pre>") >= 10


def test_the_command_line(tmp_path, capsys):
    make_run(tmp_path / "a")
    assert cli.main(["list", str(tmp_path)]) == 0
    assert "finished" in capsys.readouterr().out
    output = tmp_path / "out/report.html"
    assert cli.main(["report", str(tmp_path / "a"), "-o", str(output)]) == 0
    assert output.stat().st_size < 6e6
    for wrong in (["list", str(tmp_path / "no")], ["compare", str(tmp_path)]):
        capsys.readouterr()
        assert cli.main(wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_metrics_tables_of_any_state(tmp_path):
    path = tmp_path / "roxxel_metrics.csv"
    assert metrics_table.read(tmp_path) == {}
    path.write_text("step,loss,perplexity\n")
    assert metrics_table.read(tmp_path)["step"].size == 0
    path.write_text("step,loss,perplexity\n1,,\n2,inf,3\n3,nan")
    table = metrics_table.read(tmp_path)
    np.testing.assert_array_equal(table["step"], [1, 2])
    np.testing.assert_array_equal(table["loss"], [np.nan, np.inf])
    path.write_text("step,loss,perplexity\n1,np.float64(2.0),3\nx\n2,1,2\n")
    np.testing.assert_array_equal(metrics_table.read(tmp_path)["loss"], [np.nan, 1])


def test_thinned_curves_keep_peaks_and_ends():
    values = np.sin(np.arange(100_000.0))
    values[54_321] = 99.0
    values[12_345] = -99.0
    kept = curves.thinned(values)
    assert len(kept) <= curves.MOST_POINTS
    assert {0, 12_345, 54_321, 99_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()


def test_everything_from_a_run_is_escaped(tmp_path):
    run = make_run(tmp_path / "<b>a", evil=EVIL, finished=False)
    run = add_everything(run, EVIL)
    page = report.page([run, make_run(tmp_path / "c", evil=EVIL)])
    assert EVIL not in page
    assert "<b>a" not in page
    scripts = re.findall(r"<script([^>]*)>", page)
    nonce = re.search(r"script-src 'nonce-([^']+)'", page)[1]
    allowed = (f' nonce="{nonce}"', ' type="application/json" id="data"')
    assert [tag for tag in scripts if "nonce" in tag or "json" in tag] == [
        allowed[1],
        allowed[0],
        allowed[0],
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_report_in_a_browser(tmp_path):
    """Renders, zooms, hides a run; nothing from a run runs; the console is clean."""
    runs = [make_run(tmp_path / "a", evil=EVIL), make_run(tmp_path / "b", rate=0.5)]
    runs[0] = add_everything(runs[0], EVIL)
    page = report.page(runs)
    nonce = re.search(r"nonce-([^']+)'", page)[1]
    probe = """
      const plot = document.getElementById("main-plot"), seen = {};
      seen.ready = document.body.dataset.ready;
      seen.curves = plot.data.length;
      seen.last = plot.data[0].y[plot.data[0].y.length - 1];
      document.querySelector("input[data-run='1']").click();
      seen.hidden = plot.data.length;
      document.getElementById("log").click();
      seen.axis = plot.layout.yaxis.type;
      Plotly.relayout(plot, {"xaxis.range": [10, 20]});
      seen.zoom = plot.layout.xaxis.range;
      document.getElementById("axis").value = "tokens";
      document.getElementById("axis").dispatchEvent(new Event("input"));
      seen.tokens = plot.data[0].x[0];
      document.getElementById("search").value = "width";
      document.getElementById("search").dispatchEvent(new Event("input"));
      seen.rows = document.querySelectorAll("#config tr:not([hidden])").length;
      const bar = document.getElementById("goodput");
      seen.phases = bar.data.map((row) => row.name);
      document.getElementById("unit").value = "percent";
      document.getElementById("unit").dispatchEvent(new Event("input"));
      seen.total = bar.data.reduce((sum, row) => sum + row.x[0], 0);
      seen.title = document.title;
      document.body.dataset.seen = JSON.stringify(seen);
    """
    path = tmp_path / "report.html"
    tail = f'<script nonce="{nonce}">{probe}</script></body>'
    path.write_text(page.replace("</body>", tail))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", "--virtual-time-budget=3000", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    (seen,) = re.findall(r'data-seen="([^"]*)"', done.stdout)
    seen = json.loads(seen.replace("&quot;", '"').replace("&amp;", "&"))
    assert seen.pop("last") == pytest.approx(3 / 100**0.3, rel=1e-5)
    assert seen.pop("title").startswith("a, b")
    assert seen == {
        "ready": "1",
        "curves": 2,
        "hidden": 1,
        "axis": "log",
        "zoom": [10, 20],
        "tokens": 2048,
        "rows": 2,
        "phases": ["step", "compile", "data", "save", "lost"],
        "total": pytest.approx(100),
    }


def test_the_live_report_serves_this_machine_only(tmp_path):
    make_run(tmp_path / "a")
    server = serve.make_server(str(tmp_path), 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        before = _get(f"{address}/version")
        assert before == _get(f"{address}/version")
        assert 'id="data"' in _get(address)
        with open(tmp_path / "a/roxxel_metrics.csv", "a") as file:
            file.write("101,1.0,2.0,0.1,2048,1,\n")
        assert _get(f"{address}/version") != before
        for path, host, status in (
            ("/etc/passwd", "localhost", 404),
            ("/", "evil.example", 403),
        ):
            with pytest.raises(urllib.error.HTTPError) as error:
                _get(address + path, host)
            assert error.value.code == status
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _get(url, host=None):
    headers = {"Host": host} if host else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()
