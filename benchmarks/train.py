"""Training steps beside what the CPU, other programs and other settings reach.

    python benchmarks/train.py
    python benchmarks/train.py --only ssm,transformer --torch-python /path/to/python

Each contestant is a process of its own (`trainbench/`); rounds are interleaved, each
round asks every contestant of a section for some steps, and ratios are taken within
the round. Reported are medians over the rounds. Sections:

- `ssm`: the Mamba-2 step beside the rate of `jnp.dot` of 1024 x 1024 float32 matrices
  (by the usual 6 * parameters * tokens) and transformers' Mamba-2 in PyTorch.
- `transformer`: beside a minimal hand-written JAX loop and a PyTorch one with SDPA.
- `layers`: layers written out and scanned. `remat`: time and memory by policy.
- `length`: Mamba-2 beside the Transformer at 512 and 4096 tokens a row.
- `loss`: the loss over a vocabulary of 128k, whole and in pieces.

The Python named by --torch-python has torch and transformers.
"""

import argparse
import statistics
import time

from trainbench.sides import Side

from roxxel.allocator import restart_with_kept_memory

SSM = {"vocab_size": 256, "d_model": 256, "n_layers": 6, "scan_lanes": 2}
SMALL_SSM = {"vocab_size": 256, "d_model": 160, "n_layers": 4, "scan_lanes": 2}
SCANNED = {"scan_layers": True}
# As many parameters as SSM: 2.6 million.
TRANSFORMER = {
    "vocab_size": 256,
    "d_model": 256,
    "n_layers": 3,
    "n_heads": 4,
    "d_ff": 768,
    "tie_embeddings": True,
}


def options_of(model, sizes, batch_size=8, seq_len=512, **more):
    options = {"model": model, "sizes": sizes, "batch_size": batch_size}
    return options | {"seq_len": seq_len} | more


def ours(name, model, sizes, **more):
    return Side(name, "roxxel_side", options_of(model, sizes, **more))


def theirs(args, name, model, sizes, **more):
    if not args.torch_python:
        print(f"{name}: skipped, no --torch-python given")
        return []
    options = options_of(model, sizes, **more)
    return [Side(name, "torch_side", options, python=args.torch_python)]


def matmul_rate():
    """Returns a function giving the rate of one 1024^3 product in FLOP/s."""
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
        return 2 * 1024**3 / statistics.median(seconds)

    return measure


def compare(title, sides, args, tokens, *, matmul=None):
    """Interleaved rounds of `sides`; ratios are to the first."""
    print(f"\n## {title}")
    seconds = {side.name: [] for side in sides}
    rates = []
    for _ in range(args.rounds):
        if matmul:
            rates.append(matmul())
        for side in sides:
            seconds[side.name].append(side.step(args.steps))
    first = seconds[sides[0].name]
    for side in sides:
        peak = side.close()
        mine = seconds[side.name]
        ratio = statistics.median(a / b for a, b in zip(mine, first, strict=True))
        line = (
            f"{side.name:28s} {statistics.median(mine) * 1e3:7.0f} ms"
            f"  {tokens / statistics.median(mine):7.0f} tokens/s"
            f"  x {ratio:.2f} of the first's time  peak {peak / 1e6:.0f} MB"
        )
        if matmul:
            shares = [
                6 * side.parameters * tokens / s / rate
                for s, rate in zip(mine, rates, strict=True)
            ]
            line += f"  {statistics.median(shares):.1%} of the product's rate"
        if side.temporaries:
            line += f"  temporaries {side.temporaries / 1e6:.0f} MB"
            if sides[0].temporaries:
                line += f" (x {side.temporaries / sides[0].temporaries:.2f})"
        print(line)


def ssm(args):
    tokens = 8 * 512
    sides = [
        ours("roxxel Mamba-2 2.66 M", "ssm", SSM),
        *theirs(args, "transformers Mamba-2", "ssm", SSM),
    ]
    compare("Mamba-2, 8 x 512", sides, args, tokens, matmul=matmul_rate())


def ssm_small(args):
    tokens = 4 * 512
    sides = [
        ours("roxxel Mamba-2 0.75 M", "ssm", SMALL_SSM, batch_size=4),
        *theirs(args, "transformers Mamba-2", "ssm", SMALL_SSM, batch_size=4),
    ]
    compare("Mamba-2, 4 x 512", sides, args, tokens, matmul=matmul_rate())


def transformer(args):
    options = options_of("transformer", TRANSFORMER)
    sides = [
        ours("roxxel Transformer 2.6 M", "transformer", TRANSFORMER),
        Side("bare JAX loop", "bare_side", options),
        *theirs(args, "PyTorch, SDPA", "transformer", TRANSFORMER),
    ]
    compare("Transformer, 8 x 512", sides, args, 8 * 512, matmul=matmul_rate())


def layers(args):
    for model, sizes in (("ssm", SSM), ("transformer", TRANSFORMER)):
        scanned = sizes | SCANNED
        sides = [
            ours(f"{model}, written out", model, sizes),
            ours(f"{model}, scanned", model, scanned),
        ]
        compare(f"Layers of {model}", sides, args, 8 * 512)


def remat(args):
    for model, sizes in (("ssm", SSM), ("transformer", TRANSFORMER)):
        for title, more in (("written out", {}), ("scanned", SCANNED)):
            sides = [
                ours(f"{model}, {policy}", model, sizes | {"remat": policy} | more)
                for policy in args.policies
            ]
            compare(f"Remat of {model}, layers {title}", sides, args, 8 * 512)


def length(args):
    for rows, seq_len in ((8, 512), (1, 4096)):
        more = {"batch_size": rows, "seq_len": seq_len}
        sides = [
            ours("Mamba-2", "ssm", SSM, **more),
            ours("Transformer", "transformer", TRANSFORMER, **more),
        ]
        compare(f"{rows} x {seq_len}", sides, args, rows * seq_len)


def loss(args):
    options = {"loss": "head", "batch_size": 2, "seq_len": 2048, "d_model": 256}
    options |= {"vocab_size": 131072}
    sides = [
        Side("whole logits", "roxxel_side", options | {"pieces": 0}),
        Side("in pieces of 128", "roxxel_side", options | {"pieces": 128}),
    ]
    compare("Loss, 128k ids, 2 x 2048", sides, args, 4096)


SECTIONS = {
    "ssm": ssm,
    "ssm_small": ssm_small,
    "transformer": transformer,
    "layers": layers,
    "remat": remat,
    "length": length,
    "loss": loss,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps a round")
    parser.add_argument("--torch-python", help="Python with torch and transformers")
    parser.add_argument("--policies", nargs="+", default=["none", "scan", "full"])
    args = parser.parse_args()
    restart_with_kept_memory()
    for name in args.only.split(",") if args.only else SECTIONS:
        SECTIONS[name](args)


if __name__ == "__main__":
    main()
