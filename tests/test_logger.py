"""Contract L: nothing lost, nothing twice, nobody waits for a device."""

import csv
import logging
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import roxxel.sinks
from roxxel import Logger
from roxxel.errors import ConfigError, PreemptedError
from roxxel.sinks.csv import CsvSink

MANY = 20_000
ROOT = str(pathlib.Path(__file__).parent.parent)


def read_csv(folder) -> list[dict[str, str]]:
    with open(folder / "roxxel_metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def read_messages(folder) -> list[str]:
    """Texts of the lines of the system log, without time and level."""
    lines = (folder / "roxxel_system.log").read_text().splitlines()
    return [line.split(" ", 3)[3] for line in lines]


def steps_of(rows) -> list[int]:
    return [int(row["step"]) for row in rows]


class DeviceValue:
    """A 0-d array of a device that delivers when told to."""

    shape = ()
    dtype = np.dtype("float32")

    def __init__(self, value=1.5, *, ready=False):
        self.value = value
        self.ready = threading.Event()
        self.read_by: list[str] = []
        if ready:
            self.ready.set()

    def __array__(self, dtype=None, copy=None):
        self.read_by.append(threading.current_thread().name)
        assert self.ready.wait(60)
        return np.asarray(self.value, dtype)

    def __str__(self):
        return str(self.__array__())


class Recorder:
    """A sink that keeps what it gets."""

    def __init__(self, *, fails_on: str = ""):
        self.calls: list[tuple] = []
        self.fails_on = fails_on

    def _take(self, kind, *args):
        self.calls.append((kind, *args))
        if kind == self.fails_on:
            raise OSError(28, "No space left on device")

    def message(self, record):
        self._take("message", record)

    def metrics(self, record):
        self._take("metrics", record)

    def rewind(self, step):
        self._take("rewind", step)

    def flush(self):
        self._take("flush")

    def close(self):
        self._take("close")

    def texts(self) -> list[str]:
        return [call[1].text for call in self.calls if call[0] == "message"]


ENDINGS = {
    "normal end of with": ("with Logger(D) as log: many(log)", 0, ""),
    "exception in with": (
        "with Logger(D) as log:\n    many(log)\n    raise RuntimeError('the reason')",
        1,
        "RuntimeError: the reason",
    ),
    "sys.exit in with": (
        "with Logger(D) as log:\n    many(log)\n    sys.exit(7)",
        7,
        "exit with code 7",
    ),
    "never closed": ("log = Logger(D)\nmany(log)", 0, ""),
    "uncaught, never closed": (
        "log = Logger(D)\nmany(log)\nraise RuntimeError('the reason')",
        1,
        "RuntimeError: the reason",
    ),
    "exit from a thread": (
        "log = Logger(D)\n"
        "def work():\n    many(log)\n    sys.exit(3)\n"
        "threading.Thread(target=work).start()",
        0,
        "",
    ),
    "SIGTERM": (
        "log = Logger(D)\nmany(log)\nos.kill(os.getpid(), signal.SIGTERM)\n"
        "log.log_message('not reached')",
        -signal.SIGTERM,
        "stopped by SIGTERM",
    ),
    "SIGTERM in with": (
        "with Logger(D) as log:\n    many(log)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)",
        -signal.SIGTERM,
        "stopped by SIGTERM",
    ),
    "SIGHUP": (
        "log = Logger(D)\nmany(log)\nos.kill(os.getpid(), signal.SIGHUP)",
        -signal.SIGHUP,
        "stopped by SIGHUP",
    ),
    "SIGINT in with": (
        "with Logger(D) as log:\n    many(log)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)",
        -signal.SIGINT,
        "KeyboardInterrupt",
    ),
    "SIGINT, never closed": (
        "log = Logger(D)\nmany(log)\nos.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(9)",
        -signal.SIGINT,
        "KeyboardInterrupt",
    ),
}
PREAMBLE = f"""
import os, signal, sys, threading, time
from roxxel import Logger
D = sys.argv[1]
def many(log):
    for i in range({MANY}):
        log.log_message("line %d", i)
    log.log_metrics_summary(step=1, loss=2.0)
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_kind_of_exit_loses_a_line(ending, tmp_path, run_python):
    # field report G1, 48: the newest records were lost at exit
    code, exit_code, last = ENDINGS[ending]
    result = run_python("-c", PREAMBLE + code, tmp_path / "run")
    assert result.returncode == exit_code, result.stderr
    lines = (tmp_path / "run" / "roxxel_system.log").read_text().splitlines()
    texts = [line.split(" ", 3)[3] for line in lines[:MANY]]
    assert texts == [f"line {i}" for i in range(MANY)]
    assert ("\n".join(lines[MANY:])).endswith(last)
    if last.startswith("RuntimeError"):
        assert any("Traceback" in line for line in lines[MANY:])
    assert steps_of(read_csv(tmp_path / "run")) == [1]
    assert result.stdout.splitlines()[:MANY] == texts
    assert result.stderr.count("Traceback") <= 1


def test_a_handler_of_somebody_else_is_respected(tmp_path, run_python):
    code = """
import os, signal, sys
from roxxel import Logger
log = Logger(sys.argv[1])
caught = []
def mine(*_): caught.append(1)
signal.signal(signal.SIGTERM, mine)
os.kill(os.getpid(), signal.SIGTERM)
log.log_message("alive")
log.close()
assert caught and signal.getsignal(signal.SIGTERM) is mine
with Logger(sys.argv[1]):
    assert signal.getsignal(signal.SIGTERM) is mine
"""
    result = run_python("-c", code, tmp_path)
    assert result.returncode == 0, result.stderr
    assert read_messages(tmp_path) == ["alive"]


def test_signal_handlers_are_as_before_after_close(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with Logger(tmp_path / "a"), Logger(tmp_path / "b"):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_planned_stop_is_one_line_without_traceback(tmp_path):
    with pytest.raises(PreemptedError), Logger(tmp_path, console=False):
        raise PreemptedError("saved at step 7")
    assert read_messages(tmp_path) == ["PreemptedError: saved at step 7"]


def test_a_forked_child_writes_nothing_and_hangs_nowhere(tmp_path, run_python):
    code = """
import os, sys
from roxxel import Logger
log = Logger(sys.argv[1], console=False)
log.log_message("parent before")
pid = os.fork()
log.log_message("child" if pid == 0 else "parent after")
log.log_metrics_summary(step=1 if pid else 2, loss=1.0)
if pid == 0:
    log.flush()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    result = run_python("-W", "ignore", "-c", code, tmp_path)
    assert result.returncode == 0, result.stderr
    assert read_messages(tmp_path) == ["parent before", "parent after"]
    assert steps_of(read_csv(tmp_path)) == [1]


def test_a_closed_stdout_pipe_stops_nothing(tmp_path):
    code = PREAMBLE + (
        "log = Logger(D)\nlog.log_message('first')\nlog.flush()\n"
        "sys.stdin.readline()\nmany(log)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": ROOT},
        text=True,
    )
    assert process.stdout.readline() == "first\n"
    process.stdout.close()
    process.stdin.write("go on\n")
    process.stdin.close()
    errors = process.stderr.read()
    assert process.wait() == 0, errors
    assert errors.count("ConsoleSink is off") == 1
    assert len([t for t in read_messages(tmp_path) if t.startswith("line")]) == MANY


