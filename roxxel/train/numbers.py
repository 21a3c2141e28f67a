"""How fast a run is, and how much memory it takes: the numbers beside the metrics.

Tokens are elements that are predicted, of all processes together. The operations of a
token are the model's own `flops_per_token(seq_len)`, else 6 for each parameter
(arXiv:2001.08361): a forward pass and twice that for the backward pass, of causal
attention the half that is used, without what rematerialisation repeats. Model FLOPs
utilization (arXiv:2204.02311, appendix B) is

    tokens a second * operations a token / (devices * peak of a device)

with the bfloat16 peak of `roxxel.hardware`; "n/a" for devices whose peak is not known.
"""

import time
from typing import Any

import jax
from flax import nnx

from roxxel import hardware
from roxxel.data.steps import Span
from roxxel.train.timing import StepClock

_GIB = 2**30
_MEMORY_SECS = 1.0  # between two looks at the memory: it costs some microseconds


class Numbers:
    """Numbers of the run so far, for each step's row and for the summary.

    Args:
      model: tells the operations of a token.
      spans: of the plan, for the sequence length of a step.
      clock: of the run.
      elapsed_before: wall seconds of the attempts before this one.
    """

    def __init__(
        self,
        model: nnx.Module,
        spans: tuple[Span, ...],
        clock: StepClock,
        elapsed_before: float,
    ):
        self._spans, self._clock, self._before = spans, clock, elapsed_before
        self._flops = {
            span.seq_len: flops_per_token(model, span.seq_len)[0] for span in spans
        }
        peak = hardware.peak_flops(jax.devices()[0].device_kind)
        self._peak = None if peak is None else peak * jax.device_count()
        self._memory = 0.0
        self._look_at_memory = 0.0

    def row(self, step: int) -> dict[str, float]:
        """Columns of a step: elapsed seconds, tokens a second, MFU, memory in GiB."""
        rate = self._clock.tokens_per_sec
        found = {"elapsed": round(self._before + self._clock.total, 3)}
        if rate:
            found["tokens_per_sec"] = round(rate)
        if rate and self._peak is not None:
            found["mfu"] = round(self._utilization(rate, step), 4)
        if time.monotonic() >= self._look_at_memory:
            self._look_at_memory = time.monotonic() + _MEMORY_SECS
            self._memory = round(max(memory_gib().values(), default=0.0), 3)
        return found | {"memory_gib": self._memory}

    def summary(self, step: int) -> dict[str, Any]:
        """What holds for the attempt as a whole."""
        rate, seconds = self._clock.tokens_per_sec, self._clock.seconds
        known = self._peak is not None and rate
        return {
            "tokens_per_sec": round(rate),
            "mfu": round(self._utilization(rate, step), 4) if known else "n/a",
            "flops_per_token": self._flops[self._seq_len(step)],
            "step_secs": {
                name: round(value, 6)
                for name, value in self._clock.step_percentiles().items()
            },
            "data_wait_secs": round(seconds.get("data", 0.0), 3),
            "compile_secs": round(seconds.get("compile", 0.0), 3),
            "memory_gib": {k: round(v, 3) for k, v in memory_gib().items()},
        }

    def line(self, step: int) -> str:
        """The summary in a line of the log."""
        told = self.summary(step)
        mfu = told["mfu"]
        steps = ", ".join(f"{k} {1e3 * v:.1f}" for k, v in told["step_secs"].items())
        memory = ", ".join(f"{k} {v:.2f}" for k, v in told["memory_gib"].items())
        return (
            f"Speed {told['tokens_per_sec']:,} tokens/s, MFU "
            f"{mfu if isinstance(mfu, str) else f'{100 * mfu:.1f} %'}, step in ms "
            f"{steps or 'n/a'}, data wait {told['data_wait_secs']:.1f} s, compile "
            f"{told['compile_secs']:.1f} s, peak memory in GiB {memory or 'n/a'}"
        )

    def _utilization(self, rate: float, step: int) -> float:
        assert self._peak is not None
        return rate * self._flops[self._seq_len(step)] / self._peak

    def _seq_len(self, step: int) -> int:
        begun = [span for span in self._spans if span.start < step] or self._spans
        return begun[-1].seq_len


def flops_per_token(model: nnx.Module, seq_len: int) -> tuple[float, str]:
    """Operations of training on one token, and whose count it is."""
    own = getattr(model, "flops_per_token", None)
    if callable(own):
        return float(own(seq_len)), "the model's flops_per_token"
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    return 6.0 * sum(leaf.size for leaf in leaves), "6 per parameter"


def memory_gib() -> dict[str, float]:
    """Peaks of this process: "host", and "device" (the fullest one) where it tells."""
    found = {}
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            kib = next(line.split()[1] for line in file if line.startswith("VmHWM"))
        found["host"] = int(kib) * 1024 / _GIB
    except (OSError, StopIteration, ValueError):  # no Linux
        pass
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [one["peak_bytes_in_use"] for one in stats if "peak_bytes_in_use" in one]
    return found | ({"device": max(peaks) / _GIB} if peaks else {})
