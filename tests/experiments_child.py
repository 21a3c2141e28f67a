"""Runs experiments in one process: `python experiments_child.py FLAG... -- NAME...`.

Each trains in `runs/NAME` below the working directory; a line of JSON tells the exit
codes. One process compiles and imports once for all.
"""

import json
import sys

from roxxel import main


def run(flags: list[str], names: list[str]) -> dict[str, int]:
    codes = {}
    for name in names:
        codes[name] = main.main(
            [f"--fdl_config={name}", *flags, f"--workdir=runs/{name}"]
        )
    return codes


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.stdout.write(json.dumps(run(sys.argv[1:split], sys.argv[split + 1 :])) + "\n")
