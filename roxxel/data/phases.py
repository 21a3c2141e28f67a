"""`Phase`: a stretch of a run with its own batches; lengths resolved to steps."""

import dataclasses
import fractions
import math
import numbers
from collections.abc import Mapping, Sequence

from roxxel.data import steps
from roxxel.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a run; what is None is as the stream says.

    Args:
        steps: Its length in steps.
        tokens: Its length in elements predicted, rounded up to whole steps.
        fraction: Its length as a part of the stream's `tokens`. At most one length is
            given; the last phase may have none and then takes the rest.
        batch_size: Rows of the global batch.
        seq_len: Elements from the start of a row to that of the next.
        weights: How often each data set is drawn, all of them by name.

    Raises:
        ConfigError: Two lengths are given, or a value is out of range.
    """

    steps: int | None = None
    tokens: int | None = None
    fraction: float | None = None
    batch_size: int | None = None
    seq_len: int | None = None
    weights: Mapping[str, float] | None = None

    def __post_init__(self):
        lengths = {
            name: value
            for name in ("steps", "tokens", "fraction")
            if (value := getattr(self, name)) is not None
        }
        if len(lengths) > 1:
            raise ConfigError(
                f"a phase needs one of steps, tokens, fraction, got {lengths}."
            )
        for name in ("steps", "tokens", "batch_size", "seq_len"):
            if getattr(self, name) is not None:
                value = steps.positive(f"a phase's {name}", getattr(self, name))
                object.__setattr__(self, name, value)
        if self.fraction is not None and not _is_part(self.fraction):
            raise ConfigError(
                f"a phase's fraction must be a number above 0 and at most 1, got"
                f" {self.fraction!r}."
            )
        if self.weights is not None:
            check_weights(self.weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A phase with everything resolved; `steps` None is without end."""

    steps: int | None
    batch_size: int
    seq_len: int
    weights: dict[str, float]


def resolve(phases: Sequence[Phase], default: Stage, tokens: int | None) -> list[Stage]:
    """The phases one after the other, as steps and with all their values.

    A length in elements ends with the step that reaches it, counted from where the
    lengths before it should have ended, so that rounding does not add up.

    Args:
        phases: None of them is one phase without a length.
        default: What phases take where they say nothing.
        tokens: Elements predicted in all phases, if that is fixed.

    Raises:
        ConfigError: The lengths do not make a plan; names phase and value.
    """
    phases = list(phases) or [Phase()]
    _check_fractions(phases, tokens)
    stages, done, goal = [], 0, fractions.Fraction(0)  # elements planned, asked for
    for number, phase in enumerate(phases):
        stage = _filled(phase, default)
        is_last = number == len(phases) - 1
        length = _length(phase, stage, tokens, goal, number=number, is_last=is_last)
        if length is not None:
            goal += length
            step_tokens = stage.batch_size * stage.seq_len
            count = max(1, math.ceil((goal - done) / step_tokens))
            count = phase.steps or count
            done += count * step_tokens
            stage = dataclasses.replace(stage, steps=count)
        stages.append(stage)
    return stages


def _filled(phase: Phase, default: Stage) -> Stage:
    return Stage(
        steps=None,
        batch_size=phase.batch_size or default.batch_size,
        seq_len=phase.seq_len or default.seq_len,
        weights=default.weights if phase.weights is None else dict(phase.weights),
    )


def check_weights(weights) -> None:
    """Raises ConfigError unless `weights` are some, by name."""
    if not isinstance(weights, Mapping):
        raise ConfigError(f"weights must be a dict of name: weight, got {weights!r}.")


def exact_weights(
    weights: Mapping[str, float], names: Sequence[str]
) -> list[fractions.Fraction]:
    """The weights of `names`, in that order, as the decimal numbers that they read as.

    Raises:
        ConfigError: A name is unknown or missing, a weight is no number, negative or
            not finite, or all are 0.
    """
    check_weights(weights)
    unknown = sorted(set(weights) - set(names), key=str)
    missing = [name for name in names if name not in weights]
    if unknown:
        raise ConfigError(
            f"weights name {unknown[0]!r}, the data sets are {', '.join(names)}."
        )
    if missing:
        raise ConfigError(
            f"weights lack {missing[0]!r}; give 0 to leave that data set out."
        )
    out = [_exact(name, weights[name]) for name in names]
    if not any(out):
        raise ConfigError(f"weights are all 0: {dict(weights)}; one must be above 0.")
    return out


def _exact(name: str, weight) -> fractions.Fraction:
    if not _is_real(weight) or not 0 <= weight < math.inf:
        raise ConfigError(
            f"the weight of {name!r} must be a number of at least 0, got {weight!r}."
        )
    return fractions.Fraction(str(weight))


def _is_part(value) -> bool:
    return _is_real(value) and 0 < value <= 1


def _is_real(value) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _check_fractions(phases: Sequence[Phase], tokens: int | None) -> None:
    parts = [fractions.Fraction(str(p.fraction)) for p in phases if p.fraction]
    if not parts:
        return
    if tokens is None:
        raise ConfigError(
            f"a phase's fraction {phases[0].fraction or float(parts[0])!r} is of the"
            " stream's tokens, which are not given; give tokens, or the phase steps."
        )
    total = sum(parts)
    if total > 1 or (total < 1 and len(parts) == len(phases)):
        raise ConfigError(
            f"the phases' fractions add up to {float(total)!r}, expected 1; leave the"
            " last phase's length out to give it the rest."
        )


def _length(
    phase: Phase,
    stage: Stage,
    tokens: int | None,
    goal: fractions.Fraction,
    *,
    number: int,
    is_last: bool,
) -> fractions.Fraction | None:
    """Elements that a phase should take; None for no end."""
    if phase.steps is not None:
        return fractions.Fraction(phase.steps * stage.batch_size * stage.seq_len)
    if phase.tokens is not None:
        return fractions.Fraction(phase.tokens)
    if phase.fraction is not None:
        return fractions.Fraction(str(phase.fraction)) * (tokens or 0)
    if not is_last:
        raise ConfigError(
            f"phase {number} has no length; only the last may be left open, give it"
            " steps, tokens or fraction."
        )
    if tokens is None:
        return None
    if tokens <= goal:
        raise ConfigError(
            f"phase {number} should take the rest of {tokens} tokens, but the phases"
            f" before it take {int(goal)}."
        )
    return tokens - goal
