"""Why a run is slow: where its time went, and which setting changes that.

Each finding is a number of the run and the knob that belongs to it; `docs/slow.md` is
the same table to read. The numbers come from `goodput.jsonl` (wall time by phase of all
attempts), `summary.json` and the metrics table of the work directory.
"""

import dataclasses

import numpy as np

from roxxel import hardware
from roxxel.progress import format_rate, format_secs
from roxxel.runs.reading import Run, numbers

# A phase that takes more of the wall time than this is a finding.
MUCH = 0.05
_GOOD_MFU = 0.4  # of a dense model of some size; what lies above needs no advice
_UNEVEN = 2.0  # p99 of the seconds a step over p50
_SPARE_MEMORY = 0.6  # less of a device's memory than this leaves room for more
_SHORT_SECS = 120.0
_ROWS = 500  # of the end of the table, where a run has no summary

# What a run shows -> what to turn. In the order of docs/slow.md.
KNOBS: dict[str, tuple[str, str]] = {
    "data": (
        "the device waits for batches",
        "faster storage than the network's (`drop_behind=` where pages are short), "
        "fewer and larger shards, an own input that makes its batches ahead, a larger "
        "`batch_size`",
    ),
    "compile": (
        "XLA compiles",
        "`compilation_cache=` (or JAX_COMPILATION_CACHE_DIR) on a disk that stays, "
        "`scan_layers=True` for deep models, fewer phases of different `seq_len`",
    ),
    "start": (
        "imports, data sets, devices, restoring",
        "longer attempts, data sets built before the run (`roxxel.rox build`), "
        "checkpoints on faster storage",
    ),
    "evaluation": (
        "held-out sets are looked at",
        "a larger `every=`, `max_batches=`, a larger `batch_size=` of the evaluation, "
        "or `by_follower=True` and `--mode=eval --follow` on another machine",
    ),
    "save": (
        "the state is copied, or the write before is waited for",
        "a larger `save_every=`, faster storage for the work directory, `fsdp` in "
        "`mesh_axes` so that each device writes less",
    ),
    "sample": ("the text at the end", "a smaller `sample.num_tokens=`, `sample=None`"),
    "other": (
        "logger, sinks and Python between steps",
        "`logger.console_every=100`, fewer sinks, larger steps (`batch_size`)",
    ),
    "lost": (
        "steps trained again after a kill",
        "a smaller `save_every=`; SIGTERM some seconds before the kill (the launchers "
        "do), a `deadlines.stop` that fits into that time",
    ),
    "down": (
        "nothing ran between two attempts",
        "a launcher that starts again by itself (`launch.slurm`, `launch.jobset`, "
        "`launch.tpu_vm`), a queue with less waiting",
    ),
    "uneven": (
        "some steps take much longer than most",
        "look at `data` first; other work on the machine, network storage, a straggler "
        "(compare `profile/process_*`)",
    ),
    "mfu": (
        "the device is busy with little arithmetic",
        "a larger `batch_size` (or `accumulate`), `compute_dtype` bfloat16 "
        "(`--fiddler=bf16`), less `remat`, `fsdp` or `data` before `tensor` in "
        "`mesh_axes`; `--mode=check --topology=` tells the bound of the program",
    ),
    "memory": (
        "much of the device's memory is free",
        "a larger `batch_size`, `remat=none`",
    ),
}
_INSIDE = "What the steps themselves spend their time on: --profile=100:110."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason; `weight` is the share of the wall time that it is worth."""

    name: str
    number: str
    weight: float

    def line(self) -> str:
        """The number, what it means, what to turn."""
        sign, knob = KNOBS[self.name]
        return f"{self.number}: {sign}. Turn: {knob.replace('`', '')}."


def explain(run: Run) -> str:
    """A few lines: the numbers of a run, then each finding, the worst first."""
    found = findings(run)
    lines = [_head(run)]
    if run.total_secs and run.total_secs < _SHORT_SECS:
        lines.append(
            f"A run of {run.total_secs:.0f} s mostly starts and compiles; a longer one "
            "tells more."
        )
    lines += [f"  {number}. {one.line()}" for number, one in enumerate(found, 1)]
    if not found:
        known = "Nothing stands out." if run.total_secs else "Nothing is known of it."
        lines.append(f"  {known}")
    return "\n".join([*lines, f"  {_INSIDE}"])


def findings(run: Run) -> list[Finding]:
    """What stands out of a run's numbers, the heaviest first."""
    found = [*_phases(run), *_down(run), *_uneven(run), *_device(run)]
    return sorted(found, key=lambda one: -one.weight)