def test_text_log_has_time_level_and_text(tmp_path):
    with Logger(tmp_path, console=False) as log:
        log.log_message("100% ready")
        log.log_message("%d of %s", 3, "four", level="warning")
        log.log_message("lone \ud800 surrogate", level="error")
    lines = (tmp_path / "roxxel_system.log").read_text().splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "

    assert re.fullmatch(stamp + "INFO 100% ready", lines[0])
    assert re.fullmatch(stamp + "WARNING 3 of four", lines[1])
    assert re.fullmatch(stamp + r"ERROR lone \\ud800 surrogate", lines[2])


def test_a_wrong_format_costs_nothing_but_the_formatting(tmp_path):
    with Logger(tmp_path, console=False) as log:
        log.log_message("%d steps", "many")
        log.log_message("next")
    first, second = read_messages(tmp_path)
    assert first.startswith("%d steps ('many',) (not formatted")
    assert second == "next"


def test_arguments_are_taken_as_they_are_at_the_call(tmp_path):
    with Logger(tmp_path, console=False) as log:
        shapes = [1]
        log.log_message("shapes %s", shapes)
        log.log_message(shapes)
        shapes.append(2)
    assert read_messages(tmp_path) == ["shapes [1]", "[1]"]


def test_unknown_level_names_the_choices(tmp_path):
    with (
        Logger(tmp_path, console=False) as log,
        pytest.raises(ValueError, match="'loud', expected one of debug, info"),
    ):
        log.log_message("x", level="loud")


