"""Several processes of one run on this machine: `python -m launch.local`.

    python -m launch.local --processes=2 --devices=2 -- \\
        --fdl_config=experiments.ssm_small --workdir=runs/two

The processes find each other by ROXXEL_COORDINATOR, ROXXEL_NUM_PROCESSES and
ROXXEL_PROCESS_ID. When one fails, all end. A run that stopped after saving (exit code
42) is started again. SIGTERM, SIGINT and SIGHUP are passed on to all, waited for, and
end the launch.

Exit codes: that of the process that failed first; 128 + n for one that signal n killed;
2 also for a wrong command line of the launch itself.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Sequence

from launch import line, processes
from launch.group import Group
from launch.line import LaunchError, Parser, number, say
from launch.problems import EXIT_CONFIG, EXIT_OK, EXIT_RESTART

_HOST = "127.0.0.1"
_POLL_SECS = 0.05
_MAX_BACKOFF_SECS = 60.0
_JOINED_BY = ("ROXXEL_COORDINATOR", "ROXXEL_NUM_PROCESSES", "ROXXEL_PROCESS_ID")


class Job:
    """A run of several processes, started again for as long as it asks for that."""

    def __init__(self, given: argparse.Namespace, words: Sequence[str]):
        self.given = given
        self.command = [sys.executable, "-m", "roxxel.main", *words]
        self.group: Group | None = None
        self.told = False

    def run(self) -> int:
        """The exit code of the last attempt."""
        processes.on_stop_signals(self._on_signal)
        restarts = 0
        while True:
            began = time.monotonic()
            code = self._attempt()
            if code != EXIT_RESTART or self.told:
                return code
            if restarts == self.given.restarts:
                say("local", f"not started again: --restarts={restarts} are used up.")
                return code
            restarts += 1
            delay = self._delay(restarts, time.monotonic() - began)
            say("local", f"restart {restarts} in {delay:g} s.")
            self._wait(delay)
            if self.told:
                return code

    def _attempt(self) -> int:
        count = self.given.processes
        port = self.given.port or free_port()
        added = [environment(i, count, port, self.given.devices) for i in range(count)]
        base = {k: v for k, v in os.environ.items() if k not in _JOINED_BY}
        self.group = Group(
            [self.command] * count,
            [base | each for each in added],
            grace_secs=self.given.grace_secs,
        )
        return self.group.run()

    def _delay(self, restarts: int, lasted: float) -> float:
        """Seconds before a restart: none once an attempt was of use for a while."""
        if lasted > _MAX_BACKOFF_SECS:
            return 0.0
        doubled = self.given.backoff_secs * 2.0 ** min(restarts - 1, 16)
        return min(doubled, _MAX_BACKOFF_SECS)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.told:
            time.sleep(_POLL_SECS)

    def _on_signal(self, number: int, frame: object) -> None:
        del frame
        self.told = True
        if self.group is not None:
            self.group.signal(number)


def environment(
    index: int, count: int, port: int, devices: int | None
) -> dict[str, str]:
    """What process `index` of `count` sees beside the launcher's own variables."""
    found = {}
    if count > 1:
        values = (f"{_HOST}:{port}", str(count), str(index))
        found = dict(zip(_JOINED_BY, values, strict=True))
    if devices is not None:
        forced = f"--xla_force_host_platform_device_count={devices}"
        flags = f"{os.environ.get('XLA_FLAGS', '')} {forced}".strip()
        found |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return found | {"PYTHONUNBUFFERED": "1"}


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return probe.getsockname()[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); the exit code."""
    try:
        given, words = _parser().parse(sys.argv[1:] if argv is None else argv)
    except LaunchError as err:
        say("local", f"error: {err}")
        return EXIT_CONFIG
    job = Job(given, words)
    if not given.dry_run:
        return job.run()
    port = given.port or free_port()
    for i in range(given.processes):
        added = environment(i, given.processes, port, given.devices)
        sys.stdout.write(f"[{i}] {line.shown(job.command, added)}\n")
    return EXIT_OK


def _parser() -> Parser:
    parser = Parser("launch.local", "Runs several processes of one run here.")
    parser.add_argument("--processes", type=number(1, 512), default=1)
    parser.add_argument(
        "--devices", type=number(1, 512), help="CPU devices of each process"
    )
    parser.add_argument("--port", type=number(1, 65535), help="default: a free one")
    parser.add_argument(
        "--restarts", type=number(0), default=100, help="at most so many, on 42"
    )
    parser.add_argument(
        "--backoff_secs", type=number(0), default=1, help="doubles with each restart"
    )
    parser.add_argument(
        "--grace_secs", type=number(0), default=30, help="for the others to end"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
