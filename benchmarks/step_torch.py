"""Training steps of transformers' Mamba-2, asked for by `step.py` over stdin.

    python step_torch.py D_MODEL LAYERS BATCH_SIZE SEQ_LEN

Prints the parameter count; then for each line `step` its seconds, for `memory` the
peak in MB.
"""

import os
import resource
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers


def main():
    d_model, layers, batch_size, seq_len = map(int, sys.argv[1:])
    torch.manual_seed(0)
    config = transformers.Mamba2Config(
        vocab_size=256,
        hidden_size=d_model,
        num_hidden_layers=layers,
        expand=2,
        head_dim=64,
        num_heads=2 * d_model // 64,
        state_size=64,
        n_groups=1,
        conv_kernel=4,
        chunk_size=64,
        use_bias=False,
        use_conv_bias=True,
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.Mamba2ForCausalLM(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1
    )
    tokens = torch.randint(0, 256, (batch_size, seq_len + 1))

    def step():
        logits = model(tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, 1:].flatten()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step()
    print(sum(p.numel() for p in model.parameters()), flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)
            return
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
