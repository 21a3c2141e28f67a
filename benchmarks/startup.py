"""How long the command line takes to answer, beside the imports that it cannot avoid.

    python benchmarks/startup.py [--rounds 5]

Each round starts every command once in a process of its own, and a process that only
imports jax, flax and optax; medians of the wall time, and of the difference from the
imports of the same round.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORTS = ["-c", "import jax, optax; from flax import nnx"]
MAIN = ["-m", "roxxel.main"]
SMALL = "--fdl_config=ssm_small"

# What is measured: arguments, the exit code, and the seconds above the imports allowed.
COMMANDS = {
    "list": ([*MAIN, "--mode=list"], 0, 2.0),
    "explain ssm_small": ([*MAIN, SMALL, "--mode=explain"], 0, 2.0),
    "check ssm_small": ([*MAIN, SMALL, "--mode=check"], 0, 2.0),
    "check ssm_1b": ([*MAIN, "--fdl_config=ssm_1b", "--mode=check"], 0, 6.0),
    "wrong experiment": ([*MAIN, "--fdl_config=ssm_smoll"], 2, 1.5),
    "wrong flag": ([*MAIN, SMALL, "--fld.seed=3"], 2, 1.5),
    "wrong path": ([*MAIN, SMALL, "--fdl.modle.d_model=3"], 2, 1.5),
    "wrong value": ([*MAIN, SMALL, "--fdl.model.d_model=wide"], 2, 1.5),
    "wrong fiddler": ([*MAIN, SMALL, "--fiddler=debgu"], 2, 1.5),
    "wrong size": ([*MAIN, SMALL, "--fdl_tag.BatchSize=-3"], 2, 1.5),
}


def run(arguments: list[str], expected: int) -> tuple[float, float]:
    """Seconds and peak memory in MB of one process."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expected:
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    walls: dict[str, list[float]] = {name: [] for name in ["imports", *COMMANDS]}
    above: dict[str, list[float]] = {name: [] for name in COMMANDS}
    memory: dict[str, float] = dict.fromkeys(COMMANDS, 0.0)
    for _ in range(rounds):
        imports, _ = run(IMPORTS, 0)
        walls["imports"].append(imports)
        for name, (arguments, code, _) in COMMANDS.items():
            seconds, peak = run(arguments, code)
            walls[name].append(seconds)
            above[name].append(seconds - imports)
            memory[name] = max(memory[name], peak)
    print(f"imports of jax, flax, optax: {statistics.median(walls['imports']):.2f} s")
    print(f"{'command':<20}{'wall s':>8}{'above s':>9}{'allowed':>9}{'MB':>7}")
    for name, (_, _, allowed) in COMMANDS.items():
        wall, more = statistics.median(walls[name]), statistics.median(above[name])
        print(f"{name:<20}{wall:>8.2f}{more:>9.2f}{allowed:>9.1f}{memory[name]:>7.0f}")


if __name__ == "__main__":
    main()
