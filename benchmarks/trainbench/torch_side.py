"""Training steps in PyTorch: transformers' Mamba-2, or a plain Transformer with SDPA.

    python -m trainbench.torch_side '{"model": "ssm", "sizes": {...}, ...}'

Keys as `roxxel_side.py`. The Transformer is written here in the fashion of nanoGPT
(fused products, scaled_dot_product_attention), with the blocks that ours has.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn
from torch.nn import functional
from trainbench import sides


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        hidden = self.norm2(x)
        return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Transformer(nn.Module):
    def __init__(self, *, vocab_size, d_model, n_layers, n_heads, d_ff, seq_len, **_):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, n_heads, d_ff) for _ in range(n_layers)
        )
        self.norm = nn.RMSNorm(d_model)
        half = d_model // n_heads // 2
        rates = 10000.0 ** (-torch.arange(half) / half)
        angles = torch.arange(seq_len)[:, None] * rates
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.norm(x) @ self.embed.weight.T


def mamba2(sizes):
    import transformers

    width = sizes["d_model"]
    config = transformers.Mamba2Config(
        vocab_size=sizes["vocab_size"],
        hidden_size=width,
        num_hidden_layers=sizes["n_layers"],
        expand=2,
        head_dim=64,
        num_heads=2 * width // 64,
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
    return model, lambda tokens: model(tokens, use_cache=False).logits


def main():
    options = json.loads(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())
    sizes, length = options["sizes"], options["seq_len"]
    if options["model"] == "ssm":
        model, forward = mamba2(sizes)
    else:
        model = forward = Transformer(**sizes, seq_len=length)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1
    )
    shape = (options["batch_size"], length + 1)
    tokens = torch.randint(0, sizes["vocab_size"], shape)

    def step():
        logits = forward(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    sides.serve(step, sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