def test_logging_after_close_is_an_error(tmp_path):
    log = Logger(tmp_path, console=False)
    log.close()
    log.close()
    with pytest.raises(RuntimeError, match="is closed"):
        log.log_message("late")


def test_root_and_absl_logging_are_left_alone(tmp_path, capfd):
    # field report G1, 49: messages came twice
    from absl import logging as absl_logging

    root = logging.getLogger()
    before = root.level, list(root.handlers)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    try:
        with Logger(tmp_path) as log:
            log.log_message("ours")
            absl_logging.warning("theirs")
            assert [type(h).__name__ for h in root.handlers if "oxxel" in repr(h)] == []
    finally:
        root.handlers[:] = before[1]
        root.setLevel(before[0])
    assert read_messages(tmp_path) == ["ours"]
    assert capfd.readouterr().out.count("ours") == 1


def test_loggers_on_two_folders_do_not_mix(tmp_path, capfd):
    # field report G1, 49: messages came twice
    with Logger(tmp_path / "a") as a, Logger(tmp_path / "b") as b:
        for i in range(100):
            a.log_message("a%d", i)
            b.log_message("b%d", i)
            b.log_metrics_summary(step=i, loss=1.0)
    assert read_messages(tmp_path / "a") == [f"a{i}" for i in range(100)]
    assert read_messages(tmp_path / "b") == [f"b{i}" for i in range(100)]
    assert not (tmp_path / "a" / "roxxel_metrics.csv").exists()
    assert capfd.readouterr().out.count("a7\n") == 1


def test_a_second_logger_on_a_folder_takes_it_over(tmp_path):
    """A notebook cell run twice."""
    # field report G1, 49: messages came twice
    first = Logger(tmp_path, console=False)
    first.log_message("first")
    second = Logger(tmp_path / "x" / "..", console=False)
    second.log_message("second")
    second.close()
    with Logger(tmp_path, console=False) as third:
        third.log_message("third")
    assert read_messages(tmp_path) == ["first", "second", "third"]
    with pytest.raises(RuntimeError, match="newer Logger"):
        first.log_message("late")


def test_an_unfinished_line_of_a_killed_process_is_ended(tmp_path):
    (tmp_path / "roxxel_system.log").write_text("2026-01-01 00:00:00.000 INFO cut of")
    with Logger(tmp_path, console=False) as log:
        log.log_message("again")
    assert read_messages(tmp_path) == ["cut of", "again"]


def log_steps(folder, steps, **metrics):
    with Logger(folder, console=False) as log:
        for step in steps:
            log.log_metrics_summary(step=step, loss=step / 10, **metrics)


def test_first_columns_and_order_of_appearance(tmp_path):
    with Logger(tmp_path, console=False) as log:
        log.log_metrics_summary(step=1, loss=2.5, ppl=12.0, lr=3e-4, tokens=8192)
        log.log_metrics_summary(2, 2.25, grad_norm=np.float32(0.5), lr=1e-4, ok=True)
        log.log_metrics_summary(3, loss=None, lr=np.array(2))
    text = (tmp_path / "roxxel_metrics.csv").read_text()
    assert text.splitlines() == [
        "step,loss,perplexity,lr,tokens,grad_norm,ok",
        "1,2.5,12.0,0.0003,8192,,",
        f"2,2.25,{math.exp(2.25)!r},0.0001,,0.5,1",
        "3,,,2,,,",
    ]


