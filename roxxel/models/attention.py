"""Causal self-attention with grouped heads, rotary positions and an optional window.

A query sees the keys of its own document up to itself, and with `window` only the
last `window` of them. Products compute in `dtype`, scores and softmax in float32.

Documents are contiguous, so a key belongs to the query's document exactly where it is
not older than the query's position in it: no document numbers are kept or compared.

Legend: B batch, L length, D d_model, N query heads, K key heads, P head width, S slots.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from roxxel.models import attention_kernels, attention_parts, keys, rope
from roxxel.models.attention_kernels import Choice as Choice
from roxxel.models.documents import Documents
from roxxel.models.modules import Linear, RMSNorm
from roxxel.models.placement import Cut, Placement


class KVCache(NamedTuple):
    """Rotated keys and values of former tokens, `[B, S, K, P]` each.

    Token i lies in slot `i % S`.
    """

    keys: jax.Array
    values: jax.Array


class Attention(nnx.Module):
    """Multi-head attention, `[B, L, D]` to `[B, L, D]`.

    Parameters: `q_proj` `[D, N*P]`, `k_proj` and `v_proj` `[D, K*P]`, `o_proj`
    `[N*P, D]`; query head n reads key head `n // (N / K)`. With `qk_norm` queries and
    keys are normalised per head before they are rotated.

    Args are those of `transformer.TransformerLM`; `out_scale` scales the initial
    `o_proj`.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-5,
        qk_norm: bool = False,
        window: int | None = None,
        bias: bool = False,
        out_scale: float = 1.0,
        attention: Choice = "auto",
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: keys.Source,
    ):
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        width = _check_heads(d_model, n_heads, n_kv_heads, head_dim)
        if window is not None and window < 1:
            raise ValueError(f"window must be at least 1 or None, got {window}.")
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, width
        self.rope_theta, self.window = rope_theta, window
        attention_kernels.check(attention)
        self.choice, self.dtype = attention, dtype
        self.placement: Placement | None = None
        inner, kv_inner = n_heads * width, n_kv_heads * width
        options = {"bias": bias, "dtype": dtype, "rngs": rngs}
        into, back = {"axes": ("embed", "heads")}, {"axes": ("heads", "embed")}
        self.q_proj = Linear(d_model, inner, **into, **options)
        self.k_proj = Linear(d_model, kv_inner, **into, **options)
        self.v_proj = Linear(d_model, kv_inner, **into, **options)
        self.o_proj = Linear(inner, d_model, out_scale=out_scale, **back, **options)
        self.q_norm = RMSNorm(width, eps=norm_eps, axis=None) if qk_norm else None
        self.k_norm = RMSNorm(width, eps=norm_eps, axis=None) if qk_norm else None

    def __call__(
        self, x_BLD: jax.Array, cache: KVCache | None, documents: Documents
    ) -> tuple[jax.Array, KVCache | None]:
        """Output `[B, L, D]` in `dtype`, and the cache with these tokens in it.

        Args:
          x_BLD: normalised inputs.
          cache: of the former tokens; None: there are none, and none is made.
          documents: where the tokens lie in theirs.
        """
        q, k, v = (
            self._heads(part, x_BLD) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = self._rotated(self.q_norm, q, documents)
        k = self._rotated(self.k_norm, k, documents)
        if cache is None:
            out = self._attend_all(q, k, v, documents)
            out = checkpoint_name(out, attention_kernels.SAVED_OUTPUT)
        else:
            out, cache = self._attend_cache(q, k, v, cache, documents)
        return self.o_proj(out.reshape(*x_BLD.shape[:2], -1)), cache

    def init_cache(self, batch_size: int, max_length: int | None) -> KVCache:
        """An empty cache for `max_length` tokens, or for the window if it is less."""
        limits = [size for size in (max_length, self.window) if size is not None]
        if not limits:
            raise ValueError(
                "init_state needs max_length, the tokens to keep: attention without "
                "a window reads all former tokens."
            )
        shape = (batch_size, min(limits), self.n_kv_heads, self.head_dim)
        return KVCache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))

    def flops_per_token(self, seq_len: int) -> float:
        """Forward: the projections and `4 * N * P` per key that a query sees.

        That is `(seq_len + 1) / 2` keys on average: the causal half. With a window,
        token i sees `min(i + 1, window)`. Scores beyond are not counted, although
        kernels may compute them.
        """
        parts = (self.q_proj, self.k_proj, self.v_proj, self.o_proj)
        seen = min(seq_len, self.window or seq_len)
        keys = seen * (seen + 1) / 2 + (seq_len - seen) * seen
        scores = 4.0 * self.n_heads * self.head_dim * keys / seq_len
        return sum(part.flops_per_token() for part in parts) + scores

    def cut_sizes(self) -> list[Cut]:
        """What a mesh may cut."""
        kv_heads = Cut("heads", "n_kv_heads", self.n_kv_heads, shared=True)
        return [Cut("heads", "n_heads", self.n_heads), kv_heads]

    def _heads(self, projection, x_BLD):
        """Queries, keys or values, `[B, L, heads, P]`."""
        out = projection(x_BLD)
        heads = out.shape[-1] // self.head_dim
        if self.placement is not None:
            # Heads that do not divide are shared: whole, not cut within a head.
            name = "heads" if self.placement.axis("heads", heads) else None
            out = self.placement.constrained(out, ("batch", "length", name))
        return out.reshape(*x_BLD.shape[:2], heads, self.head_dim)

    def _rotated(self, norm, heads, documents):
        """Queries or keys, normalised and rotated."""
        heads = heads if norm is None else norm(heads).astype(self.dtype)
        return rope.rotate(heads, documents.positions_BL, theta=self.rope_theta)

    def _attend_all(self, q, k, v, documents):
        """Attention among the tokens of this call."""
        attend = attention_kernels.Causal(choice=self.choice, window=self.window)
        if self.placement is not None:
            return attention_parts.attend(attend, q, k, v, documents, self.placement)
        return attend(q, k, v, documents)

    def _attend_cache(self, q, k, v, cache, documents):
        """Attention to former tokens and these, and the cache with these in it."""
        length, slots, before = q.shape[1], cache.keys.shape[1], documents.length
        index_L = before + jnp.arange(length)
        new = KVCache(k, v)
        after = _written(cache, new, before)
        # Several tokens at once may push out keys that the first of them still sees.
        if self.window is None or length == 1:
            kept, index_S = after, _slot_tokens(before + length, slots)
        else:
            kept = KVCache(
                *(
                    jnp.concatenate(pair, axis=1)
                    for pair in zip(cache, new, strict=True)
                )
            )
            index_S = jnp.concatenate([_slot_tokens(before, slots), index_L])
        attend = attention_kernels.Causal(choice="plain", window=self.window)
        out = attend.masked(q, *kept, documents.positions_BL, index_L, index_S)
        if self.window is None or slots < self.window:
            # Beyond max_length what a query should see is lost: never in silence.
            start_BL = index_L - documents.positions_BL
            lost_BL = before + length - start_BL > slots
            out = jnp.where(lost_BL[..., None, None], jnp.nan, out)
        return out, after


