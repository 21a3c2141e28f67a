"""The command line of a sweep: what varies, what is fixed, and how it is run."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from launch import trials
from launch.problems import SweepError, did_you_mean

# Flags of roxxel.main that every trial gets, with and without a suffix of their name.
_FIXED = ("fdl_config", "fdl_config_file", "fdl_set", "fiddler")
_FIXED += ("trust_module", "trust_config")
_FIXED_PREFIXES = ("fdl.", "fdl_tag.")
# Prefix of an axis -> what its key becomes.
_AXES = {"sweep.": "", "sweep_tag.": trials.TAG_PREFIX}
_RANGES = {"range.": "", "range_tag.": trials.TAG_PREFIX}

_TEXT = {
    "sweep_config": "FUNCTION",
    "sweep_experiment": "NAME,NAME",
    "sweep_dir": "DIR",
    "search": "optuna",
    "metric": "NAME",
    "goal": "min|max",
    "gpus": "0,1,...",
    "emit": "slurm",
    "slurm": "'--time=4:00:00 --gres=gpu:1'",
}
_NUMBERS = {"workers": 1, "threads": 0, "trials": 0, "rungs": 3, "eta": 2, "seed": 0}
_GPU = re.compile(r"\d{1,4}|(GPU|MIG)-[\w/-]+")  # as CUDA_VISIBLE_DEVICES has them
_MOST_WORKERS = 4096
_SWITCHES = ("zip", "halving", "retry_failed", "report", "help")

USAGE = """\
usage: python -m launch.sweep --fdl_config=EXPERIMENT --sweep.PATH=V1,V2,... [flags]
  what varies
    --sweep.PATH=V1,V2       every combination of the values of all axes (a grid)
    --sweep_tag.NAME=V1,V2   the same for a tag; --sweep_experiment=A,B for experiments
    --zip                    the first values together, the second ones together, ...
    --sweep_config=FUNCTION  a function of overrides: configs.sweeps.learning_rates(n=3)
    --search=optuna          with --range.PATH=log:1e-4:1e-2 (or linear:, int:,
                             logint:, choice:a,b), --trials=N and --seed=0
  what every trial gets      --fdl.PATH=V, --fdl_tag.NAME=V, --fiddler=NAME
  how it is run
    --sweep_dir=DIR          default sweeps/<experiment>; the same command continues
    --workers=1              trials at a time, --threads=N cores each, --gpus=0,1 shared
    --metric=eval_loss       what the leaderboard sorts by, --goal=min or max
    --halving                stop all but the best 1/--eta=2 at each of --rungs=3
    --emit=slurm             write a job array instead, --slurm='--time=4:00:00 ...'
    --retry_failed           start failed trials again
    --report                 print the leaderboard of --sweep_dir, start nothing"""


@dataclasses.dataclass(kw_only=True)
class Options:
    """A parsed command line.

    `words` are the flags of every trial with a placeholder where an axis was typed;
    `axes` and `ranges` are by key, see `trials.Trial`.
    """

    words: list[str] = dataclasses.field(default_factory=list)
    axes: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    ranges: dict[str, str] = dataclasses.field(default_factory=dict)
    text: dict[str, str] = dataclasses.field(default_factory=dict)
    numbers: dict[str, int] = dataclasses.field(default_factory=lambda: dict(_NUMBERS))
    switches: set[str] = dataclasses.field(default_factory=set)

    @property
    def base(self) -> list[str]:
        """The flags that all trials share."""
        return [w for w in self.words if not w.startswith(trials.SWEEP_PREFIX)]

    @property
    def metric(self) -> str:
        """What the leaderboard sorts by."""
        return self.text.get("metric", "eval_loss")

    @property
    def goal(self) -> str:
        """Whether the least or the largest metric is best: "min" or "max"."""
        return self.text.get("goal", "min")

    @property
    def gpus(self) -> list[str]:
        """The GPUs that the workers share; empty: no choice is made."""
        given = self.text.get("gpus")
        return [] if given is None else [gpu.strip() for gpu in given.split(",")]

    @property
    def sweep_dir(self) -> Path:
        """The absolute folder of the sweep."""
        given = self.text.get("sweep_dir")
        path = Path(given).expanduser() if given else Path("sweeps") / self._name()
        return Path(os.path.abspath(path))

    @property
    def threads(self) -> int:
        """CPU threads of one trial: an equal share of the cores by default."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        share = (cores or os.cpu_count() or 1) // self.numbers["workers"]
        return self.numbers["threads"] or max(1, share)

    def _name(self) -> str:
        for word in self.words:
            name, _, value = word.removeprefix("--").partition("=")
            if name == "fdl_config":
                return value.partition("(")[0].rpartition(".")[2]
        return "sweep"


