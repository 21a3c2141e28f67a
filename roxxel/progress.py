"""One live progress line on a terminal, a few plain lines everywhere else.

    train  42% | 420/1,000 steps | 3.1 steps/s | 3:07 left | loss 2.31

Output never raises: a closed or full stream turns the bar off. Whoever prints to
the same terminal does so inside `cleared()`, so that the live line is wiped first and
drawn again below the new text; handlers of `logging` need not know of it.
"""

import collections
import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import TextIO

from roxxel import log_lines

LIVE_INTERVAL_SECS = 0.1
PLAIN_INTERVAL_SECS = 5.0  # never more often than this on a file or a pipe
PLAIN_SILENCE_SECS = 60.0  # a slow job says that it lives at least this often
PLAIN_WAIT_SECS = 10.0  # before the first plain line of a wait
MOST_WAIT_SECS = 300.0  # between two of them
_RATE_SAMPLES = 64  # the rate covers the last ones drawn, not the whole job
_LOCK_TIMEOUT_SECS = 0.5  # rather a torn line than a hang inside a signal handler

_drawing = threading.RLock()
_live: list["Progress"] = []  # bars on a terminal, the last one is visible


class Progress:
    """Counts `unit`s of work up to `total` (None: unknown) under a short `label`.

    Args:
        total: Units of the whole job, `initial` included.
        label: What is being done, in a word or two.
        unit: Plural name of what is counted.
        stream: Where to draw; standard error at the time of the call by default.
        initial: Units done before this process started (resumed job); not part of
            the rate.
        plain_after: Seconds before the first plain line; a job that is over by then
            tells nothing on a file or a pipe.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        unit: str = "steps",
        stream: TextIO | None = None,
        *,
        initial: int = 0,
        plain_after: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total = total
        self.label = label
        self.unit = unit
        self.count = initial
        self._initial = initial
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._started = clock()
        self._samples = collections.deque(
            [(self._started, initial)], maxlen=_RATE_SAMPLES
        )
        self._note = ""
        self._drawn = ""  # what stands on the terminal now
        self._closed = False
        self._is_live = _is_terminal(self._stream)
        self._next_draw = self._started
        self._last_plain = self._started
        self._next_tenth = 0
        self._plain_from = self._started + plain_after
        self._appear()
        self._draw(self._started)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _appear(self) -> None:
        """On a terminal, takes the place of the line that is there."""
        if self._is_live:
            with _locked():
                if _live:
                    _erase(_live[-1])
                _live.append(self)
                _above.enter(_is_terminal)

    def update(self, n: int = 1, note: str | None = None) -> None:
        """Counts `n` more units; cheap enough for every step."""
        self.count += n
        if note is not None:
            self._note = note
        now = self._clock()
        if now >= self._next_draw:
            self._draw(now)

    def set(self, n: int, note: str | None = None) -> None:
        """Sets the count to `n` units."""
        self.update(n - self.count, note)

    def note(self, text: str) -> None:
        """Shows `text` at the end of the line, until there is another."""
        self.update(0, text)

    def write_line(self, text: str) -> None:
        """Writes `text` as a line of its own, above the live line."""
        with cleared():
            self._write(text + "\n")

    def close(self) -> None:
        """Leaves one final line behind; may be called again."""
        if self._closed:
            return
        self._closed = True
        with _locked():
            now = self._clock()
            if self._is_live:
                _erase(self)
                _remove(self)
            if self._is_live or now >= self._plain_from:
                self._write(self._line(now, final=True) + "\n")
            if _live:
                _live[-1]._redraw()

    def _draw(self, now: float) -> None:
        if self._closed:
            return
        if not self._is_live:
            self._draw_plain(now)
            return
        self._next_draw = now + LIVE_INTERVAL_SECS
        self._sample(now)
        if _live and _live[-1] is self:
            with _locked():
                self._redraw()

    def _draw_plain(self, now: float) -> None:
        """The first line at once; then each tenth, at a readable cadence."""
        self._next_draw = now + PLAIN_INTERVAL_SECS
        self._sample(now)
        if now < self._plain_from:
            return
        silent = now - self._last_plain >= PLAIN_SILENCE_SECS
        tenth = 10 * self.count // self.total if self.total else 0
        if now > self._started and tenth < self._next_tenth and not silent:
            return
        self._next_tenth = tenth + 1
        self._last_plain = now
        self._write(self._line(now) + "\n")

    def _redraw(self) -> None:
        now, columns = self._clock(), _columns(self._stream)
        line = self._line(now)
        if len(line) >= columns:
            line = self._line(now, is_short=True)[: columns - 1]
        self._write("\r" + line + " " * (len(self._drawn) - len(line)))
        self._drawn = line

    def _sample(self, now: float) -> None:
        if now > self._samples[-1][0]:
            self._samples.append((now, self.count))

    def _line(self, now: float, *, final: bool = False, is_short: bool = False) -> str:
        start, first = self._samples[0]
        if final:
            start, first = self._started, self._initial
        rate = (self.count - first) / (now - start) if now > start else 0.0
        parts, head = [f"{self.count:,} {self.unit}"], self.label
        if self.total is not None:
            parts = [f"{self.count:,}/{self.total:,} {self.unit}"]
            percent = 100 * self.count // self.total if self.total else 100
            head = f"{self.label} {percent:3d}%"
        if is_short:
            parts = [f"{format_short(self.count)} {self.unit}"]
        if rate > 0:
            whole = f"{format_rate(rate)} {self.unit}/s"
            parts.append(f"{format_short(rate)}/s" if is_short else whole)
        if final:
            parts.append(f"took {format_secs(now - self._started)}")
        elif rate > 0 and self.total is not None:
            parts.append(f"{format_secs((self.total - self.count) / rate)} left")
        if self._note:
            parts.append(self._note)
        return " | ".join([head, *parts])

    def _write(self, text: str) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):  # closed, full, or cannot encode
            self._stream = None


class Waiting(Progress):
    """How long something without a count goes on: `compiling, 41 s`.

    A thread draws it while its context is open: on a terminal each second from the
    first one on, elsewhere a plain line after 10 s, 20 s, 40 s and so on, at least one
    in five minutes.
    """

    def __init__(
        self,
        label: str,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._open = threading.Event()
        self._plain_after = PLAIN_WAIT_SECS
        super().__init__(None, label, stream=stream, clock=clock)
        self._thread = threading.Thread(
            target=self._tick, name="roxxel-waiting", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Takes the line away; says how long it was where plain lines told of it."""
        if self._closed:
            return
        self._closed = True
        self._open.set()
        self._thread.join()
        with _locked():
            if self._is_live:
                _erase(self)
                _remove(self)
            elif self._plain_after > PLAIN_WAIT_SECS:
                self._write(f"{self.label} took {self._spent():.0f} s\n")
            if _live:
                _live[-1]._redraw()

    def show(self) -> None:
        """Draws the line if it is due."""
        spent = self._spent()
        if self._is_live and spent >= 1:
            if self not in _live:
                super()._appear()
            if _live[-1] is self:
                with _locked():
                    self._redraw()
        elif self._is_live:
            return
        elif spent >= self._plain_after:
            self._plain_after += min(self._plain_after, MOST_WAIT_SECS)
            self._write(self._line(self._clock()) + "\n")

    def _appear(self) -> None:
        """Not before there is something to tell."""

    def _draw(self, now: float) -> None:
        """The thread draws."""

    def _tick(self) -> None:
        while not self._open.wait(0.5):
            self.show()

    def _spent(self) -> float:
        return self._clock() - self._started

    def _line(self, now: float, *, final: bool = False, is_short: bool = False) -> str:
        return f"{self.label}, {now - self._started:.0f} s"


