"""What the large experiments can reach on TPUs at most, compiled without one.

    nice python benchmarks/tpu_table.py --results=tpu_table.json

compiles the train step of each model for each pod with `libtpu` (about one to two
minutes of one CPU core each), keeps every result in a file as soon as it is there, and
prints the table of docs/performance.md. Started again, it goes on where it was.
`--only` takes parts of names (`--only=ssm_1b,v5e`), `--secs` starts nothing later.

A cell is a bound, not a measurement: the roofline of `roxxel.topology.roofline`, which
no run reaches. The batch is the experiment's; a chip takes so many rows of it at a time
as its memory allows (`accumulate`). Parameters lie over 64 chips at most.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from roxxel.config import abstract, arguments, check, check_model, resolve  # noqa: E402
from roxxel.topology import compiling, devices, roofline  # noqa: E402

MODELS = ("ssm_1b", "transformer_1b", "transformer_gpt3_xl", "transformer_16b")
# By chips: the grid of a slice, and slices. A pod of v5e or v6e has 256 chips.
GRIDS_2D = {16: ("4x4", 1), 64: ("8x8", 1), 256: ("16x16", 1), 512: ("16x16", 2)}
GRIDS_3D = {
    16: ("2x2x4", 1),
    64: ("4x4x4", 1),
    256: ("4x8x8", 1),
    512: ("8x8x8", 1),
}
PODS = {"v4": GRIDS_3D, "v5e": GRIDS_2D, "v5p": GRIDS_3D, "v6e": GRIDS_2D}
# Tokens that a chip takes at a time at first; less where they do not fit.
TOKENS_AT_A_TIME = {"v4": 8192, "v5e": 4096, "v5p": 8192, "v6e": 8192}
# Chips that parameters lie over; groups of so many hold the same. Of 256 or 512 parts
# libtpu makes all-reduces of many gathers and scatters: 2 to 4 times as many bytes.
MOST_PARTS = 64
CELL_SECS = 3600
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Cell:
    """One model on one pod."""

    model: str
    chip: str
    chips: int

    @property
    def name(self) -> str:
        """The key in the file of results."""
        return f"{self.model} {self.chip} {self.chips}"


def main() -> None:
    """Compile what is missing, then print the table."""
    options = _options()
    if options.cell:
        sys.stdout.write(json.dumps(_compiled(_cell(options.cell))) + "\n")
        return
    path = pathlib.Path(options.results)
    results = json.loads(path.read_text()) if path.exists() else {}
    begin = time.monotonic()
    for cell in _cells(options):
        if cell.name in results or time.monotonic() - begin > options.secs:
            continue
        results[cell.name] = _in_a_process(cell)
        path.write_text(json.dumps(results, indent=1))
        sys.stderr.write(f"{cell.name}: {results[cell.name]}\n")
    sys.stdout.write(_table(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", default="tpu_table.json")
    parser.add_argument("--only", default="", help="parts of names, all must fit")
    parser.add_argument("--chips", default="16,64,256,512")
    parser.add_argument("--secs", type=float, default=float("inf"))
    parser.add_argument("--cell", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _cell(text: str) -> Cell:
    model, chip, chips = text.split(":")
    return Cell(model, chip, int(chips))


def _cells(options: argparse.Namespace) -> list[Cell]:
    chips = [int(number) for number in options.chips.split(",")]
    cells = [Cell(m, c, n) for n in chips for m in MODELS for c in PODS]
    parts = [part for part in options.only.split(",") if part]
    return [cell for cell in cells if all(part in cell.name for part in parts)]


def _in_a_process(cell: Cell) -> dict:
    """The result of a cell; a compiler that crashes takes only its cell with it."""
    name = f"--cell={cell.model}:{cell.chip}:{cell.chips}"
    done = subprocess.run(
        [sys.executable, __file__, name],
        stdout=subprocess.PIPE,
        text=True,
        timeout=CELL_SECS,
        check=False,
    )
    if done.returncode:
        return {"failed": done.returncode}
    return json.loads(done.stdout.splitlines()[-1])


def _compiled(cell: Cell) -> dict:
    """Compiles, with fewer rows at a time until it fits or there is one row left."""
    grid, slices = PODS[cell.chip][cell.chips]
    topology = devices.parse(f"{cell.chip}:{grid}", slices)
    found = devices.open_devices(topology)
    rows_at_a_time = None
    while True:
        trainer, model, rows_at_a_time = _trainer(cell, topology, rows_at_a_time)
        compiled = compiling.compile_step(trainer, found)
        if compiled.fits or rows_at_a_time == 1:
            break
        rows_at_a_time = max(1, rows_at_a_time // 2)
    result = {"topology": str(topology), "accumulate": trainer.accumulate}
    result |= {"fits": compiled.fits, "hbm_gib": compiled.memory.total / GIB}
    result["cpu_secs"] = round(compiled.took[1])
    if not compiled.fits:
        return result
    per_token, _ = check_model.flops_per_token(model, compiled.span.seq_len)
    bound = roofline.bound(compiled, topology.chip, per_token)
    return result | {
        "step_ms": bound.seconds * 1e3,
        "terms_ms": {name: secs * 1e3 for name, secs in bound.terms.items()},
        "tokens_per_s": bound.tokens_per_s,
        "mfu": bound.utilization,
        "by": bound.by,
        "unknown_loops": compiled.unknown_loops,
    }


def _trainer(cell: Cell, topology: devices.Topology, rows: int | None):
    """The experiment on this pod, so many rows of a chip at a time."""
    groups = max(1, topology.num_chips // topology.num_slices // MOST_PARTS)
    flags = [f"--fdl_config={cell.model}", "--mode=check"]
    flags.append(f"--fiddler=fsdp(groups={groups})")
    if topology.num_slices > 1:
        flags.append(f'--fdl.dcn_axes={{"data": {topology.num_slices}}}')
    found = resolve.experiment(arguments.parse(flags))
    stream = found.config.stream
    of_a_chip = max(1, stream.batch_size // topology.num_chips)
    if stream.batch_size % topology.num_chips:
        stream.batch_size = of_a_chip * topology.num_chips
    if rows is None:
        at_a_time = TOKENS_AT_A_TIME[topology.chip.name] // stream.seq_len
        rows = max(1, min(of_a_chip, at_a_time))
    found.config.accumulate = of_a_chip // rows
    trainer = abstract.evaluate(found.config, assumed_steps=check.ASSUMED_STEPS).root
    values = abstract.Values(fields={"model": trainer.model})
    return trainer, check_model.abstract_model(values, []), rows


def _table(results: dict[str, dict]) -> str:
    head = (
        "| model | pod | at a time | memory of a chip | step at least | tokens/s at "
        "most | MFU at most | bound by |\n|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(_row(name.split()[0], one) for name, one in results.items())


def _row(model: str, one: dict) -> str:
    if "failed" in one:
        return f"| {model} | | | | the compiler failed ({one['failed']}) | | | |\n"
    memory = f"{one['hbm_gib']:.1f} GiB"
    part = "whole" if one["accumulate"] == 1 else f"1/{one['accumulate']}"
    start = f"| {model} | {one['topology']} | {part} | {memory}"
    if not one["fits"]:
        return f"{start}: does not fit | | | | |\n"
    by = one["by"]
    if one.get("unknown_loops"):
        by += f"; {one['unknown_loops']} loops counted as one trip: more is needed"
    return (
        f"{start} | {one['step_ms']:,.0f} ms | {one['tokens_per_s']:,.0f} | "
        f"{one['mfu']:.0%} | {by} |\n"
    )


if __name__ == "__main__":
    main()