def test_values_survive_exactly(tmp_path):
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    with Logger(tmp_path, console=False) as log:
        for step, value in enumerate(values):
            log.log_metrics_summary(step, loss=value)
    read = np.array([float(row["loss"]) for row in read_csv(tmp_path)])
    np.testing.assert_array_equal(read, values.astype(np.float64))


def test_not_finite_numbers_are_written_and_shown(tmp_path, capfd):
    # field report G2, 52: what is not finite, and means over nothing
    with Logger(tmp_path) as log:
        log.log_metrics_summary(step=1, loss=math.nan, ppl=math.inf)
        log.log_metrics_summary(step=2, loss=100.0)
        log.log_metrics_summary(step=3, loss=1000.0)  # exp overflows a float64
        log.log_metrics_summary(step=4, loss=math.nan)  # a mean over no token
    rows = read_csv(tmp_path)
    assert [row["loss"] for row in rows] == ["nan", "100.0", "1000.0", "nan"]
    shown = [row["perplexity"] for row in rows]
    assert shown == ["inf", repr(math.exp(100)), "inf", "nan"]
    assert "step 1 | loss nan | ppl inf" in capfd.readouterr().out


def test_resuming_replaces_the_steps_logged_again(tmp_path):
    # field report G2, 50: a new start deleted what was there
    log_steps(tmp_path, range(10))
    log_steps(tmp_path, range(7, 16), again=1)
    rows = read_csv(tmp_path)
    assert steps_of(rows) == list(range(16))
    assert [row["again"] for row in rows] == [""] * 7 + ["1"] * 9
    assert [float(row["loss"]) for row in rows] == [s / 10 for s in range(16)]


def test_resuming_with_other_columns_keeps_one_header(tmp_path):
    # field report G2, 51: the header came again
    log_steps(tmp_path, range(5))
    log_steps(tmp_path, range(5, 10), lr=0.1)
    log_steps(tmp_path, range(10, 12))
    text = (tmp_path / "roxxel_metrics.csv").read_text()
    assert text.count("step,") == 1
    rows = read_csv(tmp_path)
    assert steps_of(rows) == list(range(12))
    assert [row["lr"] for row in rows] == [""] * 5 + ["0.1"] * 5 + [""] * 2
    assert all(None not in row and None not in row.values() for row in rows)


def test_metrics_of_one_step_share_a_row(tmp_path):
    with Logger(tmp_path, console=False) as log:
        for step in (1, 2):
            log.log_metrics_summary(step, loss=1.0, lr=0.5)
            log.flush()  # the row is on disk when it is extended
            log.log_metrics_summary(step, eval_loss=0.25)
        log.log_metrics_summary(3, loss=2.125)
        log.flush()
        log.log_metrics_summary(3, loss=2.0)  # a shorter row than the one on disk
        log.log_metrics_summary(4, loss=1.5)
    assert [(r["step"], r["loss"], r["eval_loss"]) for r in read_csv(tmp_path)] == [
        ("1", "1.0", "0.25"),
        ("2", "1.0", "0.25"),
        ("3", "2.0", ""),
        ("4", "1.5", ""),
    ]


def test_late_results_find_their_row_or_place(tmp_path):
    with Logger(tmp_path, console=False) as log:
        for step in (10, 20, 30):
            log.log_metrics_summary(step, loss=1.0)
        log.flush()
        log.log_metrics_summary(20, eval_loss=0.5)
        log.log_metrics_summary(15, eval_loss=0.75)
        log.log_metrics_summary(40, loss=2.0)
    rows = [(r["step"], r["loss"], r["eval_loss"]) for r in read_csv(tmp_path)]
    assert rows == [
        ("10", "1.0", ""),
        ("15", "", "0.75"),
        ("20", "1.0", "0.5"),
        ("30", "1.0", ""),
        ("40", "2.0", ""),
    ]


