"""Causal attention of many tokens: plain, or by the platform's fused kernel.

A query sees the keys of its own document up to itself, and with a window only the last
of them. Documents are contiguous, so a key belongs to the query's document exactly
where it is not older than the query's position in it. Fused kernels, which never make
the scores whole, are splash attention on TPU (rows and head widths of 128 and its
multiples, see `_splash_fits`) and cuDNN's on GPU (half precision, one document a row).

Legend: B batch, L queries, S keys, N query heads, K key heads, P head width.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from roxxel.models.documents import Documents

Choice = Literal["auto", "plain", "flash"]

# Name under which `jax.checkpoint` policies find the outputs of attention.
SAVED_OUTPUT = "attention_output"

_CHOICES = ("auto", "plain", "flash")
_LANES = 128
_MAX_BLOCK = 512  # queries and keys of a block of the splash kernel
_MAX_CUDNN_WIDTH = 128


def check(choice: str) -> None:
    """Raises ValueError where `choice` is none of the `Choice`s."""
    if choice not in _CHOICES:
        names = ", ".join(map(repr, _CHOICES))
        raise ValueError(f"attention must be one of {names}, got {choice!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Causal:
    """Causal attention, `[B, L, N, P]`.

    Attributes:
      choice: "plain"; "flash" for the platform's kernel, an error where it has none or
        it does not take these shapes; "auto" takes it wherever it can.
      window: keys that a query sees at most, itself among them; None: all.
      platform: None: jax's default.
      interpret: run the TPU kernel step by step, for tests elsewhere.
    """

    choice: Choice = "auto"
    window: int | None = None
    platform: str | None = None
    interpret: bool = False

    def __call__(
        self, q: jax.Array, k: jax.Array, v: jax.Array, documents: Documents
    ) -> jax.Array:
        """Attention among the same tokens, `S = L`."""
        kernel = self.kernel(q, k, documents)
        if kernel == "splash":
            run = self.splash(q.shape[2], q.shape[1])
            return splash(run, q, k, v, documents.runs_BL)
        if documents.runs_BL is None:
            window = None if self.window is None else (self.window - 1, 0)
            return jax.nn.dot_product_attention(
                q,
                k,
                v,
                is_causal=True,
                local_window_size=window,
                implementation=kernel,
            )
        index_L = jnp.arange(q.shape[1])
        return self.masked(q, k, v, documents.positions_BL, index_L, index_L)

    def masked(self, q, k, v, positions_BL, query_L, key_S) -> jax.Array:
        """Plain attention of queries and keys given by their token index.

        `positions_BL` are those of the queries in their documents.
        """
        first_BL = query_L - positions_BL
        if self.window is not None:
            first_BL = jnp.maximum(first_BL, query_L - self.window + 1)
        after_first = key_S >= jnp.maximum(first_BL, 0)[..., None]
        seen_BLS = after_first & (key_S <= query_L[:, None])
        return jax.nn.dot_product_attention(q, k, v, mask=seen_BLS[:, None])

    def kernel(
        self, q: jax.Array, k: jax.Array, documents: Documents, parts: int = 1
    ) -> Literal["splash", "cudnn"] | None:
        """The kernel to use; None: plain. `parts`: of the queries' sequence.

        Raises:
          ValueError: "flash" was asked for, and there is none.
        """
        if self.choice == "plain":
            return None
        platform = self.platform or jax.default_backend()
        if self.interpret or (platform == "tpu" and _splash_fits(q, k, parts)):
            return "splash"
        if platform == "gpu" and parts == 1 and _cudnn_fits(q, documents):
            return "cudnn"
        if self.choice == "flash":
            raise ValueError(
                f"attention='flash': {platform} has no kernel for queries "
                f"{q.dtype}{list(q.shape)} in {parts} part(s)"
                f"{'' if documents.runs_BL is None else ' with several documents'}; "
                "attention='auto' takes the plain one then."
            )
        return None

    def splash(self, heads: int, length: int, parts: int = 1) -> Any:
        """The TPU kernel for `heads` query heads here, cut into `parts` of queries.

        From jax's own (jax.experimental.pallas.ops.tpu.splash_attention): a pytree
        whose arrays say which blocks are computed; blocks that no query sees are not.
        """
        from jax.experimental.pallas.ops.tpu import splash_attention as lib

        mask = lib.CausalMask((length, length), shard_count=parts)
        if self.window is not None:
            shape, seen = (length, length), (self.window - 1, 0)
            mask = lib.LocalMask(shape, seen, 0, shard_count=parts)
        with jax.ensure_compile_time_eval():
            return lib.make_splash_mha(
                lib.MultiHeadMask([mask] * heads),
                block_sizes=_blocks(length // parts),
                head_shards=1,
                q_seq_shards=parts,
                interpret=self.interpret,
            )


def splash(kernel: Any, q, k, v, runs_BL, all_runs_BS=None) -> jax.Array:
    """Attention by a splash kernel; `all_runs_BS` are those of the keys."""
    from jax.experimental.pallas.ops.tpu import splash_attention as lib

    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    q = (q.astype(jnp.float32) * q.shape[-1] ** -0.5).astype(q.dtype)
    if runs_BL is None:
        out = jax.vmap(functools.partial(kernel, segment_ids=None))(q, k, v)
    else:
        segments = lib.SegmentIds(
            runs_BL, runs_BL if all_runs_BS is None else all_runs_BS
        )
        out = jax.vmap(kernel)(q, k, v, segments)
    return jnp.swapaxes(out, 1, 2)


def _blocks(length):
    """One size for all blocks: the largest that divides the queries of a part."""
    from jax.experimental.pallas.ops.tpu import splash_attention as lib

    sizes = range(min(_MAX_BLOCK, length), 0, -_LANES)
    block = next(size for size in sizes if length % size == 0)
    return lib.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )


def _splash_fits(q, k, parts):
    length = q.shape[1] // parts
    return length % _LANES == 0 and q.shape[-1] % 64 == 0 and k.shape[1] % _LANES == 0


def _cudnn_fits(q, documents):
    half = q.dtype in (jnp.bfloat16, jnp.float16)
    narrow = q.shape[-1] % 8 == 0 and q.shape[-1] <= _MAX_CUDNN_WIDTH
    return half and narrow and documents.runs_BL is None