def table() -> str:
    """`KNOBS` as the table of docs/slow.md."""
    rows = [f"| `{name}` | {sign} | {knob} |" for name, (sign, knob) in KNOBS.items()]
    return "\n".join(["| reason | what it is | what to turn |", "|---|---|---|", *rows])


def _phases(run: Run) -> list[Finding]:
    total = run.total_secs
    return [
        Finding(
            name=name,
            number=f"{name} {_percent(spent / total)} ({format_secs(spent)})",
            weight=spent / total,
        )
        for name, spent in run.seconds.items()
        if name in KNOBS and total and spent > MUCH * total
    ]


def _down(run: Run) -> list[Finding]:
    down = run.down_secs
    share = down / (down + run.total_secs) if down else 0.0
    if share <= MUCH:
        return []
    return [
        Finding(
            name="down",
            number=f"down {format_secs(down)} between {len(run.goodput.attempts)} "
            f"attempts, {_percent(share)} of the time since the first",
            weight=share,
        )
    ]


def _uneven(run: Run) -> list[Finding]:
    steps = step_secs(run)
    middle, slow = steps.get("p50", 0.0), steps.get("p99", 0.0)
    if not middle or slow <= _UNEVEN * middle:
        return []
    return [
        Finding(
            name="uneven",
            number=f"step p99 {1e3 * slow:.1f} ms, {slow / middle:.1f} times p50",
            weight=min(0.01 * slow / middle, 0.5),
        )
    ]


def _device(run: Run) -> list[Finding]:
    mfu = number_of(run, "mfu")
    if mfu is None or mfu >= _GOOD_MFU:
        return []
    worth = (_GOOD_MFU - mfu) / _GOOD_MFU * run.step_share
    found = [Finding(name="mfu", number=f"MFU {_percent(mfu)}", weight=worth)]
    used, chip = _memory(run).get("device"), _chip(run)
    limit = 0.0 if chip is None else chip.hbm_bytes / hardware.GIB
    if used is not None and used < _SPARE_MEMORY * limit:
        text = f"device memory {used:.1f} of {limit:.0f} GiB"
        found.append(Finding(name="memory", number=text, weight=worth / 2))
    return found


def _head(run: Run) -> str:
    parts = []
    if run.total_secs:
        attempts = len(run.goodput.attempts) or 1
        parts.append(
            f"goodput {_percent(run.step_share)} of {format_secs(run.total_secs)} in "
            f"{attempts} attempt{'' if attempts == 1 else 's'}"
        )
    rate, mfu = number_of(run, "tokens_per_sec"), number_of(run, "mfu")
    if rate:
        parts.append(f"{format_rate(rate)} tokens/s")
    if mfu is not None:
        parts.append(f"MFU {_percent(mfu)}")
    steps = ", ".join(f"{k} {1e3 * v:.1f}" for k, v in step_secs(run).items())
    if steps:
        parts.append(f"ms a step {steps}")
    memory = ", ".join(f"{k} {v:.2f} GiB" for k, v in _memory(run).items())
    if memory:
        parts.append(f"memory at most {memory}")
    return f"{run.name} ({run.status}): {'; '.join(parts) or 'no numbers yet'}"


def step_secs(run: Run) -> dict[str, float]:
    """Seconds a step as p50, p90 and p99; without a summary from the table."""
    told = numbers(run.summary.get("step_secs"))
    if told:
        return told
    elapsed = run.metrics.get("elapsed", np.zeros(0))[-_ROWS:]
    spent = np.diff(elapsed[~np.isnan(elapsed)])
    if spent.size < 2:
        return {}
    return {f"p{q}": float(np.percentile(spent, q)) for q in (50, 90)}


def number_of(run: Run, name: str) -> float | None:
    """A number of the summary, or the median of the table's last rows."""
    told = numbers(run.summary).get(name)
    if told is not None:
        return told
    values = run.metrics.get(name, np.zeros(0))[-_ROWS:]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else None


def _memory(run: Run) -> dict[str, float]:
    told = numbers(run.summary.get("memory_gib"))
    last = run.last("memory_gib")
    return told or ({"process": last} if last else {})


def _chip(run: Run) -> hardware.Chip | None:
    return hardware.chip(str(run.info.get("device_kind", "")))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