def parse(argv: Sequence[str]) -> Options:
    """The options in `argv` (without the program's name).

    Raises:
      SweepError: an unknown flag, a missing value, or flags that exclude each other.
    """
    options = Options()
    for word in argv:
        _parse_word(word, options)
    if not {"help", "report"} & options.switches:
        _check(options)
    return options


def _parse_word(word: str, options: Options) -> None:
    if not word.startswith("--"):
        raise SweepError(f"stray argument {word!r}: write --flag=value.")
    name, equals, value = word[2:].partition("=")
    if name in _FIXED or name.startswith(_FIXED_PREFIXES):
        options.words.append(word)
    elif name in _SWITCHES and not equals:
        options.switches.add(name)
    elif not equals:
        raise SweepError(_unknown(word, name))
    elif key := _key(name, _AXES):
        _add_axis(word, key, value, options)
    elif key := _key(name, _RANGES):
        options.ranges[key] = value
        options.words.append(f"{trials.SWEEP_PREFIX}{key}")
    elif name == "sweep_experiment":
        _add_axis(word, "--fdl_config", value, options)
    elif name in _TEXT and value.strip():
        options.text[name] = value
    elif name in _NUMBERS:
        options.numbers[name] = _number(word, value)
    else:
        raise SweepError(_unknown(word, name))


def _key(name: str, prefixes: dict[str, str]) -> str | None:
    for prefix, replacement in prefixes.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return None


def _add_axis(word: str, key: str, value: str, options: Options) -> None:
    values = trials.split(value)
    if "" in values or not key.removeprefix(trials.TAG_PREFIX):
        raise SweepError(
            f"{word}: expected values between commas, as in --sweep.a=1,2."
        )
    if len(set(values)) < len(values):
        raise SweepError(f"{word}: a value is there twice.")
    if key in options.axes:
        raise SweepError(f"{word}: this axis is given twice.")
    options.axes[key] = values
    options.words.append(f"{trials.SWEEP_PREFIX}{key}")


def _number(word: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = -1
    if number < 0:
        raise SweepError(f"{word}: expected a whole number, got {value!r}.")
    return number


def _unknown(word: str, name: str) -> str:
    if name in _TEXT or name in _NUMBERS:
        example = _TEXT.get(name, "N")
        return f"{word}: a value is missing, as in --{name}={example}."
    if name == "workdir":
        return f"{word}: each trial has its own work directory; give --sweep_dir=DIR."
    known = [*_TEXT, *_NUMBERS, *_SWITCHES, *_FIXED, "sweep.PATH", "range.PATH"]
    return f"unknown flag {word!r}.{did_you_mean(name, known)}"


def _check(options: Options) -> None:
    text, numbers = options.text, options.numbers
    names = {word.removeprefix("--").partition("=")[0] for word in options.base}
    if not names & {"fdl_config", "fdl_config_file"} and (
        "--fdl_config" not in options.axes
    ):
        raise SweepError(f"no experiment: give --fdl_config=NAME.\n{USAGE}")
    if not (options.axes or options.ranges or "sweep_config" in text):
        raise SweepError(
            "nothing varies: give --sweep.PATH=V1,V2, --sweep_config or --range.PATH."
        )
    for name, allowed in (
        ("search", ("optuna",)),
        ("emit", ("slurm",)),
        ("goal", ("min", "max")),
    ):
        if name in text and text[name] not in allowed:
            raise SweepError(f"--{name}={text[name]}: expected {' or '.join(allowed)}.")
    wrong = [gpu for gpu in options.gpus if not _GPU.fullmatch(gpu)]
    if wrong:
        raise SweepError(
            f"--gpus={text['gpus']}: expected numbers or UUIDs of GPUs, as in "
            f"--gpus=0,1; got {wrong[0]!r}."
        )
    for name in ("workers", "rungs"):
        if numbers[name] < 1:
            raise SweepError(f"--{name}={numbers[name]}: expected at least 1.")
    if numbers["workers"] > _MOST_WORKERS:
        raise SweepError(
            f"--workers={numbers['workers']}: expected at most {_MOST_WORKERS}."
        )
    if numbers["eta"] < 2:
        raise SweepError(f"--eta={numbers['eta']}: expected at least 2.")
    if "emit" in text and "halving" in options.switches:
        raise SweepError(
            "--emit and --halving exclude each other: rungs need a driver."
        )
    _check_search(options)


def _check_search(options: Options) -> None:
    is_search = "search" in options.text
    if is_search != bool(options.ranges):
        raise SweepError("--search=optuna and --range.PATH=... belong together.")
    if not is_search:
        return
    if not options.numbers["trials"]:
        raise SweepError("--search needs --trials=N, the number of trials in all.")
    others = [name for name in ("halving", "zip") if name in options.switches]
    others += [name for name in ("emit", "sweep_config") if name in options.text]
    others += ["sweep.PATH"] if options.axes else []
    if others:
        raise SweepError(f"--search and --{others[0]} exclude each other.")