def test_rewind_drops_later_steps_and_keeps_the_given_one(tmp_path):
    log_steps(tmp_path, range(1, 11), lr=0.5)
    with Logger(tmp_path, console=False) as log:
        log.rewind(7)
        log.log_metrics_summary(7, eval_loss=0.5)  # shares the row of step 7
        log.log_metrics_summary(8, loss=0.1)
        log.rewind(np.int64(7))
        log.log_metrics_summary(9, loss=0.2)
    rows = read_csv(tmp_path)
    assert steps_of(rows) == [1, 2, 3, 4, 5, 6, 7, 9]
    assert (rows[6]["loss"], rows[6]["eval_loss"]) == ("0.7", "0.5")


@pytest.mark.parametrize("torn", ["10,1", "10,1.0,2.7", "10,1.0,2.7,\n", "garbage\n"])
def test_a_torn_last_row_is_dropped(torn, tmp_path):
    log_steps(tmp_path, range(10))
    with open(tmp_path / "roxxel_metrics.csv", "a") as file:
        file.write(torn)
    log_steps(tmp_path, range(10, 12))
    assert steps_of(read_csv(tmp_path)) == list(range(12))


def test_a_foreign_table_is_moved_aside(tmp_path):
    (tmp_path / "roxxel_metrics.csv").write_text("a,b\n1,2\n")
    log_steps(tmp_path, [1])
    assert steps_of(read_csv(tmp_path)) == [1]
    kept = tmp_path / "roxxel_metrics.csv.foreign-1"
    assert kept.read_text() == "a,b\n1,2\n"


def test_killed_and_resumed_has_every_step_once(tmp_path):
    """kill -9 three times at a moment that the child does not choose."""
    code = """
import itertools, sys
from roxxel import Logger
log = Logger(sys.argv[1], console=False)
for step in itertools.count(int(sys.argv[2])):
    log.log_metrics_summary(step, loss=step / 8, tokens=step * 512)
    if step % 10 == 0:
        log.log_metrics_summary(step, **{f"eval_{step // 3000}": 1.0})
        log.flush()
        print(step, flush=True)
"""
    start = 0
    for kills_after in (40, 3, 300):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(start)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": ROOT},
            text=True,
        )
        for _ in range(kills_after):
            flushed = int(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdout.close()
        start = flushed - 5  # the checkpoint is a little behind
    log_steps(tmp_path, range(start, start + 20))
    rows = read_csv(tmp_path)
    assert steps_of(rows) == list(range(start + 20))
    assert all(float(r["loss"]) == int(r["step"]) / 8 for r in rows[:start])
    assert [r["tokens"] for r in rows[:start]] == [str(s * 512) for s in range(start)]


STEPS, NAMES = st.integers(0, 12), st.sampled_from(["loss", "lr", "eval"])
ACTIONS = st.one_of(
    st.tuples(st.just("log"), STEPS, NAMES, st.integers(0, 10**6)),
    st.tuples(st.just("rewind"), STEPS),
    st.tuples(st.just("flush")),
    st.tuples(st.just("new process")),
    st.tuples(st.just("killed")),
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(st.lists(ACTIONS, max_size=25))
def test_the_table_is_what_the_rules_say(actions):
    """Any order of calls, flushes, restarts and kills against a plain dict."""
    rows: dict[int, dict[str, str]] = {}
    is_first = True
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "roxxel_metrics.csv"
        sink = CsvSink(path)
        for kind, *arguments in [*actions, ("new process",)]:
            if kind == "log":
                step, name, value = arguments
                if is_first:
                    rows = {s: row for s, row in rows.items() if s < step}
                rows.setdefault(step, {})[name] = str(value)
                record = roxxel.sinks.Metrics(time=0, step=step, values={name: value})
                sink.metrics(record)
                is_first = False
            elif kind == "rewind":
                rows = {s: row for s, row in rows.items() if s <= arguments[0]}
                sink.rewind(arguments[0])
                is_first = False
            elif kind == "flush":
                sink.flush()
            else:
                sink._late_due = 0.0  # late rows wait a little otherwise
                sink.flush() if kind == "killed" else sink.close()
                sink, is_first = CsvSink(path), True
        read = read_csv(path.parent) if path.exists() else []
    assert steps_of(read) == sorted(rows)
    assert [
        {name: cell for name, cell in row.items() if cell and name != "step"}
        for row in read
    ] == [rows[step] for step in sorted(rows)]


def test_quoted_column_names(tmp_path):
    with Logger(tmp_path, console=False) as log:
        log.log_metrics_summary(1, **{'a,"b"': 1, "eval/loss": 2})
    log_steps(tmp_path, [2])
    rows = read_csv(tmp_path)
    assert [row['a,"b"'] for row in rows] == ["1", ""]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"step": 1, "loss": np.ones(3)}, r"metric 'loss' has shape \(3,\)"),
        ({"step": 1, "loss": "2.5"}, r"metric 'loss' is '2.5' \(str\)"),
        ({"step": 1, "acc": [1.0]}, r"metric 'acc' is \[1.0\] \(list\)"),
        ({"step": 1, "z": np.complex64(1)}, "metric 'z' has dtype complex64"),
        ({"step": 1.0, "loss": 1.0}, r"step is 1.0 \(float\), expected an integer"),
        ({"step": True, "loss": 1.0}, "step is True"),
        ({"step": -1, "loss": 1.0}, "step is -1, expected 0 or more"),
        ({"step": np.array([1]), "loss": 1.0}, r"'step' has shape \(1,\)"),
        ({"step": 1, "ppl": 1.0, "perplexity": 1.0}, "both ppl= and perplexity="),
        ({"step": 1, "a\nb": 1.0}, "metric name 'a.nb'"),
    ],
)
def test_wrong_values_are_named_at_the_call(arguments, match, tmp_path):
    with Logger(tmp_path, console=False) as log:
        log.log_metrics_summary(step=np.int32(0), loss=1)
        with pytest.raises(ValueError, match=match):
            log.log_metrics_summary(**arguments)
    assert steps_of(read_csv(tmp_path)) == [0]


