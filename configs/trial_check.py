"""Checks the command lines of a sweep's trials before any of them starts.

`launch.sweep` runs it as a process, with `{"trials": [[flag, ...], ...]}` as JSON on
stdin. The first mistake is written to stderr, with exit code 2. With `"total_steps":
true` the length of each trial comes back as JSON on stdout.
"""

import json
import sys

import fiddle as fdl

from roxxel.config import arguments, resolve
from roxxel.errors import EXIT_CONFIG, EXIT_OK, ConfigError


def main() -> int:
    """Check the request on stdin; the exit code."""
    request = json.load(sys.stdin)
    totals = []
    for flags in request["trials"]:
        try:
            config = resolve.experiment(arguments.parse(flags)).config
            if request.get("total_steps"):
                totals.append(total_steps(config))
        except ConfigError as err:
            sys.stderr.write(f"{err}\n")
            return EXIT_CONFIG
    json.dump({"total_steps": totals}, sys.stdout)
    return EXIT_OK


def total_steps(config: fdl.Buildable) -> int:
    """The length of a run in steps; builds the data set where that depends on it.

    Raises:
      ConfigError: the experiment does not say how long it is.
    """
    value = getattr(config, "total_steps", None)
    if isinstance(value, fdl.Buildable):
        value = fdl.build(value)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"--halving needs an experiment with total_steps, got {value!r} from "
            f"{fdl.get_callable(config).__name__}."
        )
    return value


if __name__ == "__main__":
    sys.exit(main())
