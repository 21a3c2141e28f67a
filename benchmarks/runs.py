"""How long a report of many long runs takes, its size, and when a browser shows it.

    python benchmarks/runs.py [--runs 20] [--points 100000] [--keep DIR]

Makes runs with the columns that a trainer writes, then times `compare` and `report` as
processes of their own, and reads from headless Chromium when the page was drawn:
milliseconds from the beginning of the navigation, by the page's own clock.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = (
    *("step", "loss", "perplexity", "grad_norm", "weight_norm", "learning_rate"),
    *("tokens", "elapsed", "tokens_per_sec", "memory_gib", "eval_loss"),
    *("eval_accuracy",),
)
EVALUATED_EVERY = 1000


def make(folder: pathlib.Path, points: int, seed: int) -> None:
    """A finished run of `points` steps, an evaluation every thousand of them."""
    rng = np.random.default_rng(seed)
    steps = np.arange(1, points + 1)
    loss = 5 * steps**-0.1 + 0.05 * rng.standard_normal(points)
    rows = [",".join(COLUMNS)]
    for step, value in zip(steps.tolist(), loss.tolist(), strict=True):
        evaluated = (
            f"{value + 0.02},{1 / value}" if step % EVALUATED_EVERY == 0 else ","
        )
        rows.append(
            f"{step},{value},{2.718281828**value},{0.7 + 0.1 * value},{30 + value},"
            f"{1e-3 * (1 - step / (points + 1))},16384,{0.1 * step:.3f},"
            f"{160_000 + step % 977},12.5,{evaluated}"
        )
    folder.mkdir(parents=True)
    (folder / "roxxel_metrics.csv").write_text("\n".join(rows) + "\n")
    spent = {"step": 0.09 * points, "compile": 40.0, "save": 30.0, "data": 12.0}
    attempt = {"began": 1e9, "seconds": spent, "first_step": 0, "last_step": points}
    text = json.dumps(attempt | {"end": "done"}) + "\n"
    (folder / "goodput.jsonl").write_text(text)
    (folder / "run.json").write_text(json.dumps({"total_steps": points}))
    (folder / "summary.json").write_text(json.dumps({"steps": points}))
    settings = [f"model.blocks[{i}].width = {512 + i}" for i in range(150)]
    settings.append(f"optimizer.learning_rate = {1e-3 * (seed + 1)}")
    (folder / "config.txt").write_text("\n".join(settings) + "\n")
    (folder / "sample.txt").write_text("once upon a time " * 40)
    log = "2026-01-01 00:00:00.000 INFO a line of the log of usual length\n"
    (folder / "roxxel_system.log").write_text(log * 200)


def timed(*command: str) -> str:
    """Wall and processor seconds of `python -m roxxel.runs ...`, with its imports."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, "-m", "roxxel.runs", *command],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wall, after = time.perf_counter() - begin, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return f"{wall:.2f} s, {cpu:.2f} s of a processor"


def rendered(page: pathlib.Path) -> str:
    """Seconds until Chromium had drawn the page; "n/a" where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return "n/a"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [browser, *flags, page.as_uri()], capture_output=True, text=True, check=True
    )
    found = re.search(r'data-millis="(\d+)"', done.stdout)
    return f"{int(found[1]) / 1000:.2f} s" if found else "n/a"


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--keep", help="a folder for runs and page; reused")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(args.keep or scratch).resolve()
        runs = [folder / f"run{i:02d}" for i in range(args.runs)]
        for seed, run in enumerate(runs):
            if not run.exists():
                make(run, args.points, seed)
        page, paths = folder / "report.html", list(map(str, runs))
        told = {"compare": timed("compare", *paths)}
        told["report"] = timed("report", *paths, "-o", str(page))
        told["first render"] = rendered(page)
        lines = [f"{args.runs} runs of {args.points:,} points"]
        lines += [f"{name}: {spent}" for name, spent in told.items()]
        lines.append(f"page: {page.stat().st_size / 1e6:.2f} MB")
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