def _slot_tokens(count, slots):
    """Index of the token in each slot after `count` tokens; negative: none."""
    newest = count - 1
    return newest - jnp.mod(newest - jnp.arange(slots), slots)


def _written(cache, new, count):
    """The cache with new tokens in it, `count` being those before them."""
    slots = cache.keys.shape[1]
    length = new.keys.shape[1]
    kept = min(length, slots)
    if length == 1:
        slot = jnp.mod(count, slots)
        write = lambda old, new: jax.lax.dynamic_update_slice_in_dim(  # noqa: E731
            old, new, slot, axis=1
        )
    else:
        index = jnp.mod(count + jnp.arange(length - kept, length), slots)
        write = lambda old, new: old.at[:, index].set(new[:, -kept:])  # noqa: E731
    return KVCache(*(write(*pair) for pair in zip(cache, new, strict=True)))


def _check_heads(
    d_model: int, n_heads: int, n_kv_heads: int, head_dim: int | None
) -> int:
    """The width of a head, after checking that heads and width fit."""
    for name, value in (("n_heads", n_heads), ("n_kv_heads", n_kv_heads)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if n_heads % n_kv_heads:
        raise ValueError(
            f"n_heads = {n_heads} does not divide by n_kv_heads = {n_kv_heads}."
        )
    if head_dim is None:
        if d_model % n_heads:
            raise ValueError(
                f"d_model = {d_model} does not divide by n_heads = {n_heads}; change "
                "them, or give head_dim."
            )
        head_dim = d_model // n_heads
    if head_dim < 2 or head_dim % 2:
        raise ValueError(
            f"head_dim = {head_dim} must be even and positive: its channels rotate in "
            "pairs."
        )
    return head_dim