def test_no_call_waits_for_a_device_and_order_is_kept(tmp_path):
    # field report G3, 53: the host waited for the device at each call
    slow, late_step = DeviceValue(2.0), DeviceValue(7, ready=True)
    late_step.dtype = np.dtype("int32")
    recorder = Recorder()
    log = Logger(tmp_path, console=False, sinks=[recorder])
    log.log_metrics_summary(step=6, loss=slow)
    log.log_message("loss %s", slow)
    log.log_message("dict %s", {"loss": slow})
    log.log_message(slow)
    log.log_metrics_summary(step=late_step, loss=1.0)
    assert recorder.calls == []  # all calls returned before the value was there
    slow.ready.set()
    log.close()
    assert recorder.texts()[0] == "loss 2.0"
    assert set(slow.read_by + late_step.read_by) == {"roxxel-logger"}
    records = [call[1] for call in recorder.calls if call[0] == "metrics"]
    assert [(r.step, r.values["loss"]) for r in records] == [(6, 2.0), (7, 1.0)]
    assert isinstance(records[1].step, int)


def test_close_gives_up_on_a_device_that_delivers_nothing(tmp_path, capfd):
    stuck = DeviceValue()
    log = Logger(tmp_path, console=False, drain_timeout_secs=0.1)
    log.log_message("before")
    log.log_metrics_summary(step=1, loss=stuck)
    log.log_message("behind")
    log.close()
    assert "gave up after 0.1 s" in capfd.readouterr().err
    assert read_messages(tmp_path) == ["before"]
    stuck.ready.set()


def test_jax_values_of_all_kinds(tmp_path, capfd):
    import jax
    import jax.numpy as jnp

    with Logger(tmp_path) as log:
        gone = jnp.float32(1) + 1
        gone.delete()  # what donating a metric's buffer does
        for step in range(3):
            log.log_metrics_summary(
                step=jnp.int32(step), loss=jnp.float32(100), gone=gone, n=jnp.int32(7)
            )
        log.log_metrics_summary(step=3, loss=jnp.bfloat16(1.5))
        with pytest.raises(ValueError, match=r"metric 'loss' has shape \(2,\)"):
            log.log_metrics_summary(step=4, loss=jnp.zeros(2))
        with pytest.raises(ValueError, match="metric 'key' has dtype key"):
            log.log_metrics_summary(step=4, key=jax.random.key(0))
        with pytest.raises(ValueError, match="metric 'loss' is being traced"):
            jax.jit(lambda x: log.log_metrics_summary(step=4, loss=x))(1.0)
    rows = read_csv(tmp_path)
    assert [row["loss"] for row in rows] == ["100.0"] * 3 + ["1.5"]
    assert [row["n"] for row in rows] == ["7"] * 3 + [""]
    assert capfd.readouterr().err.count("metric 'gone' could not be read") == 1


