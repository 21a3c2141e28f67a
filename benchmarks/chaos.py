"""Kills a run of several processes over and over, and looks for any trace of it.

    python benchmarks/chaos.py --kills 20 --processes 2 [--mixture] [--seed 0]

Runs `ssm_tiny`, made small, twice through `launch.local`: once undisturbed, once with
kills (SIGKILL, SIGTERM; of one process, of all; in the start, at random steps, while it
evaluates or saves) after each of which the same command is started again. Then the two
work directories are compared: parameters and optimizer state bit for bit, the table of
metrics row by row (each step once), and the data rows that each step was given, as the
processes themselves wrote them down. `--mixture` takes `mixture_curriculum` instead:
two data sets and three phases.

What is killed when depends on `--seed` only, up to the speed of the machine. Exit code
0: no difference, and every attempt ended as it should; 1: else, with what was found.
`--keep DIR` keeps both work directories and the output of all attempts there.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from chaosbench import kills as kills_lib  # noqa: E402
from chaosbench import results  # noqa: E402

SMALL = (
    "experiments.ssm_tiny(d_model=32, n_layers=1, seq_len=32, batch_size=8, "
    "steps={steps})"
)
MIXTURE = "experiments.mixture_curriculum(steps={steps}, tokens_per_step=1024)"
_OF_MIXTURE = ("--fdl.model.d_model=32", "--fdl.model.n_layers=1")
_OF_MIXTURE += ("--fdl.model.head_dim=32", "--fdl.model.state_dim=32")
_OF_MIXTURE += ("--fdl.stream.phases[0].seq_len=16", "--fdl.evaluation.seq_len=32")
_OF_MIXTURE += (
    "--fdl.stream.phases[1].seq_len=32",
    "--fdl.stream.phases[2].seq_len=64",
)
# Evaluations and saves often enough for kills to hit them.
_OFTEN = ("--fdl.save_every=5", "--fdl.evaluation.every=15")
_OFTEN += ("--fdl.evaluation.max_batches=4", "--fdl.evaluation.batch_size=8")
_OFTEN += ("--fdl.sample.num_tokens=16",)
_END_SECS = 180  # an attempt that was killed has to be over in that time
_ATTEMPT_SECS = 1800


class Chaos:
    """The two runs of one call, and the counts of what happened to them."""

    def __init__(self, given: argparse.Namespace, folder: pathlib.Path):
        self.given, self.folder = given, folder
        self.wrong: list[str] = []
        self.codes: dict[str, int] = {}
        self.slowest = 0.0  # seconds from a kill to the end of its attempt

    def run(self) -> list[str]:
        """What is wrong, a line each."""
        began = time.monotonic()
        self._attempt("undisturbed", None, 0)
        _say(f"undisturbed: {time.monotonic() - began:.0f} s")
        plan = kills_lib.plan(
            self.given.seed, self.given.kills, self.given.processes, self.given.steps
        )
        done = 0
        for number, kill in enumerate(plan, 1):
            if self._attempt("killed", kill, number):
                done += 1
        self._attempt("killed", None, len(plan) + 1)
        if done < len(plan):
            _say(f"{len(plan) - done} kills came after the end of the run")
        one, other = self.folder / "undisturbed", self.folder / "killed"
        self.wrong += results.differences(one, other, steps=self.given.steps)
        return self.wrong

    def _attempt(self, name: str, kill: kills_lib.Kill | None, number: int) -> bool:
        """Starts the run and kills it; whether it was there to be killed."""
        workdir = self.folder / name
        rows = workdir / "rows"
        rows.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.{number}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                self.command(workdir),
                cwd=ROOT,
                env=self._environment(rows),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            before = results.last_step(rows)
            try:
                hit = kill is not None and self._carry_out(kill, process, rows)
                killed_at = time.monotonic()
                process.wait(_END_SECS if hit else _ATTEMPT_SECS)
            except subprocess.TimeoutExpired:
                self.wrong.append(f"{kill}: no end after {_END_SECS} s, see {log}")
                process.kill()
                process.wait()
        self._judge(process.returncode, kill if hit else None, log)
        if hit:
            secs = time.monotonic() - killed_at
            self.slowest = max(self.slowest, secs)
            reached = results.last_step(rows)
            _say(
                f"{number}/{self.given.kills} {kill}: exit {process.returncode} after "
                f"{secs:.1f} s, batches {before} to {reached}"
            )
        return hit

    def _carry_out(self, kill, process, rows: pathlib.Path) -> bool:
        return kills_lib.carry_out(kill, process, rows, self.given.processes)

    def _judge(self, code: int, kill: kills_lib.Kill | None, log: pathlib.Path):
        self.codes[str(code)] = self.codes.get(str(code), 0) + 1
        if code == 0:
            return
        expected = ()
        if kill is not None:
            expected = (42,) if kill.number == signal.SIGTERM else (1, 42, 134, 137)
            if kill.batches is None:
                expected += (143,)  # before anything listens to signals
        if code not in expected:
            self.wrong.append(f"{kill or 'no kill'}: exit code {code}, see {log}")
            _say(f"{log}:\n{_tail(log)}")

    def command(self, workdir: pathlib.Path) -> list[str]:
        """The command line of every attempt."""
        given = self.given
        experiment = given.experiment or (MIXTURE if given.mixture else SMALL)
        return [
            *(sys.executable, "-m", "launch.local", f"--processes={given.processes}"),
            *("--devices=1", "--restarts=0", "--grace_secs=10", "--"),
            f"--fdl_config={experiment.format(steps=given.steps)}",
            *(_OF_MIXTURE if given.mixture and not given.experiment else ()),
            *_OFTEN,
            "--fiddler=benchmarks.chaosbench.recording.rows",
            f"--workdir={workdir}",
        ]

    def _environment(self, rows: pathlib.Path) -> dict[str, str]:
        return os.environ | {
            "ROXXEL_CHAOS_ROWS": str(rows),
            # Most of an attempt is compiling: quickly, and once where jax keeps what
            # was compiled, which is the first process only.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mixture", action="store_true", help="two sets, 3 phases")
    parser.add_argument(
        "--experiment", help="another one; {steps} in it stands for --steps"
    )
    parser.add_argument("--keep", type=pathlib.Path, help="folder for both runs")
    given = parser.parse_args(argv)
    if given.keep and given.keep.exists() and any(given.keep.iterdir()):
        parser.error(f"--keep {given.keep}: there are files in it; give a new folder")
    _say(f"seed {given.seed}, {given.kills} kills, {given.processes} processes")
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = (given.keep or pathlib.Path(temporary)).absolute()
        chaos = Chaos(given, folder)
        began = time.monotonic()
        wrong = chaos.run()
        codes = ", ".join(f"{n} x {code}" for code, n in sorted(chaos.codes.items()))
        _say(
            f"exit codes {codes}; slowest end {chaos.slowest:.1f} s; "
            f"{time.monotonic() - began:.0f} s in all"
        )
    for line in wrong:
        _say(f"WRONG: {line}")
    if not wrong:
        _say(
            f"no difference after {given.kills} kills: parameters and optimizer bit "
            f"for bit, {given.steps} steps logged once, no row twice or skipped"
        )
    return 1 if wrong else 0


def _tail(log: pathlib.Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:])


def _say(text: str) -> None:
    print(f"chaos: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
