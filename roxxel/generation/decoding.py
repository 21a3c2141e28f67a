"""The decode loop: prompts read by the parallel form, then a token a recurrent step.

Prompts of different lengths end together: short ones are padded in front, which
nothing sees. They are read in pieces of few lengths, so that few programs are compiled.
A loop of up to `CHUNK` steps is one program that runs on the device. On CPU the rows
are cut into lanes that run beside each other, a core each (`lanes`).

Legend: B batch, L length, V vocabulary.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel.generation import lanes, sampling
from roxxel.models import attention

CHUNK = 64  # steps of one call at most
PIECE = 512  # tokens of a prompt read at once
_SHORTEST = 16  # prompts are padded to this


class Lane(NamedTuple):
    """What goes from step to step, of the rows of one lane.

    Attributes:
      tokens_B: chosen last and not read yet.
      state: the leaves of the model's state.
      drawn_B: tokens chosen so far.
      seen_BV: whether a row holds a token; None where no row is penalised.
    """

    tokens_B: jax.Array
    state: list[jax.Array]
    drawn_B: jax.Array
    seen_BV: jax.Array | None


class Carry(NamedTuple):
    """What goes from step to step: that of all lanes, whose rows follow one another."""

    lanes: tuple[Lane, ...]

    @property
    def tokens_B(self) -> jax.Array:
        """The tokens chosen last, of all rows."""
        return _joined([lane.tokens_B for lane in self.lanes])


class Decoder:
    """A language model ready to continue prompts.

    Args:
      model: a `models.language_model.LanguageModel`.
      num_ids: tokens from here on are never chosen; None: all may be.
    """

    def __init__(self, model: Any, num_ids: int | None = None):
        self.vocab_size = model.vocab_size
        self.num_ids = min(num_ids or model.vocab_size, model.vocab_size)
        graphdef, state = nnx.split(model)
        self.leaves, treedef = jax.tree.flatten(state)
        self.programs = _programs(graphdef, treedef, self.num_ids)
        self.cores = lanes.Cores(self.leaves)

    def start(
        self,
        prompts: Sequence[np.ndarray],
        knobs: sampling.Knobs,
        kinds: sampling.Kinds,
        *,
        slots: int,
        tracks: bool | None = None,
    ) -> Carry:
        """Reads the prompts and chooses the first token of each.

        Args:
          prompts: ids, at least one each.
          knobs: their settings.
          kinds: what the settings need.
          slots: tokens that caches hold, at least `padded_length` of the longest.
          tracks: whether to keep which tokens rows hold; None: where penalised.
        """
        tracks = kinds.penalises if tracks is None else tracks
        return Carry(
            tuple(
                self._started(prompts[rows], _of(knobs, rows), kinds, slots, tracks)
                for rows in self.cores.split(len(prompts))
            )
        )

    def _started(self, prompts, knobs, kinds, slots, tracks):
        tokens_BL, first_B = padded(prompts)
        state = self.programs.empty(self.leaves, batch=len(prompts), slots=slots)
        seen = jnp.asarray(_seen(prompts, self.vocab_size)) if tracks else None
        logits = None
        for begin, end in _pieces(tokens_BL.shape[1]):
            logits, state = self.programs.read(
                self.leaves, state, tokens_BL[:, begin:end], first_B - begin
            )
        return self.programs.first(logits, state, knobs, seen, kinds=kinds)

    def run(
        self, carry: Carry, knobs: sampling.Knobs, kinds: sampling.Kinds, steps: int
    ) -> tuple[jax.Array, Carry]:
        """`steps` more tokens, up to `CHUNK`: so many rows of `[CHUNK, B]`.

        The carry is used up.
        """
        rows = self.cores.split(_num_rows(carry))
        calls = [
            functools.partial(
                self.programs.run,
                self.leaves,
                lane,
                _of(knobs, of_lane),
                np.int32(steps),
                kinds=kinds,
            )
            for lane, of_lane in zip(carry.lanes, rows, strict=True)
        ]
        tokens, after = zip(*self.cores.run(calls), strict=True)
        return _joined(tokens), Carry(after)

    def continued(
        self,
        prompts: Sequence[np.ndarray],
        knobs: sampling.Knobs,
        kinds: sampling.Kinds,
        num_tokens: int,
        *,
        pace_secs: float | None = None,
    ) -> Iterator[tuple[int, jax.Array]]:
        """The continuations as they come: tokens so far, and the newest `[steps, B]`.

        Caches grow with the continuations. With `pace_secs` the first steps are few,
        and then as many at once as take about that long.
        """
        longest = max(len(prompt) for prompt in prompts)
        slots = slots_for(longest, min(num_tokens, CHUNK))
        carry = self.start(prompts, knobs, kinds, slots=slots)
        done, steps = 1, CHUNK if pace_secs is None else 1
        yield done, carry.tokens_B[None]
        while done < num_tokens:
            count = min(steps, CHUNK, num_tokens - done)
            if slots_for(longest, done + count) > slots:
                slots = slots_for(longest, done + count)
                carry = self.grown(carry, slots)
            began = time.monotonic()
            tokens_SB, carry = self.run(carry, knobs, kinds, count)
            if pace_secs is not None:
                jax.block_until_ready(tokens_SB)
                fast = time.monotonic() - began < pace_secs / 2
                steps = min(2 * count, CHUNK) if fast else max(count // 2, 1)
            done += count
            yield done, tokens_SB[:count]

    def waiting(self, rows: int, slots: int) -> Carry:
        """A batch for `joined`; until then its rows hold nothing that counts."""

        def lane(of_lane):
            num = of_lane.stop - of_lane.start
            state = self.programs.begun(self.leaves, batch=num, slots=slots)
            seen_BV = jnp.zeros((num, self.vocab_size), bool)
            # Not one array twice: each is donated.
            return Lane(
                jnp.zeros(num, jnp.int32), state, jnp.zeros(num, jnp.int32), seen_BV
            )

        return Carry(tuple(map(lane, self.cores.split(rows))))

    def joined(self, carry: Carry, one: Carry, row: int) -> Carry:
        """The carry of `waiting` with a batch of one row, of as many slots, in a row.

        Both must track which tokens rows hold. The first carry is used up.
        """
        size = _num_rows(carry) // len(carry.lanes)
        after, place = list(carry.lanes), np.int32(row % size)
        (own,) = one.lanes
        after[row // size] = self.programs.join(
            self.leaves, after[row // size], own, place
        )
        return Carry(tuple(after))

    def grown(self, carry: Carry, slots: int) -> Carry:
        """The carry with caches of `slots` tokens; rows must not have gone round."""

        def grown(lane):
            state = self.programs.grow(self.leaves, lane.state, slots=slots)
            return lane._replace(state=state)

        return Carry(tuple(map(grown, carry.lanes)))


class _Programs:
    """The compiled functions of a model; its parameters are an argument of theirs.

    They take flat lists: what `nnx.jit` and nested trees cost a call is saved.
    """

    def __init__(self, graphdef: Any, treedef: Any, num_ids: int):
        self._graphdef, self._treedef, self._num_ids = graphdef, treedef, num_ids
        shapes = ("batch", "slots")
        self.empty = jax.jit(self._empty, static_argnames=shapes)
        self.read = jax.jit(self._read, donate_argnums=1)
        self.first = jax.jit(self._first, static_argnames="kinds")
        self.run = jax.jit(self._run, static_argnames="kinds", donate_argnums=1)
        self.begun = jax.jit(self._begun, static_argnames=shapes)
        self.join = jax.jit(self._join, donate_argnums=1)
        self.grow = jax.jit(self._grow, static_argnames="slots")

    def _model(self, leaves):
        model = nnx.merge(self._graphdef, jax.tree.unflatten(self._treedef, leaves))
        model.eval()
        return model

    def _empty(self, leaves, *, batch, slots):
        return jax.tree.leaves(self._model(leaves).init_state(batch, slots))

    def _begun(self, leaves, *, batch, slots):
        """An empty state after `slots` tokens: what joins it is never older."""
        state = self._model(leaves).init_state(batch, slots)
        return jax.tree.leaves(dataclasses.replace(state, length=jnp.int32(slots)))

    def _join(self, leaves, carry, one, row):
        model = self._model(leaves)
        old, new = (self._state(model, c.state) for c in (carry, one))
        shift = old.length - new.length  # of the index of the row's tokens

        def put(rows, value):
            return jax.lax.dynamic_update_index_in_dim(rows, value[0], row, 0)

        def layer(old, new):
            if isinstance(new, attention.KVCache):
                # Token i lies in slot i % slots.
                new = jax.tree.map(lambda kept: jnp.roll(kept, shift, axis=1), new)
            return jax.tree.map(put, old, new)

        state = dataclasses.replace(
            old,
            layers=tuple(map(layer, old.layers, new.layers)),
            segment_B=put(old.segment_B, new.segment_B),
            start_B=put(old.start_B, new.start_B + shift),
        )
        return Lane(
            put(carry.tokens_B, one.tokens_B),
            jax.tree.leaves(state),
            put(carry.drawn_B, one.drawn_B),
            put(carry.seen_BV, one.seen_BV),
        )

    def _state(self, model, leaves):
        """The model's state of its leaves, in whatever shape they are carried."""
        like = jax.eval_shape(lambda: model.init_state(1, 1))
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _read(self, leaves, state, tokens_BL, first_B):
        model = self._model(leaves)
        hidden_BLD, after = model.hidden(
            tokens_BL, state=self._state(model, state), first_B=first_B
        )
        return model.logits(hidden_BLD[:, -1:])[:, 0], jax.tree.leaves(after)

    def _first(self, logits_BV, state, knobs, seen_BV, *, kinds):
        drawn_B = jnp.zeros(logits_BV.shape[0], jnp.int32)
        return self._chosen(logits_BV, state, knobs, drawn_B, seen_BV, kinds)

    def _chosen(self, logits_BV, state, knobs, drawn_B, seen_BV, kinds):
        if self._num_ids < logits_BV.shape[-1]:
            may = jnp.arange(logits_BV.shape[-1]) < self._num_ids
            logits_BV = jnp.where(may, logits_BV, -jnp.inf)
        tokens_B = sampling.choose(logits_BV, knobs, drawn_B, seen_BV, kinds)
        if seen_BV is not None:
            seen_BV = seen_BV.at[jnp.arange(tokens_B.shape[0]), tokens_B].set(True)
        return Lane(tokens_B, state, drawn_B + 1, seen_BV)

    def _run(self, leaves, carry, knobs, steps, *, kinds):
        model = self._model(leaves)
        shapes = [leaf.shape for leaf in carry.state]

        def body(index, carried):
            carry, tokens_SB = carried
            parts = zip(carry.state, shapes, strict=True)
            state = self._state(model, [leaf.reshape(s) for leaf, s in parts])
            logits_BV, after = model.step(carry.tokens_B, state)
            flat = _squeezed(jax.tree.leaves(after))
            carry = self._chosen(
                logits_BV, flat, knobs, carry.drawn_B, carry.seen_BV, kinds
            )
            return carry, tokens_SB.at[index].set(carry.tokens_B)

        tokens_SB = jnp.zeros((CHUNK, carry.tokens_B.shape[0]), jnp.int32)
        carry = carry._replace(state=_squeezed(carry.state))
        carry, tokens_SB = jax.lax.fori_loop(0, steps, body, (carry, tokens_SB))
        parts = zip(carry.state, shapes, strict=True)
        return tokens_SB, carry._replace(state=[v.reshape(s) for v, s in parts])

    def _grow(self, leaves, state, *, slots):
        batch = state[-1].shape[0]
        bigger = self._empty(leaves, batch=batch, slots=slots)
        return [
            jax.lax.dynamic_update_slice(new, old, (0,) * old.ndim)
            for new, old in zip(bigger, state, strict=True)
        ]


