"""Mamba-2 language model (Dao and Gu 2024, arXiv:2405.21060) in Flax NNX.

Each block adds to the residual stream

    out_proj(norm(ssd(silu(conv([x B C]))) * silu(z)))

where `[z x B C dt] = in_proj(norm(residual))`.

Legend: B batch, L length, D d_model, V vocabulary, H heads, P head width, G groups,
N state, F = H*P + 2*G*N convolved channels, T = conv_width - 1 former steps.

Parameters are float32. Projections compute in `dtype`; residual stream, norms, decays,
scan and carried state are float32 always.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models import layers, ssd

# The published ranges: exp(A_log) in [1, 16), dt in [1e-3, 0.1) and at least 1e-4.
_A_RANGE = (1.0, 16.0)
_DT_RANGE = (1e-3, 0.1)
_DT_FLOOR = 1e-4
_EMBEDDING_STD = 0.02


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mamba2State:
    """What a sequence has left behind; its size does not grow with the length.

    `ssm`: per layer `[B, H, P, N]` float32. `conv`: per layer `[B, T, F]`, the last
    inputs of the convolution. `segment_B`: int32 id of the document of both.
    """

    ssm: tuple[jax.Array, ...]
    conv: tuple[jax.Array, ...]
    segment_B: jax.Array


class RMSNorm(nnx.Module):
    """Root mean square norm with a gain, float32."""

    def __init__(self, dim: int, *, eps: float, groups: int = 1):
        self.scale = nnx.Param(jnp.ones(dim, jnp.float32))
        self.eps = eps
        self.groups = groups

    def __call__(self, x: jax.Array) -> jax.Array:
        """The normalised `x`, any leading axes."""
        return layers.rms_norm(x, self.scale[...], eps=self.eps, groups=self.groups)

    def gated(self, y: jax.Array, z: jax.Array) -> jax.Array:
        """Norm of `y * silu(z)`."""
        scale = self.scale[...]
        return layers.gated_rms_norm(y, z, scale, eps=self.eps, groups=self.groups)


class Mamba2Mixer(nnx.Module):
    """The sequence mixer of a Mamba-2 block.

    `in_proj` `[D, 2*H*P + 2*G*N + H]` holds the columns z, x, B, C, dt in this order;
    `conv_weight` `[conv_width, F]` with the current step last.
    """

    def __init__(
        self,
        *,
        d_model: int,
        expand: int = 2,
        head_dim: int = 64,
        state_dim: int = 64,
        n_groups: int = 1,
        conv_width: int = 4,
        chunk_size: int = 64,
        norm_eps: float = 1e-5,
        conv_bias: bool = True,
        out_scale: float = 1.0,
        dtype: jax.typing.DTypeLike = jnp.float32,
        form: ssd.Form = "scan",
        rngs: nnx.Rngs,
    ):
        d_inner = expand * d_model
        n_heads = _divide("expand * d_model", d_inner, "head_dim", head_dim)
        _divide("heads", n_heads, "n_groups", n_groups)
        self.d_inner, self.n_heads, self.head_dim = d_inner, n_heads, head_dim
        self.n_groups, self.state_dim = n_groups, state_dim
        self.chunk_size, self.form, self.dtype = chunk_size, form, dtype
        channels = d_inner + 2 * n_groups * state_dim
        columns = d_inner + channels + n_heads
        key = rngs.params
        uniform = layers.uniform
        self.in_proj = nnx.Param(
            uniform(key(), (d_model, columns), bound=d_model**-0.5)
        )
        self.conv_weight = nnx.Param(
            uniform(key(), (conv_width, channels), bound=conv_width**-0.5)
        )
        self.conv_bias = (
            nnx.Param(jnp.zeros(channels, jnp.float32)) if conv_bias else None
        )
        self.A_log = nnx.Param(_init_a_log(key(), n_heads))
        self.D = nnx.Param(jnp.ones(n_heads, jnp.float32))
        self.dt_bias = nnx.Param(_init_dt_bias(key(), n_heads))
        self.norm = RMSNorm(d_inner, eps=norm_eps, groups=n_groups)
        bound = out_scale * d_inner**-0.5
        self.out_proj = nnx.Param(uniform(key(), (d_inner, d_model), bound=bound))

    def __call__(
        self,
        u_BLD: jax.Array,
        *,
        ssm: jax.Array | None = None,
        conv: jax.Array | None = None,
        runs_BL: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Output `[B, L, D]` float32, then the states after the last step.

        Args:
          u_BLD: normalised inputs.
          ssm: `[B, H, P, N]` scan state before the first step; None: zero.
          conv: `[B, T, F]` inputs of the convolution before the first; None: zero.
          runs_BL: document number of each step, 0 continuing the states; None: one.
        """
        z_BLI, xbc_BLF, dt_BLH = self._project(u_BLD)
        taps = self.conv_weight.shape[0]
        conv_next = layers.next_history(xbc_BLF, conv, taps, runs_BL)
        xbc = layers.causal_conv(
            xbc_BLF, *self._conv(), history_BTF=conv, runs_BL=runs_BL
        )
        x_BLHP, B_BLGN, C_BLGN = self._heads(jax.nn.silu(xbc))
        dt_BLH, a_BLH = self._steps(dt_BLH)
        y_BLHP, ssm_next = ssd.ssd_scan(
            x_BLHP * dt_BLH[..., None],
            a_BLH,
            B_BLGN,
            C_BLGN,
            chunk_size=self.chunk_size,
            initial_state=ssm,
            segment_ids=runs_BL,
            previous_segment=None if runs_BL is None else jnp.zeros_like(runs_BL[:, 0]),
            form=self.form,
        )
        y_BLHP = y_BLHP + x_BLHP * self.D[...][:, None]
        return self._output(y_BLHP, z_BLI), ssm_next, conv_next

    def step(
        self, u_BD: jax.Array, *, ssm: jax.Array, conv: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One token: output `[B, D]` float32, then the states after it."""
        z_BI, xbc_BF, dt_BH = self._project(u_BD)
        taps = self.conv_weight.shape[0]
        conv_next = layers.next_history(xbc_BF[:, None], conv, taps)
        xbc = layers.causal_conv(xbc_BF[:, None], *self._conv(), history_BTF=conv)
        x_BHP, B_BGN, C_BGN = self._heads(jax.nn.silu(xbc[:, 0]))
        dt_BH, a_BH = self._steps(dt_BH)
        y_BHP, ssm_next = ssd.ssd_step(
            x_BHP * dt_BH[..., None], a_BH, B_BGN, C_BGN, ssm
        )
        y_BHP = y_BHP + x_BHP * self.D[...][:, None]
        return self._output(y_BHP, z_BI), ssm_next, conv_next

    def _project(self, u):
        weight = self.in_proj[...].astype(self.dtype)
        columns = jnp.dot(u.astype(self.dtype), weight)
        channels = self.conv_weight.shape[1]
        cuts = [self.d_inner, self.d_inner + channels]
        return jnp.split(columns, cuts, axis=-1)

    def _conv(self):
        bias = None if self.conv_bias is None else self.conv_bias[...]
        return self.conv_weight[...], bias

    def _heads(self, xbc):
        size = self.n_groups * self.state_dim
        cuts = [self.d_inner, self.d_inner + size]
        x, b, c = jnp.split(xbc, cuts, axis=-1)
        lead = xbc.shape[:-1]
        return (
            x.reshape(*lead, self.n_heads, self.head_dim),
            b.reshape(*lead, self.n_groups, self.state_dim),
            c.reshape(*lead, self.n_groups, self.state_dim),
        )

    def _steps(self, dt):
        dt = jax.nn.softplus(dt.astype(jnp.float32) + self.dt_bias[...])
        return dt, -jnp.exp(self.A_log[...]) * dt

    def _output(self, y, z):
        y = self.norm.gated(y.reshape(*z.shape), z).astype(self.dtype)
        weight = self.out_proj[...].astype(self.dtype)
        return jnp.dot(y, weight, preferred_element_type=jnp.float32)


class Mamba2Block(nnx.Module):
    """Pre-norm residual block around a `Mamba2Mixer`."""

    def __init__(self, *, d_model: int, norm_eps: float = 1e-5, **mixer):
        self.norm = RMSNorm(d_model, eps=norm_eps)
        self.mixer = Mamba2Mixer(d_model=d_model, norm_eps=norm_eps, **mixer)

    def __call__(self, x_BLD, ssm=None, conv=None, runs_BL=None):
        """The residual stream after this block and the mixer's states."""
        out, ssm, conv = self.mixer(
            self.norm(x_BLD), ssm=ssm, conv=conv, runs_BL=runs_BL
        )
        return x_BLD + out, ssm, conv

    def step(self, x_BD, ssm, conv):
        """The same for one token."""
        out, ssm, conv = self.mixer.step(self.norm(x_BD), ssm=ssm, conv=conv)
        return x_BD + out, ssm, conv


class Mamba2LM(nnx.Module):
    """Mamba-2 language model: embedding, blocks, norm, head.

    Args:
      vocab_size: number of token ids.
      d_model: width of the residual stream.
      n_layers: blocks.
      expand: inner width over `d_model`.
      head_dim: channels of one head.
      state_dim: state per channel.
      n_groups: groups of heads that share B and C.
      conv_width: taps of the convolution.
      chunk_size: steps per chunk of the scan; changes speed, not results.
      tie_embeddings: the head is the embedding's transpose.
      norm_eps: added to the mean square in every norm.
      conv_bias: whether the convolution has a bias.
      dtype: of the projections' computation.
      form: of the scan, see `ssd.ssd_scan`.
      remat: compute each block again in the backward pass, to save memory.
      separator_id: token that ends a document. Documents are then told from the
        tokens wherever no `segment_ids_BL` are given, and the state after a separator
        is empty. None: without segment ids a row is one document and former ones leak.
      rngs: key source of the initial values.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        expand: int = 2,
        head_dim: int = 64,
        state_dim: int = 64,
        n_groups: int = 1,
        conv_width: int = 4,
        chunk_size: int = 64,
        tie_embeddings: bool = True,
        norm_eps: float = 1e-5,
        conv_bias: bool = True,
        dtype: jax.typing.DTypeLike = jnp.float32,
        form: ssd.Form = "scan",
        remat: bool = False,
        separator_id: int | None = None,
        rngs: nnx.Rngs,
    ):
        self.dtype, self.remat, self.separator_id = dtype, remat, separator_id
        shape = (vocab_size, d_model)
        normal = layers.normal
        self.embedding = nnx.Param(normal(rngs.params(), shape, std=_EMBEDDING_STD))
        self.head = (
            None
            if tie_embeddings
            else nnx.Param(normal(rngs.params(), shape, std=_EMBEDDING_STD))
        )
        self.blocks = nnx.List(
            Mamba2Block(
                d_model=d_model,
                norm_eps=norm_eps,
                expand=expand,
                head_dim=head_dim,
                state_dim=state_dim,
                n_groups=n_groups,
                conv_width=conv_width,
                chunk_size=chunk_size,
                conv_bias=conv_bias,
                out_scale=(2 * n_layers) ** -0.5,
                dtype=dtype,
                form=form,
                rngs=rngs,
            )
            for _ in range(n_layers)
        )
        self.norm = RMSNorm(d_model, eps=norm_eps)

    def __call__(
        self,
        tokens_BL: jax.Array,
        *,
        segment_ids_BL: jax.Array | None = None,
        state: Mamba2State | None = None,
    ) -> tuple[jax.Array, Mamba2State]:
        """Logits `[B, L, V]` float32 and the state after the last token.

        Args:
          tokens_BL: int32 ids.
          segment_ids_BL: a change starts a new document, which sees nothing of the
            former; ids may be in any order.
          state: what came before; its document goes on where the first segment id
            equals the last one seen. None: nothing did.
        """
        runs_BL = self._runs(tokens_BL, segment_ids_BL, state)
        x_BLD = self.embedding[...][tokens_BL]
        ssm, conv = [], []
        call = nnx.remat(Mamba2Block.__call__) if self.remat else Mamba2Block.__call__
        for layer, block in enumerate(self.blocks):
            x_BLD, ssm_next, conv_next = call(
                block,
                x_BLD,
                None if state is None else state.ssm[layer],
                None if state is None else state.conv[layer],
                runs_BL,
            )
            ssm.append(ssm_next)
            conv.append(conv_next)
        last = tokens_BL[:, -1]
        segment_B = self._last_segment(last, segment_ids_BL, state)
        state = Mamba2State(ssm=tuple(ssm), conv=tuple(conv), segment_B=segment_B)
        if segment_ids_BL is None and self.separator_id is not None:
            state = _emptied(state, last == self.separator_id)
        return self._logits(x_BLD), state

    def init_state(self, batch_size: int) -> Mamba2State:
        """The state before the first token."""
        mixers = [block.mixer for block in self.blocks]
        return Mamba2State(
            ssm=tuple(
                jnp.zeros((batch_size, m.n_heads, m.head_dim, m.state_dim), jnp.float32)
                for m in mixers
            ),
            conv=tuple(
                jnp.zeros(
                    (batch_size, m.conv_weight.shape[0] - 1, m.conv_weight.shape[1]),
                    m.dtype,
                )
                for m in mixers
            ),
            segment_B=jnp.zeros(batch_size, jnp.int32),
        )

    def step(
        self,
        tokens_B: jax.Array,
        state: Mamba2State,
        *,
        segment_ids_B: jax.Array | None = None,
    ) -> tuple[jax.Array, Mamba2State]:
        """Logits `[B, V]` float32 after one more token, and the state."""
        if segment_ids_B is not None:
            state = _emptied(state, segment_ids_B != state.segment_B)
        x_BD = self.embedding[...][tokens_B]
        ssm, conv = [], []
        for layer, block in enumerate(self.blocks):
            x_BD, ssm_next, conv_next = block.step(
                x_BD, state.ssm[layer], state.conv[layer]
            )
            ssm.append(ssm_next)
            conv.append(conv_next)
        segment_B = state.segment_B if segment_ids_B is None else segment_ids_B
        state = Mamba2State(ssm=tuple(ssm), conv=tuple(conv), segment_B=segment_B)
        if segment_ids_B is None and self.separator_id is not None:
            state = _emptied(state, tokens_B == self.separator_id)
        return self._logits(x_BD), state

    def _logits(self, x):
        weight = self.embedding if self.head is None else self.head
        x = self.norm(x).astype(self.dtype)
        return jnp.einsum(
            "...d,vd->...v",
            x,
            weight[...].astype(self.dtype),
            preferred_element_type=jnp.float32,
        )

    def _runs(self, tokens_BL, segment_ids_BL, state):
        """Document number of each token, 0 continuing `state`; None: one document."""
        if segment_ids_BL is not None:
            before = None if state is None else state.segment_B
            return ssd.segment_runs(segment_ids_BL, before)
        if self.separator_id is None:
            return None
        ends_BL = (tokens_BL == self.separator_id).astype(jnp.int32)
        return jnp.cumsum(ends_BL, axis=1) - ends_BL

    def _last_segment(self, last_B, segment_ids_BL, state):
        if segment_ids_BL is not None:
            return segment_ids_BL[:, -1].astype(jnp.int32)
        return jnp.zeros(last_B.shape, jnp.int32) if state is None else state.segment_B


def num_params(model: nnx.Module) -> int:
    """Number of trainable values; a tied head counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def _emptied(state, where_B):
    """`state` with the rows chosen by `where_B` as before a first token."""

    def clear(array):
        chosen = where_B.reshape(where_B.shape + (1,) * (array.ndim - 1))
        return jnp.where(chosen, 0, array).astype(array.dtype)

    return Mamba2State(
        ssm=tuple(map(clear, state.ssm)),
        conv=tuple(map(clear, state.conv)),
        segment_B=state.segment_B,
    )


def _init_a_log(key, n_heads):
    low, high = _A_RANGE
    return jnp.log(jax.random.uniform(key, (n_heads,), jnp.float32, low, high))


def _init_dt_bias(key, n_heads):
    low, high = jnp.log(jnp.array(_DT_RANGE, jnp.float32))
    dt = jnp.exp(jax.random.uniform(key, (n_heads,), jnp.float32, low, high))
    return layers.inverse_softplus(jnp.maximum(dt, _DT_FLOOR))


def _divide(name, value, by_name, by):
    if by < 1 or value % by:
        raise ValueError(f"{name} = {value} does not divide by {by_name} = {by}.")
    return value // by
