"""Time of a token, beside what reading the parameters once a token would take.

    python benchmarks/generate.py [--width 160] [--layers 4]

Model of `ssm_small`, or of another size, with random weights, greedy, through
`Decoder.run` in chunks, the host's part included. Every figure is the best of many
chunks: other work on the machine makes chunks slower, never faster. Memory is read by
as many threads as the machine has cores, from an array much larger than its caches.
"""

import argparse
import json
import os
import threading
import time

import jax
import numpy as np
from flax import nnx

from roxxel.generation import decoding, sampling
from roxxel.models.ssm import Mamba2LM

_CHUNKS = 60
_BYTES = 1 << 29
_LATE = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=_CHUNKS)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    model = Mamba2LM(
        vocab_size=256,
        d_model=args.width,
        n_layers=args.layers,
        state_dim=64,
        rngs=nnx.Rngs(0),
    )
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))
    decoder = decoding.Decoder(model)
    bandwidth = _bandwidth()
    bound = bandwidth / size
    _tell("parameters_mb", size / 1e6)
    _tell("read_gb_per_s", bandwidth / 1e9)
    _tell("bound_tokens_per_s", bound)
    early, late, sixteen = _secs_per_step(
        [_At(decoder, 1, 128), _At(decoder, 1, _LATE), _At(decoder, 16, 128)],
        args.chunks,
    )
    _tell("tokens_per_s_at_128", 1 / early)
    _tell("of_the_bound", 1 / early / bound)
    _tell(f"time_at_{_LATE}_over_time_at_128", late / early)
    _tell("tokens_per_s_of_batch_16", 16 / sixteen)
    _tell("batch_16_over_batch_1", 16 * early / sixteen)


def _tell(name: str, value: float) -> None:
    print(json.dumps({name: float(f"{value:.4g}")}), flush=True)


class _At:
    """A batch that has read so many tokens."""

    def __init__(self, decoder: decoding.Decoder, batch: int, position: int):
        rows = [sampling.Sampling(temperature=0)] * batch
        self._decoder, self._kinds = decoder, sampling.Kinds.of(rows)
        self._knobs = sampling.knobs(rows, decoder.vocab_size)
        prompts = [np.arange(64, dtype=np.int32)] * batch
        self._carry = decoder.start(prompts, self._knobs, self._kinds, slots=256)
        for _ in range(64, position, decoding.CHUNK):
            self.chunk()

    def chunk(self) -> float:
        """Seconds a step of one chunk."""
        began = time.perf_counter()
        tokens, self._carry = self._decoder.run(
            self._carry, self._knobs, self._kinds, decoding.CHUNK
        )
        np.asarray(tokens)
        return (time.perf_counter() - began) / decoding.CHUNK


def _secs_per_step(batches: list[_At], chunks: int) -> list[float]:
    """The least time of a step of each, a chunk of each in turn."""
    rounds = [[batch.chunk() for batch in batches] for _ in range(chunks)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _bandwidth() -> float:
    """Bytes a second, read by all cores at once."""
    parts = np.array_split(np.ones(_BYTES // 4, np.float32), os.cpu_count() or 1)
    best = float("inf")
    for _ in range(10):
        threads = [threading.Thread(target=part.max) for part in parts]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - began)
    return _BYTES / best


if __name__ == "__main__":
    main()
