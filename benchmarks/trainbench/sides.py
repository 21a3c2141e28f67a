"""A contestant is a process that takes one training step per line it is asked for.

So each has its own memory, threads and libraries, and rounds can be interleaved.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

BENCHMARKS = pathlib.Path(__file__).parents[1]


class Side:
    """A running contestant.

    Attributes:
      name: for the report.
      parameters: that its model has.
      temporaries: bytes that its compiled step needs beside what goes in and out, if
        it tells.
    """

    def __init__(self, name, module, options, python=sys.executable):
        self.name = name
        self._process = subprocess.Popen(
            [python, "-m", f"trainbench.{module}", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=BENCHMARKS,
        )
        self.parameters, self.temporaries = json.loads(self._read())

    def step(self, count=1):
        """Median seconds of `count` steps."""
        return statistics.median(float(self._ask("step")) for _ in range(count))

    def close(self):
        """Ends the process; its peak memory in bytes."""
        peak = int(self._ask("memory"))
        self._process.communicate()
        return peak

    def _ask(self, word):
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; its error is above")
        return line


def serve(step, parameters, temporaries=None):
    """The other end: runs `step()` once per line `step`, until asked for `memory`."""
    step()
    print(json.dumps([parameters, temporaries]), flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            print(peak_bytes(), flush=True)
            return
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)


def peak_bytes():
    """The most memory this process has had resident."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0