def test_values_are_read_before_jax_goes_away(tmp_path, run_python):
    """Never closed, and jax imported after the Logger was made."""
    code = """
import sys
import roxxel
log = roxxel.Logger(sys.argv[1], console=False)
assert not {"jax", "fiddle", "orbax"} & set(sys.modules)
log.log_message("no jax yet")
log.flush()
import jax, jax.numpy as jnp
from jax._src import xla_bridge
log.log_message("imported")
assert not xla_bridge.backends_are_initialized()
f = jax.jit(lambda x: jax.lax.fori_loop(0, 99, lambda i, y: y @ y / 400, x)[0, 0])
for step in range(5):
    log.log_metrics_summary(step, loss=f(jnp.ones((400, 400))))
"""
    result = run_python("-c", code, tmp_path, check=True)
    assert result.stderr == ""
    assert [row["loss"] for row in read_csv(tmp_path)] == ["1.0"] * 5


RANKS = """
import sys
{join}
from roxxel import Logger
with Logger(sys.argv[1]) as log:
    log.log_message("hello")
    log.log_metrics_summary(step=1, loss=1.0)
    log.rewind(1)
    log.flush()
    {then}
"""


@pytest.mark.parametrize("index", [0, 1])
def test_only_the_lead_writes(index, tmp_path, run_python):
    code = RANKS.format(join="", then="pass")
    env = {"ROXXEL_PROCESS_ID": str(index)}
    result = run_python("-c", code, tmp_path / "run", env=env, check=True)
    assert result.stdout.count("hello") == (1 if index == 0 else 0)
    assert result.stderr == ""
    assert (tmp_path / "run").exists() == (index == 0)


def test_an_exception_of_another_process_stays_visible(tmp_path, run_python):
    # field report G3, 54: tracebacks of other processes were lost
    code = RANKS.format(join="", then="raise RuntimeError('bad shard')")
    result = run_python("-c", code, tmp_path, env={"ROXXEL_PROCESS_ID": "3"})
    assert result.returncode == 1
    assert "[process 3] stopped by RuntimeError" in result.stderr
    assert os.listdir(tmp_path) == ["roxxel_error_process_3.log"]
    text = (tmp_path / "roxxel_error_process_3.log").read_text()
    assert "Traceback" in text
    assert text.endswith("RuntimeError: bad shard\n")
    run_python(
        "-c",
        "import sys; from roxxel import Logger; log = Logger(sys.argv[1]); 1 / 0",
        tmp_path,
        env={"ROXXEL_PROCESS_ID": "3"},
    )
    text = (tmp_path / "roxxel_error_process_3.log").read_text()
    assert text.endswith("ZeroDivisionError: division by zero\n")


def test_the_index_comes_from_jax_distributed(tmp_path, run_python):
    """Joined after the Logger was made; nothing initialises a backend."""
    join = """
import jax
from jax._src import distributed, xla_bridge
class Client: pass
"""
    then = """
    assert not xla_bridge.backends_are_initialized()
with Logger(sys.argv[1]) as log:
    distributed.global_state.client = Client()
    distributed.global_state.process_id = 1
    log.log_message("from process 1")
    distributed.global_state.client = None
"""
    code = RANKS.format(join=join, then=then)
    result = run_python("-c", code, tmp_path, check=True)
    assert read_messages(tmp_path) == ["hello"]
    assert "from process 1" not in result.stdout