@contextlib.contextmanager
def cleared() -> Generator[None]:
    """The live line, if there is one, is off the terminal inside this block."""
    with _locked():
        bar = _live[-1] if _live else None
        if bar is not None:
            _erase(bar)
        try:
            yield
        finally:
            if bar is not None and not bar._closed:
                bar._redraw()


def format_rate(rate: float) -> str:
    """Three significant digits, thousands separated: `0.52`, `31.4`, `81,920`."""
    decimals = 2 if rate < 10 else 1 if rate < 100 else 0
    return f"{rate:,.{decimals}f}"


def format_short(number: float) -> str:
    """About four characters: `512`, `13.3k`, `2.05M`, `12.3B`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # 999,950 is 1M, not 1e+03k
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def format_secs(secs: float) -> str:
    """`m:ss`, `h:mm:ss` or `Nd h:mm:ss`."""
    minutes, seconds = divmod(int(max(secs, 0) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}:{minutes:02d}:{seconds:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"


def _erase(bar: Progress) -> None:
    if bar._drawn:
        bar._write("\r" + " " * len(bar._drawn) + "\r")
        bar._drawn = ""


def _remove(bar: Progress) -> None:
    if bar in _live:  # not in a forked child
        _live.remove(bar)
    if not _live:
        _above.leave()


def _clear_for_others() -> None:
    """Makes room for a line that somebody else is about to write."""
    with _locked():
        if _live:
            _erase(_live[-1])
            _live[-1]._next_draw = _live[-1]._clock() + LIVE_INTERVAL_SECS


_above = log_lines.Above(_clear_for_others)


def _forget_in_child() -> None:
    """A forked child has neither the bars nor the thread that may hold the lock."""
    global _drawing
    _drawing = threading.RLock()
    _live.clear()
    _above.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


@contextlib.contextmanager
def _locked() -> Generator[None]:
    lock = _drawing
    acquired = lock.acquire(timeout=_LOCK_TIMEOUT_SECS)
    try:
        yield
    finally:
        if acquired:
            lock.release()


def _is_terminal(stream: TextIO | None) -> bool:
    if stream is None or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _columns(stream: TextIO | None) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream else 0
    except (AttributeError, OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size().columns
