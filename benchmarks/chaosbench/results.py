"""What a run left behind, and how two runs differ."""

import collections
import csv
import json
import pathlib

# Columns that tell of time, not of the training.
_OF_TIME = ("elapsed", "tokens_per_sec", "mfu", "memory_gib")

# A step's rows: sums by row of the global batch.
Rows = dict[int, dict[int, int]]


def trained_rows(folder: pathlib.Path) -> tuple[Rows, list[str]]:
    """The rows of each step as last trained, and what is wrong with the record.

    A killed attempt's steps after its last checkpoint are trained again: the last
    record of a step is the one that the parameters come from.
    """
    found: Rows = collections.defaultdict(dict)
    wrong = []
    for path in sorted(folder.glob("rows.*.jsonl")):
        before: dict[str, int] = {}  # of the attempt that is being read
        reached = 0
        for line in _lines(path):
            step, pid = line["step"], line["pid"]
            if before.get("pid") == pid and step != before["step"] + 1:
                wrong.append(f"{path.name}: step {step} follows {before['step']}")
            if before.get("pid") != pid and step > reached:
                wrong.append(f"{path.name}: steps {reached} to {step} are skipped")
            before = {"pid": pid, "step": step}
            reached = max(reached, step + 1)
            found[step] |= {int(i): total for i, total in line["rows"].items()}
    return dict(found), wrong


def attempts(folder: pathlib.Path) -> int:
    """How many attempts came as far as a batch."""
    paths = folder.glob("rows.*.jsonl")
    return max((len({x["pid"] for x in _lines(path)}) for path in paths), default=0)


def batches_of_last(folder: pathlib.Path) -> int:
    """How many batches the newest attempt was given, in the process with the most."""
    most = 0
    for path in folder.glob("rows.*.jsonl"):
        pids = [line["pid"] for line in _lines(path)]
        most = max(most, pids.count(pids[-1]) if pids else 0)
    return most


def last_step(folder: pathlib.Path) -> int:
    """The newest step of which any process was given the batch; -1 before."""
    newest = -1
    for path in folder.glob("rows.*.jsonl"):
        lines = _lines(path)
        newest = max(newest, lines[-1]["step"] if lines else -1)
    return newest


def _lines(path: pathlib.Path) -> list[dict]:
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # the last one may be cut by a kill
    lines = [line for line in whole.splitlines() if line.endswith("}}")]
    return [json.loads(line[line.rfind('{"pid"') :]) for line in lines]


def table(workdir: pathlib.Path) -> list[dict[str, str]]:
    """The rows of the metrics, without what depends on time."""
    with open(workdir / "roxxel_metrics.csv", newline="", encoding="utf-8") as file:
        return [
            {k: v for k, v in row.items() if k not in _OF_TIME}
            for row in csv.DictReader(file)
        ]


def arrays(workdir: pathlib.Path, step: int) -> dict:
    """All arrays of a checkpoint as numpy, by name."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp
    from absl import logging

    logging.set_verbosity(logging.ERROR)  # the reader misses a file that is optional
    path = workdir / "checkpoints" / str(step) / "state"
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.metadata(path).item_metadata.tree
        kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        read = reader.restore(path, restore_args=kinds)
    leaves = jax.tree_util.tree_flatten_with_path(read)[0]
    return {jax.tree_util.keystr(key): np.asarray(value) for key, value in leaves}


def differences(
    one: pathlib.Path, other: pathlib.Path, *, steps: int, folder: str = "rows"
) -> list[str]:
    """How the run in `other` differs from the undisturbed one; a line for each kind."""
    found = _different_rows(one, other, steps, folder)
    found += _different_tables(table(one), table(other), steps)
    before, after = arrays(one, steps), arrays(other, steps)
    if before.keys() != after.keys():
        found.append(f"arrays of {sorted(before.keys() ^ after.keys())}")
    unequal = [
        name
        for name in before.keys() & after.keys()
        if before[name].tobytes() != after[name].tobytes()
    ]
    if unequal:
        found.append(f"{len(unequal)} of {len(before)} arrays: {sorted(unequal)[:3]}")
    return found


def _different_rows(one, other, steps: int, folder: str) -> list[str]:
    expected, wrong = trained_rows(one / folder)
    got, more = trained_rows(other / folder)
    wrong += more
    if sorted(got) != list(range(steps)):
        wrong.append(f"trained steps are {_shown(set(range(steps)) ^ set(got))} off")
    other_rows = [step for step in expected if expected[step] != got.get(step)]
    if other_rows:
        wrong.append(f"other rows in steps {_shown(other_rows)}")
    sums = collections.Counter(x for row in got.values() for x in row.values())
    twice = [total for total, count in sums.items() if count > 1]
    first = collections.Counter(x for row in expected.values() for x in row.values())
    if any(first[total] != sums[total] for total in twice):
        wrong.append(f"{len(twice)} rows were trained more than once")
    return wrong


def _different_tables(one, other, steps: int) -> list[str]:
    logged = collections.Counter(row["step"] for row in other if row.get("loss"))
    wrong = [] if len(logged) == steps else [f"{len(logged)} of {steps} steps logged"]
    twice = [step for step, count in logged.items() if count > 1]
    if twice:
        wrong.append(f"steps logged more than once: {_shown(twice)}")
    if one != other and not wrong:
        pairs = zip(one, other, strict=False)
        rows = [a.get("step") for a, b in pairs if a != b]
        wrong.append(f"metric rows differ at steps {_shown(rows) or 'of the end'}")
    return wrong


def _shown(values) -> str:
    values = list(values)
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")