TWO_PROCESSES = """
import sys
from roxxel import Logger
index, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
log = Logger(folder)  # before the processes are joined
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
from jax.sharding import NamedSharding, PartitionSpec as P
with log:
    log.log_message("hello")
    mesh = jax.make_mesh((2,), ("x",))
    ones = jax.jit(lambda: jax.numpy.ones(8), out_shardings=NamedSharding(mesh, P("x")))
    total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))
    log.log_metrics_summary(step=1, loss=total(ones()))  # on devices of both
    if index == 1:
        raise RuntimeError("bad shard")
"""


def test_two_joined_processes_write_one_set_of_files(tmp_path):
    # field report G3, 54: every process wrote
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES, str(i), str(port), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": ROOT, "JAX_PLATFORMS": "cpu"},
            text=True,
        )
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 1], outputs
    assert "".join(out for out, _ in outputs).count("hello\n") == 1
    assert "[process 1] stopped by RuntimeError" in outputs[1][1]
    assert read_messages(tmp_path) == ["hello"]
    assert [(r["step"], r["loss"]) for r in read_csv(tmp_path)] == [("1", "8.0")]
    assert sorted(os.listdir(tmp_path)) == [
        "roxxel_error_process_1.log",
        "roxxel_metrics.csv",
        "roxxel_system.log",
    ]


def test_a_wrong_process_id_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ROXXEL_PROCESS_ID", "one")
    with pytest.raises(ConfigError, match="ROXXEL_PROCESS_ID is 'one'"):
        Logger(tmp_path)


@pytest.mark.parametrize("method", ["message", "metrics", "flush"])
def test_a_failing_sink_is_reported_once_and_left_out(method, tmp_path, capfd):
    bad, good = Recorder(fails_on=method), Recorder()
    with Logger(tmp_path, console=False, sinks=[bad, good]) as log:
        for step in range(5):
            log.log_message("text")
            log.log_metrics_summary(step, loss=1.0)
            log.flush()
    assert [call[0] for call in bad.calls].count(method) == 1
    assert steps_of(read_csv(tmp_path)) == list(range(5))
    assert good.texts().count("text") == 5
    assert good.calls[-1] == ("close",)
    report = "Recorder is off from here on"
    assert capfd.readouterr().err.count(report) == 1
    assert sum(report in text for text in read_messages(tmp_path)) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full (Linux)")
def test_a_full_disk_is_reported_and_survived(tmp_path, capfd):
    (tmp_path / "roxxel_system.log").symlink_to("/dev/full")
    with Logger(tmp_path, console=False) as log:
        log.log_message("lost")
        log.flush()
        log.log_metrics_summary(1, loss=1.0)
    assert "TextLogSink is off" in capfd.readouterr().err
    assert steps_of(read_csv(tmp_path)) == [1]


def test_a_log_dir_that_is_a_file_is_a_config_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"log_dir .*file cannot be created"):
        Logger(tmp_path / "file")


def test_levels_and_protocol_are_public():
    sink: roxxel.sinks.Sink = Recorder()
    sink.flush()
    assert roxxel.sinks.LEVELS == ("debug", "info", "warning", "error")


def test_console_lines(tmp_path, capfd):
    with Logger(tmp_path, console_every=10) as log:
        log.log_message("plain")
        log.log_message("odd", level="warning")
        for step in (9, 10, 1200):
            log.log_metrics_summary(step, loss=2.34123, lr=3e-4, tokens=491520)
        log.log_metrics_summary(1203, eval_loss=2.5)
    assert capfd.readouterr().out.splitlines() == [
        "plain",
        "WARNING: odd",
        "step 10 | loss 2.3412 | ppl 10.39 | lr 0.0003 | tokens 491,520",
        "step 1,200 | loss 2.3412 | ppl 10.39 | lr 0.0003 | tokens 491,520",
        "step 1,203 | eval_loss 2.5",
    ]
    assert steps_of(read_csv(tmp_path)) == [9, 10, 1200, 1203]


def test_console_text_stands_above_the_live_progress_line(tmp_path, monkeypatch):
    from test_progress import Clock, Terminal

    from roxxel.progress import Progress

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    bar = Progress(10, "train", "steps", terminal, clock=Clock())
    with Logger(tmp_path) as log:
        log.log_message("hello")
        log.flush()
        assert terminal.screen() == ["hello", "train   0% | 0/10 steps"]
    bar.close()
