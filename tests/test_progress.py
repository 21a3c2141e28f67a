"""The progress line: live on a terminal, sparse elsewhere, never in the way."""

import io
import logging
import os
import re
import struct
import sys
import threading

import numpy as np
import pytest
from absl import logging as absl_logging

from roxxel import Logger, optim, progress
from roxxel.dataset import Roxxel
from roxxel.progress import Progress, Waiting
from roxxel.train.evaluation import Evaluation
from roxxel.train.trainer import Trainer
from tests.tiny import Bigram, compile_once  # noqa: F401


class Terminal(io.StringIO):
    """Keeps what a terminal would show: `\\r` goes back, text overwrites."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        return screen(self.getvalue())


def screen(text: str) -> list[str]:
    """What a terminal shows of a text."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for piece in line.split("\r"):
            shown = piece + shown[len(piece) :]
        lines.append(shown.rstrip())
    return lines


class PseudoTerminal:
    """A real one, with a thread that keeps what is written to it."""

    def __init__(self):
        import fcntl
        import termios

        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self.stream = io.TextIOWrapper(
            io.FileIO(slave, "w"), encoding="utf-8", write_through=True
        )
        self._text: list[bytes] = []
        self._master = master
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._master, 65536):
                self._text.append(piece)
        except OSError:  # how Linux tells that the other side is closed
            pass

    def screen(self) -> list[str]:
        """All lines; closes the terminal."""
        self.stream.close()
        self._thread.join(timeout=30)
        os.close(self._master)
        return screen(b"".join(self._text).decode().replace("\r\n", "\n"))


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_terminal_shows_count_percent_rate_and_time_left(clock):
    terminal = Terminal()
    bar = Progress(1000, "train", "steps", terminal, clock=clock)
    for _ in range(420):
        clock.now += 0.5
        bar.update()
    assert terminal.screen() == [
        "train  42% | 420/1,000 steps | 2.00 steps/s | 4:50 left"
    ]
    bar.close()
    assert terminal.screen()[0].endswith("420/1,000 steps | 2.00 steps/s | took 3:30")


def test_terminal_is_redrawn_at_most_ten_times_a_second(clock):
    terminal = Terminal()
    with Progress(100_000, "train", "steps", terminal, clock=clock) as bar:
        for _ in range(100_000):
            clock.now += 1e-5  # one second in all
            bar.update()
    assert 5 <= terminal.getvalue().count("\r") <= 15


def test_resumed_count_is_not_part_of_the_rate(clock):
    terminal = Terminal()
    bar = Progress(1000, "train", "steps", terminal, initial=500, clock=clock)
    clock.now += 10
    bar.set(510)
    assert terminal.screen() == [
        "train  51% | 510/1,000 steps | 1.00 steps/s | 8:10 left"
    ]
    bar.close()


def test_plain_output_has_a_first_line_tenths_and_a_last_line(clock):
    stream = io.StringIO()
    with Progress(1000, "train", "steps", stream, clock=clock) as bar:
        for _ in range(1000):
            clock.now += 1.0
            bar.update()
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert lines[0].startswith("train   0% | 0/1,000 steps")
    assert lines[-1].startswith("train 100% | 1,000/1,000 steps")
    assert 10 <= len(lines) <= 24  # tenths, and one a minute in between


def test_plain_output_of_a_fast_job_is_two_lines(clock):
    stream = io.StringIO()
    with Progress(10, "build", "files", stream, clock=clock) as bar:
        for _ in range(10):
            clock.now += 0.1
            bar.update()
    assert len(stream.getvalue().splitlines()) == 2


def test_unknown_total_has_no_percent_and_no_time_left(clock):
    terminal = Terminal()
    bar = Progress(None, "read", "lines", terminal, clock=clock)
    clock.now += 2
    bar.update(50_000)
    assert terminal.screen() == ["read | 50,000 lines | 25,000 lines/s"]
    bar.close()


@pytest.mark.parametrize("total", [0, 1])
def test_tiny_totals(total, clock):
    with Progress(total, "train", "steps", Terminal(), clock=clock) as bar:
        clock.now += 1
        bar.update(total)


