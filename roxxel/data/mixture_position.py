"""Positions of a mixture as plain values, and the step that begins at a saved one."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from roxxel.data.mixture import Leg
from roxxel.errors import ConfigError


def locate(legs: Sequence[Leg], step: int) -> tuple[int, int]:
    """Phase of the last draw before `step`, and the phase's draws before `step`."""
    number = max([i for i, leg in enumerate(legs) if leg.start_step < step], default=0)
    return number, (step - legs[number].start_step) * legs[number].batch_size


def described(
    legs: Sequence[Leg], weights: Sequence[Mapping[str, float]]
) -> list[dict]:
    """The phases as plain JSON values, `weights` those that were given for each."""
    return [
        {
            "steps": leg.steps,
            "batch_size": leg.batch_size,
            "seq_len": leg.seq_len,
            "weights": {name: float(w) for name, w in sorted(given.items())},
        }
        for leg, given in zip(legs, weights, strict=False)  # legs may end early
    ]


def drawn(legs: Sequence[Leg], step: int, names: Sequence[str]) -> dict[str, int]:
    """Elements drawn of each data set in the first `step` steps."""
    total = dict.fromkeys(names, 0)
    for leg in legs:
        if leg.start_step < step:
            stop = step if leg.stop_step is None else min(step, leg.stop_step)
            counts = leg.counts((stop - leg.start_step) * leg.batch_size)
            for name, count in zip(names, counts, strict=True):
                total[name] += count * leg.seq_len
    return total


def step_at(saved: Mapping, legs: Sequence[Leg], phases: Sequence[Mapping]) -> int:
    """The step of these legs that begins at a saved position.

    Phases before the position must be what they were, those behind it may be others.
    The phase of the position may have another batch_size, and another length where all
    phases have one seq_len, which its rows do not depend on.

    Args:
        saved: What `phase`, `draws_in_phase` and `phases` were.
        legs: The phases as they are now.
        phases: The same, `described`.

    Raises:
        ConfigError: Another phase, or no step begins there; names both.
    """
    number, draws = saved["phase"], saved["draws_in_phase"]
    if number >= len(legs):
        raise ConfigError(
            f"the position was saved in phase {number}, there are {len(legs)} phases"
            " now; resume with the saved ones or start anew."
        )
    for i in range(number):
        names = ("steps", "batch_size", "seq_len", "weights")
        _check_phase(i, saved["phases"][i], phases[i], names)
    if not draws:
        return legs[number].start_step
    leg, was = legs[number], saved["phases"][number]
    _check_phase(number, was, phases[number], ("seq_len", "weights"))
    if leg.rows_per_unit > 1 and _rows(was) != _rows(phases[number]):
        # rows are shuffled over all units of the phase
        _check_phase(number, was, phases[number], ("batch_size", "steps"))
    return leg.start_step + _step_in_phase(number, leg, draws)


def _step_in_phase(number: int, leg: Leg, draws: int) -> int:
    step, rest = divmod(draws, leg.batch_size)
    if rest:
        raise ConfigError(
            f"the saved position, {draws} rows into phase {number}, is no multiple of"
            f" batch_size {leg.batch_size}; use a batch_size that divides it."
        )
    if leg.steps is not None and step > leg.steps:
        raise ConfigError(
            f"the saved position is {draws} rows into phase {number}, which has"
            f" {leg.steps} steps of batch_size {leg.batch_size} now."
        )
    return step


def _rows(phase: Mapping) -> int | None:
    return phase["steps"] and phase["steps"] * phase["batch_size"]


def _check_phase(
    number: int, saved: Mapping, now: Mapping, names: Sequence[str]
) -> None:
    for name in names:
        before, after = saved[name], now[name]
        if name == "weights":
            before, after = _normalised(before), _normalised(after)
        if before != after:
            raise ConfigError(
                f"{name} of phase {number} was {saved[name]!r} when the position was"
                f" saved and is {now[name]!r} now; resume with the saved one or start"
                " anew."
            )


def _normalised(weights: Mapping[str, float]) -> dict[str, Fraction]:
    exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
    return {name: weight / sum(exact.values()) for name, weight in exact.items()}
