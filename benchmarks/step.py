"""The training step of the Mamba-2 model beside what the CPU and others reach.

    python benchmarks/step.py
    python benchmarks/step.py --model small --torch-python /path/to/python

Rounds are interleaved: each measures the matrix product of 1024 x 1024 float32
matrices, roxxel's whole training step (forward, backward, clipping, AdamW), and, where
a Python with torch and transformers is named, the same step of transformers' Mamba-2.
Reported are medians over the rounds, and the model's arithmetic by the usual
6 * parameters * tokens as a share of the product's rate in the same round.
"""

import argparse
import pathlib
import resource
import statistics
import subprocess
import time

from roxxel.allocator import restart_with_kept_memory

SIZES = {  # hidden width, layers, rows; 512 byte tokens a row, 64 wide heads and state
    "2.66m": {"d_model": 256, "n_layers": 6, "batch_size": 8},
    "small": {"d_model": 160, "n_layers": 4, "batch_size": 4},
}
SEQ_LEN = 512


def matmul_rate():
    """Returns a function giving the rate of one 1024^3 product in GFLOP/s."""
    import jax
    import jax.numpy as jnp

    matrix = jax.random.normal(jax.random.key(0), (1024, 1024))
    product = jax.jit(jnp.dot)
    product(matrix, matrix).block_until_ready()

    def measure():
        seconds = []
        for _ in range(9):
            start = time.perf_counter()
            product(matrix, matrix).block_until_ready()
            seconds.append(time.perf_counter() - start)
        return 2 * 1024**3 / statistics.median(seconds) / 1e9

    return measure


def roxxel_step(sizes, options):
    """Returns a function giving the seconds of one step, and the parameter count."""
    import jax
    import optax
    from flax import nnx

    from roxxel import optim
    from roxxel.models.losses import next_token_loss
    from roxxel.models.ssm import Mamba2LM, num_params
    from roxxel.train.step import make_train_step

    sizes = dict(sizes)
    shape = (sizes.pop("batch_size"), SEQ_LEN + 1)
    model = Mamba2LM(vocab_size=256, **sizes, **options, rngs=nnx.Rngs(0))
    schedule = optax.constant_schedule(1e-3)
    tx = optim.adamw(schedule=schedule, weight_decay=0.1, clip_norm=1.0)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    step = make_train_step(model, optimizer, next_token_loss, schedule=schedule)
    leaves = step.leaves(model, optimizer)
    tokens = jax.random.randint(jax.random.key(1), shape, 0, 256)

    def measure():
        nonlocal leaves
        start = time.perf_counter()
        leaves, metrics = step.run(leaves, tokens)
        metrics["loss"].block_until_ready()
        return time.perf_counter() - start

    start = time.perf_counter()
    measure()
    print(f"compiled in {time.perf_counter() - start:.1f} s")
    return measure, num_params(model)


class TorchStep:
    """transformers' Mamba-2 in a process of its own, one step per line asked for."""

    def __init__(self, python, sizes):
        script = pathlib.Path(__file__).with_name("step_torch.py")
        numbers = [str(v) for v in (*sizes.values(), SEQ_LEN)]
        self._process = subprocess.Popen(
            [python, str(script), *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.parameters = int(self._read())

    def __call__(self):
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self):
        """Ends the process; its peak memory in MB."""
        out, _ = self._process.communicate("memory\n")
        return float(out)

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the torch process ended; its error is above")
        return line


def report(name, seconds, rates, parameters, tokens, megabytes):
    flops = 6 * parameters * tokens / 1e9
    shares = [
        flops / second / rate for second, rate in zip(seconds, rates, strict=True)
    ]
    median = statistics.median(seconds)
    print(
        f"{name:22s} {parameters:9,d} parameters  {median * 1e3:6.0f} ms/step"
        f"  {tokens / median:6.0f} tokens/s  {flops / median:5.1f} GFLOP/s"
        f"  {statistics.median(shares):6.1%} of the product"
        f"  (best round {max(shares):.1%})  peak {megabytes:.0f} MB"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SIZES, default="2.66m")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="steps a round")
    parser.add_argument("--chunk-size", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=2, help="scan_lanes of the model")
    parser.add_argument("--torch-python", help="Python with torch and transformers")
    args = parser.parse_args()
    restart_with_kept_memory()
    sizes = SIZES[args.model]
    options = {"chunk_size": args.chunk_size, "scan_lanes": args.lanes}
    step, parameters = roxxel_step(sizes, options)
    matmul = matmul_rate()
    torch_step = args.torch_python and TorchStep(args.torch_python, sizes)
    rates, ours, theirs = [], [], []
    for _ in range(args.rounds):
        rates.append(matmul())
        ours.append(statistics.median(step() for _ in range(args.steps)))
        if torch_step:
            theirs.append(statistics.median(torch_step() for _ in range(args.steps)))
    tokens = sizes["batch_size"] * SEQ_LEN
    print(f"product of 1024^3: {statistics.median(rates):.0f} GFLOP/s")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report("roxxel Mamba-2", ours, rates, parameters, tokens, memory)
    if not torch_step:
        print("transformers Mamba-2: skipped, no --torch-python given")
        return
    megabytes, count = torch_step.close(), torch_step.parameters
    report("transformers Mamba-2", theirs, rates, count, tokens, megabytes)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    print(f"roxxel is {statistics.median(ratios):.2f} times faster")


if __name__ == "__main__":
    main()