def test_a_note_ends_the_line_and_other_output_stands_above(clock):
    terminal = Terminal()
    bar = Progress(10, "train", "steps", terminal, clock=clock)
    bar.set(0, note="loss 9.99")
    bar.note("loss 2.31")
    bar.write_line("a word")
    with progress.cleared():
        terminal.write("step 1\n")
    assert terminal.screen() == [
        "a word",
        "step 1",
        "train   0% | 0/10 steps | loss 2.31",
    ]
    bar.close()


def test_an_inner_bar_covers_the_outer_one_until_it_closes(clock):
    terminal = Terminal()
    outer = Progress(10, "train", "steps", terminal, clock=clock)
    with Progress(5, "eval", "steps", terminal, clock=clock):
        clock.now += 1
        outer.update()
        assert terminal.screen()[-1] == "eval   0% | 0/5 steps"
    assert terminal.screen()[-1].startswith("train  10% | 1/10 steps")
    outer.close()


def test_a_closed_stream_never_raises(clock):
    terminal = Terminal()
    bar = Progress(10, "train", "steps", terminal, clock=clock)
    terminal.close()
    clock.now += 1
    bar.update()
    bar.note("text")
    bar.write_line("text")
    bar.close()
    bar.close()
    closed = io.StringIO()
    closed.close()
    Progress(10, "train", "steps", closed, clock=clock).close()


def test_a_narrow_terminal_shows_short_numbers_and_the_loss(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    bar = Progress(20_000_000_000, "train", "tokens", terminal, clock=clock)
    clock.now += 1
    bar.set(272_000, note="step 123,456  loss 2.3112  saved 120,000")
    (line,) = terminal.screen()
    assert line.startswith(
        "train   0% | 272k tokens | 272k/s | 20:25:28 left | step 123,"
    )
    assert "loss 2.31" in line
    assert len(line) < 80
    bar.close()
    numbers = (0, 9.876, 512, 999_950, 13_312, 2_048_000, 12_345_678_912, 3e12)
    short = ["0", "9.88", "512", "1M", "13.3k", "2.05M", "12.3B", "3T"]
    assert [progress.format_short(number) for number in numbers] == short


def test_long_lines_are_cut_to_the_terminal(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    terminal = Terminal()
    bar = Progress(10, "train " * 20, "steps", terminal, clock=clock)
    assert len(terminal.screen()[0]) < 30
    bar.close()


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (0, "0:00"),
        (59.6, "1:00"),
        (3723, "1:02:03"),
        (90061, "1d 1:01:01"),
        (-1, "0:00"),
    ],
)
def test_format_secs(secs, text):
    assert progress.format_secs(secs) == text


def test_a_wait_shows_its_seconds_and_leaves_nothing_on_a_terminal(clock):
    terminal = Terminal()
    bar = Progress(10, "train", "steps", terminal, clock=clock)
    shown = terminal.screen()
    with Waiting("compiling", terminal, clock=clock) as waiting:
        waiting.show()
        assert terminal.screen() == shown  # too short to tell of
        clock.now += 41
        waiting.show()
        assert terminal.screen() == ["compiling, 41 s"]
        with progress.cleared():
            terminal.write("a message\n")
        assert terminal.screen() == ["a message", "compiling, 41 s"]
    assert terminal.screen()[1].startswith("train   0% | 0/10 steps")
    bar.close()


def test_a_wait_elsewhere_is_told_ever_more_seldom(clock):
    file = io.StringIO()
    with Waiting("restoring", file, clock=clock) as waiting:
        for _ in range(900):
            clock.now += 1
            waiting.show()
    told = [line.rpartition(", ")[2] for line in file.getvalue().splitlines()]
    assert told[:6] == ["10 s", "20 s", "40 s", "80 s", "160 s", "320 s"]
    assert told[-1] == "restoring took 900 s"
    file = io.StringIO()
    with Waiting("restoring", file, clock=clock):
        clock.now += 9
    assert file.getvalue() == ""


