"""Curves small enough for a page that look like those they were made from."""

import base64
import math

import numpy as np

from roxxel.runs.reading import Run

MOST_POINTS = 1500
_POINTS_OF_PAGE = 16_000  # of one metric over all runs
_AXIS_POINTS = 300
_LEFT_OUT = ("step", "perplexity")  # the loss says the same


def of_run(run: Run, num_runs: int = 1) -> dict:
    """Curves by metric name, for a page of `num_runs` runs.

    Each has `x` (steps) and `y`; under "" stand the axes: tokens and minutes of
    training at some steps, to be interpolated. All as base64 of little-endian float32.
    """
    columns = run.metrics
    if not columns or not columns["step"].size:
        return {}
    most = min(MOST_POINTS, _POINTS_OF_PAGE // num_runs)
    return {
        name: _curve(columns["step"], values, most)
        for name, values in columns.items()
        if name not in _LEFT_OUT and not np.isnan(values).all()
    } | {"": _thinned_axes(columns)}


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
    rows = rows[thinned(values[rows], most)]
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