_programs = functools.lru_cache(maxsize=16)(_Programs)


def padded_length(longest: int) -> int:
    """Tokens that a prompt of so many takes, with what it is padded by."""
    whole, rest = divmod(longest, PIECE)
    return whole * PIECE + (_bucket(rest) if rest else 0)


def slots_for(longest: int, more: int) -> int:
    """Slots of a cache for prompt and continuation, of few different values."""
    return max(_bucket(padded_length(longest) + more), 4 * _SHORTEST)


def padded(prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Prompts that end together, `[B, L]` int32, and where each begins, `[B]`."""
    longest = padded_length(max(len(prompt) for prompt in prompts))
    tokens_BL = np.zeros((len(prompts), longest), np.int32)
    first_B = np.array([longest - len(prompt) for prompt in prompts], np.int32)
    for row, prompt in enumerate(prompts):
        tokens_BL[row, first_B[row] :] = prompt
    return tokens_BL, first_B


def _pieces(length):
    """Begin and end of what is read at once: the short piece first."""
    begin = length % PIECE
    edges = [0, *range(begin or PIECE, length + 1, PIECE)]
    return list(itertools.pairwise(edges))


def _bucket(length):
    return max(_SHORTEST, 1 << (length - 1).bit_length())


def _squeezed(leaves):
    """Without axes of size 1, around which XLA on CPU copies the state every step."""
    return [leaf.reshape([size for size in leaf.shape if size > 1]) for leaf in leaves]


def _joined(values):
    """The rows of all lanes, on the last axis."""
    return values[0] if len(values) == 1 else jnp.concatenate(values, axis=-1)


def _num_rows(carry):
    return sum(lane.tokens_B.shape[0] for lane in carry.lanes)


def _of(knobs, rows):
    return jax.tree.map(lambda values: values[rows], knobs)


def _seen(prompts, vocab_size):
    seen_BV = np.zeros((len(prompts), vocab_size), bool)
    for row, prompt in enumerate(prompts):
        seen_BV[row, prompt] = True
    return seen_BV
