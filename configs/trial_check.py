"""Checks the command lines of a sweep's trials before any of them starts.

`launch.sweep` runs it as a process, with `{"trials": [[flag, ...], ...]}` as JSON on
stdin, and `"metric"` where one was named. The first mistake is written to stderr, with
exit code 2. With `"total_steps": true` the length of each trial comes back as JSON on
stdout.
"""

import json
import sys

import fiddle as fdl

from roxxel.config import arguments, resolve, suggest
from roxxel.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from roxxel.train.trainer import Trainer

# What every run of a trainer tells, and what each evaluation does.
_METRICS = ("loss", "perplexity", "grad_norm", "learning_rate", "tokens")
_METRICS += ("tokens_per_sec", "elapsed", "memory_gib", "mfu", "weight_norm")
_METRICS += ("update_norm",)
_EVALUATED = ("loss", "perplexity", "accuracy", "bits_per_byte")


def main() -> int:
    """Check the request on stdin; the exit code."""
    request = json.load(sys.stdin)
    totals = []
    for flags in request["trials"]:
        try:
            config = resolve.experiment(arguments.parse(flags)).config
            check_metric(config, request.get("metric"))
            if request.get("total_steps"):
                totals.append(total_steps(config))
        except ConfigError as err:
            sys.stderr.write(f"{err}\n")
            return EXIT_CONFIG
    json.dump({"total_steps": totals}, sys.stdout)
    return EXIT_OK


def check_metric(config: fdl.Buildable, metric: str | None) -> None:
    """Check the name of a metric, as far as it is known what a run tells.

    That is so for `Trainer`; other runs tell what they like.

    Raises:
      ConfigError: the run does not tell it.
    """
    target = fdl.get_callable(config)
    if metric is None or target is not Trainer:
        return
    known = list(_METRICS)
    evaluation = config.__arguments__.get("evaluation")
    if isinstance(evaluation, fdl.Buildable):
        evaluation = {getattr(evaluation, "name", None) or "eval": evaluation}
    names = list(evaluation or {})
    known = [f"{name}_{kind}" for name in names for kind in _EVALUATED] + known
    if metric not in known:
        hint = suggest.did_you_mean(metric, known, what="metrics")
        raise ConfigError(f"--metric={metric}: the trials do not tell it.{hint}")


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
