"""Curves small enough for a page that look like those they were made from."""

import base64
import math
from collections.abc import Sequence

import numpy as np

from roxxel.runs.reading import Run

MOST_POINTS = 1500
_POINTS_OF_PAGE = 60_000  # of all curves: about 0.7 MB
_FEWEST_POINTS = 40
_AXIS_POINTS = 300
_LEFT_OUT = ("step", "perplexity", "elapsed")  # the loss and the axes say the same
_FINEST = ("loss", "eval_loss")  # get three times the points of the others


def of_runs(runs: Sequence[Run]) -> list[dict]:
    """Curves of each run by metric name, small enough together for one page.

    Each has `x` (steps) and `y`; under "" stand the axes: tokens and minutes of
    training at some steps, to be interpolated. All as base64 of little-endian float32.
    """
    shown = [_shown(run.metrics) for run in runs]
    shares = sum(_weight(name) for columns in shown for name in columns)
    a_share = _POINTS_OF_PAGE // max(shares, 1)
    return [
        _curves(run.metrics, columns, a_share)
        for run, columns in zip(runs, shown, strict=True)
    ]


def _shown(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if not columns or not columns["step"].size:
        return {}
    return {
        name: values
        for name, values in columns.items()
        if name not in _LEFT_OUT and not np.isnan(values).all()
    }


def _weight(name: str) -> int:
    return 3 if name in _FINEST else 1


def _curves(
    columns: dict[str, np.ndarray], shown: dict[str, np.ndarray], a_share: int
) -> dict:
    if not shown:
        return {}
    found = {}
    for name, values in shown.items():
        most = min(MOST_POINTS, max(_FEWEST_POINTS, a_share * _weight(name)))
        found[name] = _curve(columns["step"], values, most)
    return found | {"": _thinned_axes(columns)}


def _thinned_axes(columns: dict[str, np.ndarray]) -> dict[str, str]:
    count = len(columns["step"])
    rows = np.unique(np.linspace(0, count - 1, _AXIS_POINTS).round().astype(int))
    names = ("step", "tokens", "minutes")
    return {
        name: _encoded(axis[rows])
        for name, axis in zip(names, _axes(columns), strict=True)
    }


def _axes(columns: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, tokens and minutes of training of each row."""
    step = columns["step"]
    tokens = np.nancumsum(columns.get("tokens", np.full(len(step), np.nan)))
    if "elapsed" in columns:
        return step, tokens, _filled(columns["elapsed"]) / 60
    rate = columns.get("tokens_per_sec", np.full(len(step), np.nan))
    per_step = np.nan_to_num(columns.get("tokens", rate * 0) / rate)
    return step, tokens, np.cumsum(per_step) / 60


def _filled(values: np.ndarray) -> np.ndarray:
    """Gaps take the value before them."""
    known = np.where(np.isnan(values), 0, np.arange(len(values)))
    return np.nan_to_num(values[np.maximum.accumulate(known)])


def _curve(steps: np.ndarray, values: np.ndarray, most: int) -> dict[str, str]:
    rows = np.flatnonzero(~np.isnan(values))
    known = values[rows]
    if known.min() == known.max():  # a line
        most = 4
    rows = rows[thinned(known, most)]
    return {"x": _encoded(steps[rows]), "y": _encoded(values[rows])}


def thinned(values: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Indices of at most `most` values: least and greatest of equal stretches.

    Peaks stay; both ends stay.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    width = math.ceil(count / (most // 2 - 1))
    bins = math.ceil(count / width)
    padded = np.full(bins * width, values[-1])
    padded[:count] = values
    stretches = padded.reshape(bins, width)
    first = np.arange(bins) * width
    extremes = [first + stretches.argmin(1), first + stretches.argmax(1)]
    ends = np.array([0, count - 1])
    return np.unique(np.minimum(np.concatenate([*extremes, ends]), count - 1))


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()
