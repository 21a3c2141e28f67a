"""The length of a run, how its batches divide, its schedule and its cost."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from roxxel.config import abstract, check_model, rates
from roxxel.data.reading_only import NotBuiltError


def plan(
    values: abstract.Values, mesh: Mapping[str, int], model: Any, problems: list[str]
) -> list[str]:
    """The sections; adds problems where a batch does not divide over the mesh."""
    from roxxel import sharding

    stream, total = values.get("stream"), values.get("total_steps")
    rows = sharding.batch_shards(mesh)
    _check_divides("stream", _spans(stream, total), rows, problems)
    _check_precision(values.get("precision"), mesh, problems)
    _check_accumulate(values.get("accumulate"), _spans(stream, total), rows, problems)
    sections = [_length(values, stream, total, rows)]
    if model is not None and stream is not None:
        sections.append(_cost(model, stream, total))
    if values.get("schedule") is not None and isinstance(total, int):
        sections.append(_schedule(values.get("schedule"), total))
    return sections


def cut_problems(
    values: abstract.Values, mesh: Mapping[str, int], model: Any
) -> list[str]:
    """What of the model and of the rows a mesh cannot cut, and what cuts nothing."""
    from roxxel import sharding
    from roxxel.train import meshes
    from roxxel.train.evaluation import sets_of

    rules = values.get("axis_rules") or sharding.DEFAULT_RULES
    found = [] if model is None else sharding.model_problems(model, mesh, rules)
    spans = _spans(values.get("stream"), values.get("total_steps"))
    sets = sets_of(values.get("evaluation")).items()
    evaluated = [(name, one.seq_len) for name, one in sets]
    lengths = [span.seq_len for span in spans]
    return found + meshes.mesh_problems(lengths, evaluated, mesh, rules)


def _spans(stream: Any, total: Any) -> list[Any]:
    """The spans of the stream that the run reaches."""
    spans = stream.spans() if hasattr(stream, "spans") else ()
    return [span for span in spans if total is None or span.start < total]


def _check_divides(
    where: str, spans: list[Any], shards: int, problems: list[str]
) -> None:
    for span in spans:
        if span.batch_size % shards:
            problems.append(_not_divided(where, span.batch_size, shards))


def _check_precision(given: Any, mesh: Mapping[str, int], problems: list[str]) -> None:
    from roxxel.train import precision

    problem = precision.mesh_problem(given, mesh)
    if problem is not None:
        problems.append(problem)


def _check_accumulate(
    count: Any, spans: list[Any], shards: int, problems: list[str]
) -> None:
    from roxxel.train import accumulate

    if isinstance(count, int) and count > 1:
        found = accumulate.problems(spans, count, shards)
        problems += [
            text for text in found if not any(text in known for known in problems)
        ]


def _not_divided(where: str, batch_size: int, shards: int) -> str:
    return (
        f"{where}: batch_size {batch_size} does not divide over {shards} devices; "
        f"nearest that do: {_nearest(batch_size, shards)}."
    )


def _nearest(size: int, shards: int) -> str:
    below = size // shards * shards
    return f"{below} or {below + shards}" if below else f"{shards}"


def _length(values: abstract.Values, stream: Any, total: Any, rows: int) -> str:
    lines = ["plan"]
    if not isinstance(total, int):
        lines.append(f"  steps: not known. {_why(values, 'total_steps')}".rstrip())
    for span in _spans(stream, total):
        stop = span.stop if total is None else min(span.stop or total, total)
        steps = "all steps" if stop is None else f"{stop - span.start:,} steps"
        lines.append(
            f"  {steps} of {span.batch_size} x {span.seq_len} tokens, "
            f"{span.batch_size // rows} row(s) on a device"
        )
    if isinstance(total, int) and stream is not None:
        epochs = _epochs(stream, total)
        lines.append(f"  {stream.tokens(total):,} tokens in all{epochs}")
    lines += _cadences(values.root)
    early = values.get("stop_after")
    if early:
        lines.append(f"  stops early, after step {early:,}")
    return "\n".join(lines)


def _cadences(trainer: Any) -> list[str]:
    """When a trainer that could be made saves, evaluates and is traced."""
    if not hasattr(trainer, "save_every"):
        return []
    from roxxel.train import plan as plan_lib
    from roxxel.train import profile

    sets = trainer.evaluations
    names = {name: f"the held-out set {name}" for name in sets}
    lines = plan_lib.make_plan(trainer).cadence_lines(names)
    lines += [f"Evaluation by --follow on {n}" for n in sets if sets[n].by_follower]
    traced = profile.parse(trainer.profile)
    if traced:
        lines.append(f"Traces the steps {traced[0] + 1:,} to {traced[1]:,}")
    return [f"  {line[0].lower()}{line[1:]}" for line in lines]


def _epochs(stream: Any, total: int) -> str:
    try:
        an_epoch = getattr(stream, "steps_per_epoch", None)
    except NotBuiltError:
        return "; epochs are not known before the data are built"
    if not an_epoch:
        return ""
    return f", {total / an_epoch:.2f} epochs of {an_epoch:,} steps"


def _why(values: abstract.Values, name: str) -> str:
    value = values.fields.get(name)
    return value.reason if isinstance(value, abstract.Unknown) else ""


def _cost(model: Any, stream: Any, total: Any) -> str:
    lines, whole = ["cost"], 0.0
    for span in _spans(stream, total):
        per_token, how = check_model.flops_per_token(model, span.seq_len)
        lines.append(
            f"  {per_token:,.4g} FLOPs a token at length {span.seq_len} ({how})"
        )
        stop = total if span.stop is None else min(span.stop, total or span.stop)
        if stop is not None:
            tokens = (stop - span.start) * span.batch_size * span.seq_len
            whole += tokens * per_token
    if whole:
        lines.append(f"  {whole:,.4g} FLOPs in all")
    return "\n".join(lines)


def _schedule(schedule: Any, total: int) -> str:
    try:
        rate = rates.on_host(schedule)
        rows = list(_points(schedule, rate, total))
    except rates.NeedsDeviceError as err:
        return f"schedule\n  not shown: {err}"
    lines = [f"  {name:<18} step {at:>9,}  {value:.6g}" for name, at, value in rows]
    return "\n".join(["schedule", *lines])


def _points(schedule: Any, rate: Any, total: int) -> Iterator[tuple[str, int, float]]:
    last = total - 1
    peak = _peak(schedule, rate, total)
    named = [("start", 0), ("end of warm-up", peak), ("middle", total // 2)]
    decay = getattr(schedule, "decay_start", None)
    if decay is not None:
        named.append(("start of decay", min(decay, last)))
    named.append(("end", last))
    for name, at in sorted(named, key=lambda pair: pair[1]):
        yield name, at, rate(at)


def _peak(schedule: Any, rate: Any, total: int) -> int:
    """The first step of the highest rate; told by the schedule, or else looked for."""
    told = getattr(schedule, "warmup_steps", None)
    if told is not None:
        return min(max(0, told - 1), total - 1)
    tries = sorted({*range(min(total, 512)), *range(0, total, max(1, total // 512))})
    values = [rate(at) for at in tries]
    best = values.index(max(values))
    low, high = tries[max(0, best - 1)], tries[best]
    between = itertools.takewhile(
        lambda at: at < high, itertools.count(low + 1, max(1, (high - low) // 256))
    )
    return next((at for at in between if rate(at) >= values[best]), high)