def test_lines_of_other_packages_stand_above_the_live_line(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)  # absl asks for it again
    plain = logging.StreamHandler(terminal)
    absl_handler = absl_logging.ABSLHandler(absl_logging.PythonFormatter())
    monkeypatch.setattr(absl_handler.python_handler, "stream", terminal)
    loggers = [logging.getLogger(f"tests.progress.{name}") for name in ("a", "b")]
    for logger, handler in zip(loggers, (plain, absl_handler), strict=True):
        logger.addHandler(handler)
        logger.propagate = False
    try:
        with Progress(10, "train", "steps", terminal, clock=clock) as bar:
            clock.now += 1
            bar.update(4)
            loggers[0].warning("a word of another package")
            clock.now += 1
            bar.update()
            loggers[1].warning("a word of absl")
            clock.now += 1
            bar.update()
            shown = terminal.screen()
        assert shown[0] == "a word of another package"
        # Above it absl may say once that its flags are not parsed.
        assert shown[-2].endswith("] a word of absl")
        assert shown[-1].startswith("train  60% | 6/10 steps")
        assert not plain.filters
        assert not absl_handler.python_handler.filters
    finally:
        for logger, handler in zip(loggers, (plain, absl_handler), strict=True):
            logger.removeHandler(handler)


def test_a_short_job_without_a_terminal_may_tell_nothing(clock):
    file = io.StringIO()
    with Progress(10, "train", "steps", file, plain_after=60, clock=clock) as bar:
        for _ in range(10):
            clock.now += 5
            bar.update()
    assert file.getvalue() == ""
    with Progress(100, "train", "steps", file, plain_after=60, clock=clock) as bar:
        for _ in range(100):
            clock.now += 5
            bar.update()
    told = file.getvalue().splitlines()
    assert told[0].startswith("train  12% | 12/100 steps")
    assert 10 <= len(told) <= 12
    assert told[-1].startswith("train 100% | 100/100 steps")


def small_run(tmp_path, **options):
    dataset = Roxxel(tmp_path / "train_*.rox")
    rng = np.random.default_rng(0)
    dataset.write([rng.integers(0, 16, 1100).astype(np.uint8)])
    held = Evaluation(dataset=dataset, seq_len=8, batch_size=16, every=8)
    return Trainer(
        model=Bigram,
        optimizer=optim.adamw(schedule=optim.warmup_cosine(peak=0.05, total_steps=20)),
        stream=dataset.stream(8, 8, seed=3, overlap=1),
        total_steps=20,
        evaluation=held,
        save_every=10,
        logger=lambda log_dir: Logger(log_dir, console_every=5),
        **options,
    )


@pytest.mark.usefixtures("compile_once")
def test_a_run_on_a_terminal_has_a_live_line_and_whole_log_lines(tmp_path, monkeypatch):
    terminal = PseudoTerminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.stream)
        patch.setattr(sys, "stderr", terminal.stream)
        patch.setattr(progress, "LIVE_INTERVAL_SECS", 0.0)
        assert small_run(tmp_path).run(tmp_path / "run") == 0
    lines = [line for line in terminal.screen() if line]
    log = (tmp_path / "run" / "roxxel_system.log").read_text().splitlines()
    messages = {re.sub(r"^\S+ \S+ [A-Z]+ ", "", line) for line in log}
    metrics = [line for line in lines if line.startswith("step ")]
    # Those with a loss of steps 5, 10, 15, 20; evaluations after 8, 16 and 20.
    assert len(metrics) in (6, 7)
    live = [line for line in lines if line.startswith("train ")]
    (last,) = live
    expected = (
        r"train 100% \| 1,280/1,280 tokens \| [\d.,]+ tokens/s \| took 0:\d\d \| "
    )
    assert re.fullmatch(expected + r"step 20  loss \d\.\d{4}  saved 10", last)
    assert not set(lines) - messages - set(metrics) - set(live)


@pytest.mark.usefixtures("compile_once")
def test_a_short_run_elsewhere_has_no_progress_lines(tmp_path, capsys):
    assert small_run(tmp_path, stop_after=2).run(tmp_path / "run") == 0
    assert "train " not in capsys.readouterr().err
