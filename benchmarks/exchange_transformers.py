"""Our exports in transformers: same logits, and its own exports back here.

    python benchmarks/exchange_transformers.py --python PATH

PATH is the Python of an environment that has torch and transformers. Each architecture
is exported with random values, in float32 and bfloat16, loaded there with
`from_pretrained`, and run on the same tokens in float32; then transformers saves it
again and that is imported here. Printed are the largest difference of the logits over
the largest logit, and whether the saved tensors have the same bytes.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from flax import nnx  # noqa: E402

from roxxel import exchange  # noqa: E402
from roxxel.exchange import safetensors_files  # noqa: E402
from roxxel.models.ssm import Mamba2LM  # noqa: E402
from roxxel.models.transformer import TransformerLM  # noqa: E402

THERE = """
import json, sys
import numpy as np, torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, tokens, out, again = sys.argv[1:]
model, info = AutoModelForCausalLM.from_pretrained(
    folder, dtype="auto", output_loading_info=True
)
dtype = str(model.dtype)
model.save_pretrained(again)
with torch.no_grad():
    ids = torch.from_numpy(np.load(tokens)).long()
    logits = model.float()(ids, use_cache=False).logits
np.save(out, logits.numpy())
told = {name: sorted(map(str, found)) for name, found in info.items() if found}
known = set(AutoConfig.for_model(model.config.model_type).to_dict())
given = set(json.load(open(folder + "/config.json")))
older = {"torch_dtype", "rope_theta", "rope_scaling"}  # of transformers 4
print(json.dumps({"class": type(model).__name__, "dtype": dtype, "problems": told,
                  "unknown": sorted(given - known - older)}))
"""

SIZES = {"vocab_size": 1000, "d_model": 128, "n_layers": 3, "pad_vocab_to": 128}
MODELS = {
    "mamba2": (Mamba2LM, {"head_dim": 32, "state_dim": 32}),
    "mamba2, 2 groups, untied": (
        Mamba2LM,
        {"head_dim": 32, "state_dim": 16, "n_groups": 2, "tie_embeddings": False},
    ),
    "llama, grouped": (TransformerLM, {"n_heads": 4, "n_kv_heads": 2, "d_ff": 320}),
    "llama, tied, biases, wide heads": (
        TransformerLM,
        {"n_heads": 4, "head_dim": 64, "bias": True, "tie_embeddings": True}
        | {"rope_theta": 500_000.0, "norm_eps": 1e-6},
    ),
}


def random_model(kind, options) -> nnx.Module:
    graph, state = nnx.split(kind(**SIZES, **options, rngs=nnx.Rngs(0)))
    random = np.random.default_rng(0)

    def moved(leaf):
        return leaf + 0.1 * random.normal(size=leaf.shape).astype(np.float32)

    model = nnx.merge(graph, jax.tree.map(moved, state))
    return model


def compared(kind, options, dtype, python, scratch: pathlib.Path) -> str:
    folder, again = scratch / "ours", scratch / "theirs"
    exchange.export_hf(random_model(kind, options), folder, dtype=dtype)
    tokens = np.random.default_rng(1).integers(0, SIZES["vocab_size"], (2, 150))
    np.save(scratch / "tokens.npy", tokens.astype(np.int32))
    files = [folder, scratch / "tokens.npy", scratch / "logits.npy", again]
    done = subprocess.run(
        [python, "-c", THERE, *map(str, files)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    told = json.loads(done.stdout.splitlines()[-1])
    theirs = np.load(scratch / "logits.npy")
    back = exchange.load_hf(again)
    ours = np.asarray(nnx.jit(lambda model, ids: model(ids)[0])(back, tokens))
    error = np.max(np.abs(ours - theirs)) / max(1.0, np.max(np.abs(theirs)))
    same = values_of(folder) == values_of(again)
    return (
        f"{told['class']:<20} {told['dtype'][6:]:<9} logits {error:.1e}  saved again "
        f"{'the same bytes' if same else 'OTHER BYTES'}  loading problems "
        f"{told['problems'] or 'none'}  unknown fields {told['unknown'] or 'none'}"
    )


def values_of(folder: pathlib.Path) -> dict[str, tuple]:
    stored = safetensors_files.read_folder(folder)
    return {n: (t.dtype.name, t.shape, t.read().tobytes()) for n, t in stored.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", required=True, help="with torch and transformers")
    python = parser.parse_args().python
    for name, (kind, options) in MODELS.items():
        for dtype in ("float32", "bfloat16"):
            with tempfile.TemporaryDirectory() as scratch:
                line = compared(kind, options, dtype, python, pathlib.Path(scratch))
            print(f"{name:<32} {line}", flush=True)


if __name__ == "__main__":
    main()
